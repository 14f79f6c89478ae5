"""What the plan no longer holds ends when it has answered what it has taken; meanwhile it loads nothing."""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import serve

from deployments.control import needed_steps
from deployments.control import reconciler as reconciler_module
from deployments.control.desired_state import DesiredState, unloaded
from deployments.control.reconciler import Reconciler
from tests.deployments.control.test_desired_state import ENSEMBLE, write
from tests.deployments.control.test_former_places import PLACED, Repository
from tests.deployments.control.test_reconciler import Serve
from tests.deployments.control.test_reconciler import serving as serving
from tests.serving import wait_until

MEMORY = 'parameters { key: "eagleray.memory_bytes" value { string_value: "3000000" } }'
SCALES = 'parameters { key: "eagleray.autoscaling.max_replicas" value { string_value: "5" } }'
PLACE = ("m", "v1")
NO_ROOM = "Deployment 'v1' has 1 replicas that have taken more than 30s to be scheduled."


class Replicas:
    """Deployed by a reconciler; `busy` says how many replicas of a deployment there are, of those that are busy."""

    def __init__(self, serving: Serve, root: Path, monkeypatch: pytest.MonkeyPatch, **options: float) -> None:
        self.serving = serving
        self.busy: dict[tuple[str, str], int] = {}
        self.expected: dict[tuple[str, str], int] = {}
        self.deployed: dict[str, dict[str, dict[str, Any]]] = {}
        self.repository = Repository(root)
        self.repository.options = replace(self.repository.options, **options)  # type: ignore[arg-type]
        self.answering: set[tuple[str, str]] = set()
        self.reconciler = self.controller()
        run_many = serving.run_many

        def note(targets: Sequence[serve.RunTarget], **given: Any) -> None:
            run_many(targets, **given)
            for target in targets:
                self.deployed[str(target.name)] = {each["name"]: each for each in target.target}  # type: ignore[attr-defined]

        monkeypatch.setattr(serve, "run_many", note)
        monkeypatch.setattr(reconciler_module, "group_application", lambda options, *_: options)

    def controller(self) -> Reconciler:
        """Return what a controller that has just started has."""
        options, answering = self.repository.options, self.answering.intersection
        return Reconciler(options, "eagleray", lambda app, deployment: None, self.busy_of, answering)

    def busy_of(self, places: Mapping[tuple[str, str], int]) -> Mapping[tuple[str, str], int]:
        self.expected |= places
        return {place: count for place, count in self.busy.items() if place in places}

    def start(self) -> DesiredState:
        desired = self.repository.read()
        self.take(desired)
        return desired

    def take(self, desired: DesiredState) -> None:
        assert self.reconciler.reconcile(desired) == {}

    def unload(self, before: DesiredState, *names: str) -> DesiredState:
        after = unloaded(self.repository.options, before, names)
        self.take(after)
        return after

    def leave(self, *, busy: int = 1) -> DesiredState:
        """Start everything, and unload `m` while so many replicas of it are busy; returns what is wanted then."""
        self.before = self.start()
        self.ran = self.deployed["m"]["v1"]
        self.busy[PLACE] = busy
        return self.unload(self.before, "m")

    def end_due(self) -> set[str]:
        """Return which applications there are then."""
        self.reconciler.end_due()
        return set(self.serving.applications)

    def places(self) -> list[tuple[str, str]]:
        return [(app, name) for app, deployments in self.deployed.items() for name in deployments]

    def models(self, app: str, deployment: str) -> list[str]:
        load = json.loads(self.deployed[app][deployment]["user_config"]["load"])
        return [model["package"]["name"] for model in load["models"]]


@pytest.fixture
def make(serving: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Replicas]:
    """Return what makes them of models with these configurations; `m` is there."""

    def replicas_of(models: Mapping[str, str] | None = None, **options: float) -> Replicas:
        for name, config in {"m": "", **(models or {})}.items():
            write(tmp_path, name, config)
        return Replicas(serving, tmp_path, monkeypatch, **options)

    return replicas_of


