"""What ran under other options stays until what takes its place is ready."""

import asyncio
import contextlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from deployments.control.controller_options import ControllerOptions
from deployments.control.current_state import CurrentState
from deployments.control.desired_state import DesiredState, Origin, committed, loaded, reverted, unloaded
from deployments.control.directory import LOADING, READY
from deployments.control.first_state import read_desired_state
from deployments.control.growth_request import wanted
from deployments.control.model_commands import read_models
from deployments.control.model_table import ModelTable
from deployments.control.postponed import reasons_of
from deployments.control.redeployment import beside_what_ran
from deployments.control.state_store import StateStore
from deployments.control.waiting_models import WaitingModels
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from tests.deployments.control.test_desired_state import CODE, ENSEMBLE, TENSORS, write
from tests.deployments.control.test_former_places import CPUS, PLACED, Repository, places
from tests.deployments.control.test_state_store import Table
from tests.deployments.control.test_waiting_models import with_waiting

FACTS = ClusterFacts((NodeFacts(4),))


def options_of(root: Path, placement: str) -> ControllerOptions:
    return replace(Repository(root).options, plan=PlanSettings(placement=placement))


def add_version(root: Path, name: str) -> None:
    (root / name / "2").mkdir()
    (root / name / "2/model.py").write_text(CODE)


def write_ensemble(root: Path, first: str, second: str) -> None:
    step = 'step { model_name: "%s" model_version: -1 input_map { key: "X" value: "%s" } output_map { key: "Y" value: "%s" } }'
    steps = step % (first, "X", "between") + step % (second, "between", "Y")
    head = ENSEMBLE.partition("ensemble_scheduling")[0]
    (root / "ensemble/1").mkdir(parents=True)
    (root / "ensemble/config.pbtxt").write_text(f"{head} ensemble_scheduling {{ {steps} }}")


def deployed(root: Path, placement: str, former: DesiredState | None = None) -> DesiredState:
    options = options_of(root, placement)
    fresh = read_desired_state(options, FACTS)
    return fresh if former is None else beside_what_ran(options, former, fresh)


def tried(desired: DesiredState) -> list[set[str]]:
    return sorted((set(trial.before) for trial in desired.trials), key=sorted)


def test_what_goes_elsewhere_stays_where_it_was_until_it_is_ready(tmp_path: Path) -> None:
    write(tmp_path, "m", "")
    write(tmp_path, "n", "")
    former = deployed(tmp_path, "isolated")
    both = deployed(tmp_path, "packed", former)
    packed, isolated = "eagleray-packed#models", {("m", 1): "-m#v1", ("n", 1): "-n#v1"}
    assert places(both) == {version: [packed, isolated[version]] for version in isolated}
    assert tried(both) == [{"m"}, {"n"}]
    options = options_of(tmp_path, "packed")
    ready = committed(options, both, both.trials[0])
    assert sorted(places(ready).values()) == [[packed], [packed, "-n#v1"]]
    failed = reverted(options, ready, ready.trials[0], {}, "it failed")
    assert sorted(places(failed).values()) == [[packed], ["n#v1"]]
    assert failed.trials == ()


def test_a_trial_that_ends_well_leaves_only_what_was_deployed(tmp_path: Path) -> None:
    """As it does, too, where there is no room for both."""
    write(tmp_path, "moved", "")
    write(tmp_path, "next", "")
    former = deployed(tmp_path, "isolated")
    (tmp_path / "next/config.pbtxt").write_text(TENSORS + PLACED % "isolated")
    add_version(tmp_path, "next")
    after = deployed(tmp_path, "packed", former)
    for trial in after.trials:
        after = committed(options_of(tmp_path, "packed"), after, trial)
    assert places(after) == {("moved", 1): ["eagleray-packed#models"], ("next", 2): ["next#v2"]}


def test_what_has_lost_its_place_is_not_ready_until_it_is_in_the_other(tmp_path: Path) -> None:
    write(tmp_path, "m", "")
    both, table = deployed(tmp_path, "packed", deployed(tmp_path, "isolated")), ModelTable()
    table.replace(both, {})
    (trial,) = both.trials
    entry = table.models["m"].versions[1]
    entry.loaded("", 0.0)
    assert entry.placement == "isolated"
    table.lose_places(trial.before)
    table.replace(committed(options_of(tmp_path, "packed"), both, trial), {})
    entry = table.models["m"].versions[1]
    assert (entry.state, entry.placement) == (LOADING, "packed")