def test_what_is_busy_unloads_in_place_and_ends_when_it_is_no_longer(make: Callable[..., Replicas]) -> None:
    replicas = make({"m": MEMORY})
    replicas.leave(busy=3)
    ran = replicas.ran
    leaves = replicas.deployed["m"]["v1"]
    assert replicas.models(*PLACE) == [] and leaves["num_replicas"] == 3
    assert {**leaves, "user_config": ran["user_config"], "num_replicas": 1} == ran, "other replicas would be started"
    assert replicas.reconciler.ends_later
    assert replicas.end_due() == {"m"} and replicas.deployed["m"]["v1"] is leaves
    replicas.busy.clear()
    assert replicas.end_due() == set() and not replicas.reconciler.ends_later


def test_all_replicas_that_there_are_shall_say_whether_they_are_busy(
    make: Callable[..., Replicas], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of replicas that are told to load nothing, those that are busy may be off Serve's list while others are idle."""
    two = 'parameters { key: "eagleray.replicas" value { string_value: "2" } }'
    replicas = make({"two": two, "scales": SCALES})
    monkeypatch.setattr(reconciler_module, "replica_targets", lambda: {("scales", "v1"): 3})
    before = replicas.start()
    replicas.busy = {("two", "v1"): 2, ("scales", "v1"): 4}
    replicas.unload(before, "two", "scales")
    assert replicas.expected == {("two", "v1"): 2, ("scales", "v1"): 3}
    assert replicas.deployed["scales"]["v1"]["num_replicas"] == 4
    assert replicas.end_due() >= {"two", "scales"}
    assert replicas.expected == {("two", "v1"): 2, ("scales", "v1"): 4}


def test_what_is_idle_ends_at_once(make: Callable[..., Replicas], serving: Serve) -> None:
    """As does that of which nobody is there."""
    replicas = make()
    replicas.leave(busy=0)
    assert serving.applications == {} and not replicas.reconciler.ends_later


def test_what_is_busy_costs_no_look_at_all_that_runs(
    make: Callable[..., Replicas], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The details of all applications are half a second of Serve's controller for 1,000 of them."""
    replicas = make()
    replicas.leave()
    looks = count()
    monkeypatch.setattr(reconciler_module, "application_owners", lambda: {"m": "eagleray"} if next(looks) else {})
    assert replicas.end_due() == {"m"} and next(looks) == 0
    replicas.busy.clear()
    assert replicas.end_due() == set()


def test_replicas_that_are_being_told_are_not_there_for_a_moment(make: Callable[..., Replicas]) -> None:
    replicas = make()
    replicas.leave()
    replicas.busy[PLACE] = 0
    assert replicas.end_due() == {"m"}
    assert replicas.deployed["m"]["v1"]["num_replicas"] == 1


def test_a_model_that_is_loaded_meanwhile_is_loaded_in_place(make: Callable[..., Replicas]) -> None:
    replicas = make()
    replicas.take(replicas.repository.load(replicas.leave(), "m"))
    again = replicas.deployed["m"]["v1"]
    assert replicas.models(*PLACE) == ["m"] and not replicas.reconciler.ends_later
    ran = replicas.ran
    assert {**again, "user_config": ran["user_config"]} == ran, "other replicas would be started"
    replicas.unload(replicas.before, "m")
    assert replicas.models(*PLACE) == [] and replicas.end_due() == {"m"}


def test_what_never_answers_ends_in_time(make: Callable[..., Replicas]) -> None:
    replicas = make(unload_timeout_s=0.2)
    after = replicas.leave()
    assert replicas.end_due() == {"m"}
    replicas.take(replace(after))  # something else has changed, and the time is the same
    time.sleep(0.2)
    assert replicas.end_due() == set()


def say_of_others(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return what Serve says of the deployment `other`."""
    state = SimpleNamespace(name="v1", status=SimpleNamespace(value="UPDATING"), message="")
    statuses = [SimpleNamespace(name="other", deployment_statuses=[state])]
    monkeypatch.setattr(serving, "list_serve_statuses", lambda: statuses)
    return state


def test_what_leaves_makes_room_for_what_finds_none(
    make: Callable[..., Replicas], serving: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = make({"other": PLACED % "isolated"})
    replicas.leave()
    others = say_of_others(serving, monkeypatch)
    assert replicas.end_due() == {"m", "other"}
    others.message = NO_ROOM
    assert replicas.end_due() == {"other"}


def test_what_leaves_needs_no_room_for_itself(
    make: Callable[..., Replicas], serving: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica of it has died with its node, and Serve finds no place for another; those that live are busy."""
    replicas = make()
    replicas.leave()
    states = [SimpleNamespace(name="v1", status=SimpleNamespace(value="UPDATING"), message=NO_ROOM)]
    monkeypatch.setattr(serving, "list_serve_statuses", lambda: [SimpleNamespace(name="m", deployment_statuses=states)])
    assert replicas.end_due() == {"m"}


def test_a_version_leaves_the_application_of_the_others(make: Callable[..., Replicas], tmp_path: Path) -> None:
    replicas = make({"m": "version_policy { all {} }" + PLACED % "isolated"})
    shutil.copytree(tmp_path / "m/1", tmp_path / "m/2")
    before = replicas.start()
    assert [*replicas.deployed["m"]] == ["v1", "v2"]
    replicas.busy[PLACE] = 1
    replicas.repository.configure("m", PLACED % "isolated")
    tried = replicas.repository.load(before, "m")
    replicas.take(tried)
    replicas.take(replicas.repository.commit(tried))
    assert [*replicas.deployed["m"]] == ["v1", "v2"], "v2 stays the one that a handle to the application reaches"
    assert (replicas.models("m", "v1"), replicas.models("m", "v2")) == ([], ["m"])
    replicas.busy.clear()
    assert replicas.end_due() == {"m"} and [*replicas.deployed["m"]] == ["v2"]


def write_pipe(root: Path, name: str = "pipe", step: str = "step", placement: str = "isolated") -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(ENSEMBLE.replace('"step"', f'"{step}"') + PLACED % placement)


def test_a_step_that_may_still_be_asked_stays_loaded(make: Callable[..., Replicas], tmp_path: Path) -> None:
    replicas = make({"step": PLACED % "isolated"}, drain_timeout_s=0.2)
    write_pipe(tmp_path)
    before = replicas.start()
    replicas.busy["step", "v1"] = 1
    replicas.unload(before, "pipe", "step")
    assert "step" in replicas.end_due() and replicas.models("step", "v1") == ["step"]
    wait_until(lambda: replicas.end_due() and not replicas.models("step", "v1"), "it is asked no more", 5)
    replicas.busy.clear()
    assert "step" not in replicas.end_due()


def has_step(replicas: Replicas) -> bool:
    return "step" in replicas.end_due() and replicas.models("step", "v1") == ["step"]


def test_a_step_stays_as_long_as_a_replica_of_its_ensemble_answers(
    make: Callable[..., Replicas], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needed_steps, "_LOOK_S", 0.05)
    replicas = make({"step": PLACED % "isolated"}, drain_timeout_s=0.0)
    write_pipe(tmp_path)
    write_pipe(tmp_path, "above", "pipe")
    before = replicas.start()
    replicas.busy["above", "v1"] = 1
    replicas.unload(before, "above", "pipe", "step")
    assert has_step(replicas) and replicas.models("pipe", "v1") == ["pipe"]
    time.sleep(0.1)
    assert has_step(replicas) and replicas.models("pipe", "v1") == ["pipe"]
    replicas.busy.clear()
    wait_until(lambda: "above" not in replicas.end_due(), "the ensemble has answered", 5)
    wait_until(lambda: replicas.end_due() == {"m"}, "its steps go one after the other", 5)


def test_a_step_stays_as_long_as_its_ensemble_answers_in_a_group(
    make: Callable[..., Replicas], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needed_steps, "_LOOK_S", 0.05)
    replicas = make({"step": PLACED % "isolated", "other": PLACED % "packed"}, drain_timeout_s=0.0)
    write_pipe(tmp_path, placement="packed")
    before = replicas.start()
    (group,) = (place for place in replicas.places() if "pipe" in replicas.models(*place))
    replicas.answering.add(group)
    after = replicas.unload(before, "pipe", "step")
    assert has_step(replicas)
    replicas.take(replicas.repository.load(after, "other"))
    assert has_step(replicas), "a change of something else does not end it"
    replicas.answering.clear()
    wait_until(lambda: "step" not in replicas.end_due(), "the ensemble has answered", 5)


@pytest.mark.parametrize("ensemble_goes", [True, False], ids=["with its ensemble", "alone"])
@pytest.mark.parametrize("placement", [PLACED % "embedded", ""], ids=["embedded", "a copy"])
def test_a_step_stays_as_long_as_its_ensemble_answers_in_an_ingress(
    placement: str, ensemble_goes: bool, make: Callable[..., Replicas], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needed_steps, "_LOOK_S", 0.05)
    replicas = make({"step": PLACED % "isolated"}, drain_timeout_s=0.0)
    write_pipe(tmp_path)
    (tmp_path / "pipe" / "config.pbtxt").write_text(ENSEMBLE + placement)
    before = replicas.start()
    replicas.answering.add(("eagleray", replicas.repository.options.ingress))
    replicas.unload(before, "step", *(["pipe"] if ensemble_goes else []))
    assert has_step(replicas)
    time.sleep(0.1)
    assert has_step(replicas)
    replicas.answering.clear()
    wait_until(lambda: "step" not in replicas.end_due(), "the ensemble has answered", 5)


@pytest.mark.parametrize("ensemble_goes", [True, False], ids=["with its ensemble", "alone"])
@pytest.mark.parametrize("placement", ["isolated", "packed"])
def test_a_step_that_goes_stays_as_long_as_its_ensemble_elsewhere_answers(
    placement: str, ensemble_goes: bool, make: Callable[..., Replicas], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needed_steps, "_LOOK_S", 0.05)
    replicas = make({"step": PLACED % placement, "other": PLACED % "packed"}, drain_timeout_s=0.0)
    write_pipe(tmp_path)
    before = replicas.start()
    (place,) = (place for place in replicas.places() if "step" in replicas.models(*place))
    replicas.answering.add(("pipe", "v1"))
    replicas.busy["pipe", "v1"] = int(ensemble_goes)
    after = replicas.unload(before, "step", *(["pipe"] if ensemble_goes else []))
    assert "step" in replicas.models(*place) and replicas.reconciler.ends_later
    replicas.end_due()
    replicas.take(replicas.repository.load(after, "other"))
    assert "step" in replicas.models(*place), "a change of something else does not end it"
    replicas.answering.clear()
    replicas.busy.clear()
    wait_until(lambda: replicas.end_due() and not replicas.reconciler.ends_later, "the ensemble has answered", 5)
    assert placement == "isolated" or "step" not in replicas.models(*place)
    assert ("step" in replicas.serving.applications, "m" in replicas.serving.applications) == (False, True)


@pytest.mark.parametrize("placement", ["isolated", "packed"])
def test_a_packed_step_that_is_an_ensemble_keeps_its_own_steps(
    placement: str, make: Callable[..., Replicas], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needed_steps, "_LOOK_S", 0.05)
    replicas = make({"step": PLACED % placement, "other": PLACED % "packed"}, drain_timeout_s=0.0)
    write_pipe(tmp_path, placement="packed")
    write_pipe(tmp_path, "above", "pipe")
    before = replicas.start()
    (group,) = (place for place in replicas.places() if "pipe" in replicas.models(*place))
    (place,) = (place for place in replicas.places() if "step" in replicas.models(*place))
    replicas.busy["above", "v1"] = 1
    replicas.unload(before, "above", "pipe", "step")
    for _ in range(3):
        assert place[0] in replicas.end_due()
        assert "pipe" in replicas.models(*group) and "step" in replicas.models(*place)
        time.sleep(0.1)
    replicas.busy.clear()
    wait_until(lambda: replicas.end_due() and not replicas.reconciler.ends_later, "all have answered", 5)
    assert replicas.models(*group) == ["other"] and "above" not in replicas.serving.applications
    assert placement == "packed" or "step" not in replicas.serving.applications


def test_a_packed_step_that_is_loaded_again_meanwhile_is_not_there_twice(
    make: Callable[..., Replicas], tmp_path: Path
) -> None:
    replicas = make({"step": PLACED % "packed", "other": PLACED % "packed"})
    write_pipe(tmp_path)
    before = replicas.start()
    (place,) = (place for place in replicas.places() if "step" in replicas.models(*place))
    after = replicas.unload(before, "step")
    assert sorted(replicas.models(*place)) == ["other", "step"]
    replicas.take(replicas.repository.load(after, "step"))
    assert sorted(replicas.models(*place)) == ["other", "step"] and not replicas.reconciler.ends_later


def test_a_step_goes_at_once_from_the_process_of_its_ensemble(make: Callable[..., Replicas], tmp_path: Path) -> None:
    """Which sees to what is under way."""
    replicas = make({"step": PLACED % "packed", "other": PLACED % "packed"})
    write_pipe(tmp_path, placement="packed")
    before = replicas.start()
    (place,) = (place for place in replicas.places() if "step" in replicas.models(*place))
    replicas.unload(before, "step")
    assert sorted(replicas.models(*place)) == ["other", "pipe"] and not replicas.reconciler.ends_later


def test_a_step_whose_ensemble_never_answers_ends_in_time(make: Callable[..., Replicas], tmp_path: Path) -> None:
    replicas = make({"step": PLACED % "isolated"}, drain_timeout_s=0.0, unload_timeout_s=0.2)
    write_pipe(tmp_path, placement="packed")
    before = replicas.start()
    replicas.answering.update(replicas.places())
    replicas.unload(before, "pipe", "step")
    assert has_step(replicas)
    wait_until(lambda: "step" not in replicas.end_due(), "its time is over", 5)


def test_a_step_makes_room_for_what_finds_none(
    make: Callable[..., Replicas], tmp_path: Path, serving: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needed_steps, "_LOOK_S", 0.05)
    replicas = make({"step": PLACED % "isolated", "other": PLACED % "isolated"}, drain_timeout_s=0.0)
    write_pipe(tmp_path, placement="packed")
    before = replicas.start()
    replicas.answering.update(replicas.places())
    replicas.unload(before, "pipe", "step")
    others = say_of_others(serving, monkeypatch)
    assert has_step(replicas)
    others.message = NO_ROOM
    wait_until(lambda: "step" not in replicas.end_due(), "it makes room", 5)


def test_what_leaves_is_no_leftover_and_ends_with_the_rest(make: Callable[..., Replicas], serving: Serve) -> None:
    replicas = make()
    after = replicas.leave()
    serving.settle()
    replicas.reconciler.sweep(after)
    assert set(serving.applications) == {"m"}
    replicas.reconciler.end_all()
    assert serving.applications == {} and not replicas.reconciler.ends_later


def test_what_serve_did_not_end_is_ended_in_the_next_turn(
    make: Callable[..., Replicas], serving: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = make()
    replicas.leave()
    replicas.busy.clear()
    with monkeypatch.context() as away:
        away.setattr(serving, "delete_apps", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            replicas.reconciler.end_due()
    assert replicas.reconciler.ends_later
    assert replicas.end_due() == set() and not replicas.reconciler.ends_later


def test_serve_waits_longer_for_the_replicas_of_some_for_a_while(make: Callable[..., Replicas]) -> None:
    replicas = make({"other": PLACED % "isolated"})
    replicas.start()
    before, other = replicas.deployed["m"]["v1"], replicas.deployed["other"]["v1"]
    replicas.deployed.clear()
    waits_s = replicas.reconciler.give_time([PLACE])
    assert waits_s == replicas.repository.options.unload_timeout_s + 5.0
    assert replicas.deployed == {"m": {"v1": {**before, "graceful_shutdown_timeout_s": waits_s}}}
    replicas.reconciler.give_time([("other", "v1")])
    assert replicas.deployed["m"]["v1"] == before
    assert replicas.deployed["other"]["v1"] == {**other, "graceful_shutdown_timeout_s": waits_s}


def test_all_versions_of_a_packed_step_stay(make: Callable[..., Replicas], tmp_path: Path) -> None:
    replicas = make({"step": PLACED % "packed" + " version_policy { all {} }", "other": PLACED % "packed"})
    shutil.copytree(tmp_path / "step" / "1", tmp_path / "step" / "2")
    write_pipe(tmp_path)
    before = replicas.start()
    (place,) = (place for place in replicas.places() if "step" in replicas.models(*place))
    replicas.unload(before, "pipe", "step")
    assert sorted(replicas.models(*place)) == ["other", "step", "step"]


def test_a_packed_step_ends_at_once_under_another_controller(
    make: Callable[..., Replicas], tmp_path: Path, serving: Serve
) -> None:
    replicas = make({"step": PLACED % "packed", "other": PLACED % "packed"})
    write_pipe(tmp_path)
    before = replicas.start()
    (place,) = (place for place in replicas.places() if "step" in replicas.models(*place))
    after = replicas.unload(before, "pipe", "step")
    assert sorted(replicas.models(*place)) == ["other", "step"]
    serving.settle()
    assert replicas.controller().reconcile(after) == {}
    assert replicas.models(*place) == ["other"]