def test_versions_that_go_take_no_place_from_others(tmp_path: Path) -> None:
    """They go at once then, as without anything that ran."""
    write(tmp_path, "large", CPUS % "3")
    former = deployed(tmp_path, "isolated")
    add_version(tmp_path, "large")
    after = deployed(tmp_path, "isolated", former)
    assert places(after) == {("large", 2): ["large#v2"]} and tried(after) == [{"large"}]


def test_what_runs_as_it_did_is_not_loaded_again(tmp_path: Path) -> None:
    write(tmp_path, "m", "")
    former = deployed(tmp_path, "packed")
    (package,) = former.snapshot.models["m"].packages
    reloaded = replace(package, revision=f"{package.revision}@1")
    models = {"m": replace(former.snapshot.models["m"], packages=(reloaded,))}
    former = replace(former, snapshot=replace(former.snapshot, models=models))
    again = deployed(tmp_path, "packed", former)
    assert again.snapshot.models["m"].packages == (reloaded,)
    assert again.trials == () and places(again) == places(former)


def test_a_version_stays_until_the_next_is_ready(tmp_path: Path) -> None:
    write(tmp_path, "m", "")
    former = deployed(tmp_path, "isolated")
    add_version(tmp_path, "m")
    both = deployed(tmp_path, "isolated", former)
    assert places(both) == {("m", 1): ["m#v1"], ("m", 2): ["m#v2"]}
    (trial,) = both.trials
    options = options_of(tmp_path, "isolated")
    assert places(committed(options, both, trial)) == {("m", 2): ["m#v2"]}
    assert places(reverted(options, both, trial, {"m": {2: "no"}}, "")) == {("m", 1): ["m#v1"]}


def test_what_an_ensemble_links_goes_together(tmp_path: Path) -> None:
    write(tmp_path, "step", "")
    write(tmp_path, "alone", "")
    (tmp_path / "ensemble/1").mkdir(parents=True)
    (tmp_path / "ensemble/config.pbtxt").write_text(ENSEMBLE)
    both = deployed(tmp_path, "packed", deployed(tmp_path, "isolated"))
    assert tried(both) == [{"alone"}, {"ensemble", "step"}]


def test_what_an_ensemble_that_stays_links_goes_together(tmp_path: Path) -> None:
    for name in ("step", "other"):
        write(tmp_path, name, "")
    write_ensemble(tmp_path, "step", "other")
    former = deployed(tmp_path, "isolated")
    assert former.runs("ensemble"), former.snapshot.models["ensemble"].failure
    for name in ("step", "other"):
        add_version(tmp_path, name)
    assert tried(deployed(tmp_path, "isolated", former)) == [{"other", "step"}]


def test_what_is_new_and_what_cannot_be_read_any_more_is_on_no_trial(tmp_path: Path) -> None:
    """What ran serves on where it did, and in the index is why."""
    write(tmp_path, "m", "")
    former, table = deployed(tmp_path, "isolated"), ModelTable()
    write(tmp_path, "new", "")
    (tmp_path / "m/config.pbtxt").write_text("what is this")
    after = deployed(tmp_path, "packed", former)
    assert places(after) == {("m", 1): ["m#v1"], ("new", 1): ["eagleray-packed#models"]}
    assert after.trials == () and after.snapshot.models["m"] is former.snapshot.models["m"]
    table.replace(after, {})
    table.models["m"].versions[1].loaded("", 0.0)
    table.models["m"].versions[1].reason = "one of its nodes has failed"
    row = table.tables()["models"]["m"]["versions"]["1"]
    assert row["state"] == READY
    started = "one of its nodes has failed; it serves on as before the last deployment: "
    assert row["reason"].startswith(started) and "config.pbtxt" in row["reason"]
    again = deployed(tmp_path, "packed", after)
    assert (again.plan, again.postponed) == (after.plan, after.postponed)

    (tmp_path / "m/config.pbtxt").write_text(TENSORS)
    mended = deployed(tmp_path, "packed", again)
    assert places(mended)["m", 1] == ["eagleray-packed#models", "-m#v1"] and not mended.postponed


def test_what_finds_no_place_serves_on_until_the_cluster_has_one(tmp_path: Path) -> None:
    write(tmp_path, "cpus", "")
    write(tmp_path, "gpu", "")
    options, former = options_of(tmp_path, "isolated"), deployed(tmp_path, "isolated")
    (tmp_path / "cpus/config.pbtxt").write_text(TENSORS + CPUS % "6")
    (tmp_path / "gpu/config.pbtxt").write_text(TENSORS + "instance_group { kind: KIND_GPU }")
    after = deployed(tmp_path, "isolated", former)
    assert places(after) == places(former) and after.trials == ()
    assert after.waiting == {"cpus", "gpu"}
    assert wanted(after) == [{"GPU": 1}, {"CPU": 6.0}, {"CPU": 0.05}, {"CPU": 0.05}]

    larger = with_waiting(options, ClusterFacts((NodeFacts(4), NodeFacts(8))), after)
    assert tried(larger) == [{"cpus"}] and reasons_of(larger.postponed).keys() == {"gpu"}
    grown = with_waiting(options, ClusterFacts((NodeFacts(4), NodeFacts(8, 1))), after)
    assert tried(grown) == [{"cpus"}, {"gpu"}] and not grown.waiting
    assert all(trial.makes_room for trial in grown.trials)
    assert wanted(grown) == []
    for trial in grown.trials:
        grown = committed(options, grown, trial)
    assert [deployment.gpu for deployment in grown.plan.deployments if deployment.app_name == "gpu"] == [0]


def test_what_was_loaded_or_unloaded_since_is_postponed_no_longer(tmp_path: Path) -> None:
    for name in ("loaded", "unloaded", "kept"):
        write(tmp_path, name, "")
    options, former = options_of(tmp_path, "isolated"), deployed(tmp_path, "isolated")
    for name in ("loaded", "unloaded", "kept"):
        (tmp_path / name / "config.pbtxt").write_text(TENSORS + CPUS % "6")
    after = deployed(tmp_path, "isolated", former)
    (tmp_path / "loaded/config.pbtxt").write_text(TENSORS)
    read = read_models(options, after, "loaded", None)
    after = unloaded(options, loaded(options, after, read, {"loaded": Origin()}), ["unloaded"])
    assert reasons_of(after.postponed).keys() == after.waiting == {"kept"}
    assert places(after) == {("loaded", 1): ["loaded#v1"], ("kept", 1): ["kept#v1"]}


def test_what_would_leave_others_no_place_does_not_serve_on(tmp_path: Path) -> None:
    """They have one without it. What just cannot be read stays all the same."""
    write(tmp_path, "large", CPUS % "2")
    write(tmp_path, "mistyped", "")
    former = deployed(tmp_path, "isolated")
    (tmp_path / "large/config.pbtxt").write_text(TENSORS + CPUS % "6")
    (tmp_path / "mistyped/config.pbtxt").write_text("what is this")
    write(tmp_path, "other", CPUS % "3")
    after = deployed(tmp_path, "isolated", former)
    assert places(after) == {("mistyped", 1): ["mistyped#v1"], ("other", 1): ["other#v1"]}


def test_what_is_postponed_is_tried_again_once_something_goes(tmp_path: Path) -> None:
    for name in ("large", "other"):
        write(tmp_path, name, "")
    options = replace(options_of(tmp_path, "isolated"), control_mode="explicit", load_models=("*",))
    former = read_desired_state(options, FACTS)
    (tmp_path / "large/config.pbtxt").write_text(TENSORS + CPUS % "3")
    (tmp_path / "other/config.pbtxt").write_text(TENSORS + CPUS % "2")
    first = beside_what_ran(options, former, read_desired_state(options, FACTS))
    [postponed] = reasons_of(first.postponed)
    for trial in first.trials:
        first = committed(options, first, trial)

    async def scenario() -> DesiredState:
        state = CurrentState(StateStore(Table(), "test", options), lambda desired: None)
        await state.change(first)
        waiting = asyncio.create_task(WaitingModels(options, state, lambda: FACTS, look_s=0.01).run())
        await asyncio.sleep(0.1)  # in which nothing has changed that it waits for
        assert state.desired is first
        async with state.lock:
            await state.change(unloaded(options, first, {"large", "other"} - {postponed}))
        try:
            return await state.until(lambda desired: desired if desired.trials else None)
        finally:
            waiting.cancel()

    after = asyncio.run(asyncio.wait_for(scenario(), 30))
    assert tried(after) == [{postponed}] and not after.waiting


def test_what_has_no_room_after_all_is_tried_again_only_when_something_changes(tmp_path: Path) -> None:
    """Also while another model waits."""
    write(tmp_path, "m", "")
    write(tmp_path, "mistyped", "what is this")
    options, former = options_of(tmp_path, "isolated"), deployed(tmp_path, "isolated")
    (tmp_path / "m/config.pbtxt").write_text(TENSORS + CPUS % "6")
    after = deployed(tmp_path, "isolated", former)
    grown = ClusterFacts((NodeFacts(4), NodeFacts(8)))

    async def scenario() -> tuple[int, DesiredState]:
        state = CurrentState(StateStore(Table(), "test", options), lambda desired: None)
        await state.change(after)
        waiting = asyncio.create_task(WaitingModels(options, state, lambda: grown, look_s=0.01).run())
        count = 0
        with contextlib.suppress(TimeoutError):
            while count < 9:
                async with asyncio.timeout(0.5):
                    tried = await state.until(lambda desired: desired if desired.trials else None)
                count += 1
                await asyncio.sleep(0.05)  # in which Serve finds no room
                async with state.lock:
                    await state.change(reverted(options, tried, tried.trials[0], {}, ""))
        waiting.cancel()
        return count, await state.until(lambda desired: desired)

    count, last = asyncio.run(asyncio.wait_for(scenario(), 30))
    assert count == 1 and last.postponed and places(last) == places(former)


def test_what_an_ensemble_links_serves_on_together(tmp_path: Path) -> None:
    """Also what could run as it was deployed, until all of it can; a new ensemble of it waits."""
    write(tmp_path, "step", "")
    for name in ("ensemble", "new"):
        (tmp_path / name / "1").mkdir(parents=True)
    (tmp_path / "ensemble/config.pbtxt").write_text(ENSEMBLE)
    options, former = options_of(tmp_path, "isolated"), deployed(tmp_path, "isolated")
    two = ENSEMBLE.replace("dims: 1", "dims: 2")
    for name in ("ensemble", "new"):
        (tmp_path / name / "config.pbtxt").write_text(two)
    (tmp_path / "step/config.pbtxt").write_text(TENSORS.replace("dims: 1", "dims: 2") + CPUS % "6")
    after = deployed(tmp_path, "isolated", former)
    assert (
        places(after) == places(former)
        and after.trials == ()
        and reasons_of(after.postponed).keys() == {"ensemble", "step"}
    )
    assert after.waiting == {"ensemble", "new", "step"}
    assert "does not run as it was deployed last" in (after.snapshot.models["new"].failure or "")

    no_larger = with_waiting(options, ClusterFacts((NodeFacts(4), NodeFacts(4))), after)
    assert places(no_larger) == places(former) and reasons_of(no_larger.postponed).keys() == {"ensemble", "step"}
    larger = ClusterFacts((NodeFacts(4), NodeFacts(8)))
    grown = with_waiting(options, larger, no_larger)
    assert tried(grown) == [{"ensemble", "step"}] and grown.waiting == {"new"}
    ready = with_waiting(options, larger, committed(options, grown, grown.trials[0]))
    assert ready.runs("new") and not ready.waiting

    no_room = reverted(options, grown, grown.trials[0], {}, "")
    assert (no_room.postponed, places(no_room)) == (no_larger.postponed, places(former))
    failed = reverted(options, grown, grown.trials[0], {"step": {1: "no"}}, "")
    assert places(failed) == places(former) and failed.postponed == ()


def test_an_ensemble_that_cannot_be_read_holds_up_what_changes_with_it_and_nothing_else(tmp_path: Path) -> None:
    for name in ("shared", "step", "other"):
        write(tmp_path, name, "")
    two_steps = """platform: "ensemble" %s ensemble_scheduling {
        step { model_name: "shared" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "Z" } }
        step { model_name: "%s" model_version: -1 input_map { key: "X" value: "Z" } output_map { key: "Y" value: "Y" } }
    }"""
    tensors = TENSORS.removeprefix('backend: "python"')
    for name, step in (("one", "step"), ("two", "other")):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(two_steps % (tensors, step))
    options, former = options_of(tmp_path, "isolated"), deployed(tmp_path, "isolated")
    (tmp_path / "one/config.pbtxt").write_text("what is this")
    for name in ("step", "other"):
        add_version(tmp_path, name)
    after = deployed(tmp_path, "isolated", former)
    assert reasons_of(after.postponed).keys() == {"one", "step"} and tried(after) == [{"other"}]
    assert places(after)["step", 1] == ["step#v1"]
    (ended,) = after.trials
    for _ in range(2):  # a change of the cluster does not part them
        after = with_waiting(options, ClusterFacts((NodeFacts(4), NodeFacts(8))), committed(options, after, ended))
        assert reasons_of(after.postponed).keys() == {"one", "step"} and places(after)["step", 1] == ["step#v1"]


def test_a_new_ensemble_does_not_run_with_a_step_that_stays_as_it_was(tmp_path: Path) -> None:
    """Its step was loaded as it was checked against, and failed."""
    write(tmp_path, "step", "")
    options, former = options_of(tmp_path, "isolated"), deployed(tmp_path, "isolated")
    (tmp_path / "new/1").mkdir(parents=True)
    (tmp_path / "new/config.pbtxt").write_text(ENSEMBLE.replace("dims: 1", "dims: 2"))
    (tmp_path / "step/config.pbtxt").write_text(TENSORS.replace("dims: 1", "dims: 2") + CPUS % "6")
    larger = ClusterFacts((NodeFacts(4), NodeFacts(8)))
    tried_one = with_waiting(options, larger, deployed(tmp_path, "isolated", former))
    failed = reverted(options, tried_one, tried_one.trials[0], {"step": {1: "no"}}, "")
    after = with_waiting(options, larger, failed)
    assert places(after) == places(former) and after.waiting == {"new"}


def test_a_model_that_has_gone_while_others_of_its_group_were_tried_is_postponed_no_longer(tmp_path: Path) -> None:
    write(tmp_path, "step", "")
    write(tmp_path, "step2", "")
    write_ensemble(tmp_path, "step", "step2")
    options, former = options_of(tmp_path, "isolated"), deployed(tmp_path, "isolated")
    add_version(tmp_path, "step2")
    (tmp_path / "step/config.pbtxt").write_text(TENSORS + CPUS % "6")
    after = deployed(tmp_path, "isolated", former)
    assert reasons_of(after.postponed).keys() == {"ensemble", "step", "step2"}
    shutil.rmtree(tmp_path / "step2/2")
    larger = ClusterFacts((NodeFacts(4), NodeFacts(8)))
    grown = with_waiting(options, larger, after)
    assert tried(grown) == [{"step"}]
    no_room = reverted(options, unloaded(options, grown, ["step2"]), grown.trials[0], {}, "")
    assert reasons_of(no_room.postponed).keys() == {"step"}
    assert tried(with_waiting(options, larger, no_room)) == [{"step"}]


@pytest.mark.parametrize("name", ["a", "z"])  # models are placed in this order
def test_what_waits_takes_no_room_that_a_change_frees_before_it_is_made(tmp_path: Path, name: str) -> None:
    write(tmp_path, "m", CPUS % "6")
    larger = ClusterFacts((NodeFacts(8),))
    options = options_of(tmp_path, "isolated")
    before = read_desired_state(options, larger)
    write(tmp_path, name, CPUS % "4")
    read = read_models(options, before, name, None)
    before = loaded(options, before, read, {name: Origin()})
    before = replace(before, trials=())
    assert before.runs("m") and before.waiting == {name}
    (tmp_path / "m/config.pbtxt").write_text(TENSORS + CPUS % "3")
    changed = loaded(options, before, read_models(options, before, "m", None), {"m": Origin()})
    failed = reverted(options, changed, changed.trials[0], {"m": {1: "no"}}, "")
    assert places(failed) == places(before) and failed.waiting == {name}
    assert not committed(options, changed, changed.trials[0]).waiting


def test_an_ensemble_waits_on_for_a_step_while_another_is_loaded(tmp_path: Path) -> None:
    write(tmp_path, "step", "")
    write(tmp_path, "waits", CPUS % "6")
    write_ensemble(tmp_path, "step", "waits")
    options = options_of(tmp_path, "isolated")
    before = read_desired_state(options, FACTS)
    assert before.waiting == {"ensemble", "waits"}
    add_version(tmp_path, "step")
    after = loaded(options, before, read_models(options, before, "step", None), {"step": Origin()})
    assert after.waiting == {"ensemble", "waits"} and after.runs("step")


def test_a_deployment_while_a_change_is_on_trial_leaves_what_ran_before_that(tmp_path: Path) -> None:
    write(tmp_path, "m", "")
    first = deployed(tmp_path, "isolated")
    (tmp_path / "m/config.pbtxt").write_text(TENSORS + "max_batch_size: 4")
    second = deployed(tmp_path, "isolated", first)
    (tmp_path / "m/config.pbtxt").write_text("what is this")
    third = deployed(tmp_path, "isolated", second)
    assert third.plan == first.plan and third.trials == () and third.snapshot.models == first.snapshot.models


def test_the_steps_of_an_ensemble_that_cannot_be_read_stay(tmp_path: Path) -> None:
    """Nobody asked for them by name."""
    write(tmp_path, "step", "")
    (tmp_path / "ensemble/1").mkdir(parents=True)
    (tmp_path / "ensemble/config.pbtxt").write_text(ENSEMBLE)
    options = replace(options_of(tmp_path, "isolated"), control_mode="explicit", load_models=("ensemble",))
    former = read_desired_state(options, FACTS)
    (tmp_path / "ensemble/config.pbtxt").write_text("what is this")
    after = beside_what_ran(options, former, read_desired_state(options, FACTS))
    assert places(after) == places(former) and reasons_of(after.postponed).keys() == {"ensemble"}
    (tmp_path / "ensemble/config.pbtxt").write_text(ENSEMBLE)
    mended = beside_what_ran(options, after, read_desired_state(options, FACTS))
    assert places(mended) == places(former) and not mended.postponed and mended.trials == ()


def test_no_card_is_asked_for_beside_that_of_a_model_that_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path, "gpu", "instance_group { kind: KIND_GPU }")
    options, facts = options_of(tmp_path, "isolated"), ClusterFacts((NodeFacts(4, 1),))
    former = read_desired_state(options, facts)
    (tmp_path / "gpu/1/model.py").unlink()
    after = beside_what_ran(options, former, read_desired_state(options, facts))
    assert reasons_of(after.postponed).keys() == {"gpu"} and wanted(after) == []


def test_what_was_on_trial_counts_as_it_was_before(tmp_path: Path) -> None:
    """As where one deployment comes shortly after another."""
    write(tmp_path, "m", "")
    write(tmp_path, "n", "")
    first = deployed(tmp_path, "isolated")
    second = deployed(tmp_path, "packed", first)
    (tmp_path / "n/config.pbtxt").write_text(TENSORS + "max_batch_size: 4")
    third = deployed(tmp_path, "embedded", second)
    assert places(third) == {("m", 1): ["-m#v1", "ingress"], ("n", 1): ["-n#v1", "ingress"]}
    assert [trial.before["m"].model for trial in third.trials if "m" in trial.before] == [first.snapshot.models["m"]]
    back = deployed(tmp_path, "isolated", third)
    assert places(back) == places(first) and tried(back) == [{"n"}]


def test_a_version_that_was_on_trial_does_not_run_yet(tmp_path: Path) -> None:
    write(tmp_path, "m", "")
    first = deployed(tmp_path, "isolated")
    add_version(tmp_path, "m")
    second = deployed(tmp_path, "isolated", first)
    third = deployed(tmp_path, "isolated", second)
    assert places(third) == {("m", 1): ["m#v1"], ("m", 2): ["m#v2"]}
    assert tried(third) == [{"m"}] and third.trials[0].before["m"].model == first.snapshot.models["m"]


def test_a_version_that_was_on_trial_goes_with_the_deployment_that_brought_it(tmp_path: Path) -> None:
    write(tmp_path, "m", "")
    first = deployed(tmp_path, "isolated")
    add_version(tmp_path, "m")
    second = deployed(tmp_path, "isolated", first)
    shutil.rmtree(tmp_path / "m/2")
    back = deployed(tmp_path, "isolated", second)
    assert places(back) == places(first) and back.trials == ()
