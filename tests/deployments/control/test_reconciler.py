"""What is deployed is ended, whenever that is, and what is somebody else's is let be."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import serve

from deployments import serve_internals
from deployments.control import reconciler as reconciler_module
from deployments.control.desired_state import DesiredState, committed, unloaded
from deployments.control.reconciler import Reconciler
from repository_loader.deployment_plan import PlanSettings
from repository_loader.plan import make_plan
from tests.deployments.control.test_desired_state import write
from tests.deployments.control.test_former_places import CPUS, PLACED, Repository

THEIRS = [{"deployment_config": {"user_config": None}}]


class Serve:
    """Serve's controller: an application has its deployments some moments after it was deployed."""

    def __init__(self) -> None:
        self.applications: dict[str, Any] = {}
        self.deployed: list[Any] = []
        self.statuses: tuple[str, ...] = ()
        self.message = ""
        self.deploying, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def run_many(self, targets: Sequence[serve.RunTarget], **options: Any) -> None:
        self.deploying.set()
        assert self.go_on.wait(10)
        for target in targets:
            self.applications[target.name] = []
            self.deployed.append(target.target)

    def settle(self, owner: str = "eagleray") -> None:
        for name, deployments in self.applications.items():
            if not deployments:
                self.applications[name] = [{"deployment_config": {"user_config": {"eagleray_owner": owner}}}]

    def get_serve_details(self) -> dict[str, Any]:
        rows = self.applications.items()
        return {
            "applications": {
                name: {"status": "DEPLOYING", "deployments": dict(enumerate(deployments))} for name, deployments in rows
            }
        }

    def list_serve_statuses(self) -> list[Any]:
        statuses = [
            SimpleNamespace(name=f"v{version}", status=SimpleNamespace(value=status), message=self.message)
            for version, status in enumerate(self.statuses, 1)
        ]
        return [SimpleNamespace(name=name, deployment_statuses=statuses) for name in self.applications]

    def delete_apps(self, names: list[str], blocking: bool) -> None:
        for name in names:
            del self.applications[name]


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Serve:
    found = Serve()
    monkeypatch.setattr(serve, "run_many", found.run_many)
    monkeypatch.setattr(serve_internals, "_get_global_client", lambda: found)
    return found


def started(root: Path, at_start: tuple[str, ...] | None = None) -> tuple[Repository, DesiredState, Reconciler]:
    write(root, "m", "")
    repository = Repository(root, at_start=at_start)
    return (
        repository,
        repository.read(),
        Reconciler(repository.options, "eagleray", lambda *_: None, lambda _: {}, lambda _: ()),
    )


def test_what_is_being_deployed_when_everything_ends_ends_too(serving: Serve, tmp_path: Path) -> None:
    """The controller's loop is cancelled then, but no thread of it."""
    _, desired, reconciler = started(tmp_path)
    serving.go_on.clear()
    deploying = threading.Thread(target=reconciler.reconcile, args=(desired,))
    deploying.start()
    assert serving.deploying.wait(10)
    ending = threading.Thread(target=reconciler.end_all)
    ending.start()
    ending.join(0.1)
    serving.go_on.set()
    deploying.join()
    ending.join()
    assert serving.applications == {}


def test_what_was_deployed_a_moment_ago_ends_with_the_rest(serving: Serve, tmp_path: Path) -> None:
    _, desired, reconciler = started(tmp_path)
    serving.applications["theirs"] = THEIRS
    assert reconciler.reconcile(desired) == {}
    assert set(serving.applications) == {"m", "theirs"}
    reconciler.end_all()
    assert set(serving.applications) == {"theirs"}


def test_an_application_that_takes_the_name_of_one_that_was_deleted_is_let_be(serving: Serve, tmp_path: Path) -> None:
    repository, desired, reconciler = started(tmp_path)
    assert reconciler.reconcile(desired) == {}
    serving.settle()
    serving.applications["m"] = THEIRS
    repository.configure("m", 'parameters { key: "eagleray.num_cpus" value { string_value: "2" } }')
    changed = repository.read()
    assert set(reconciler.reconcile(changed)) == {"m"}
    assert serving.applications["m"] is THEIRS
    reconciler.reconcile(unloaded(repository.options, changed, ["m"]))
    reconciler.end_all()
    assert serving.applications["m"] is THEIRS


def test_a_name_is_free_once_whoever_deleted_its_application_has_seen_that_it_has_gone(
    serving: Serve, tmp_path: Path
) -> None:
    _, desired, reconciler = started(tmp_path)
    serving.applications["m"] = THEIRS
    assert set(reconciler.reconcile(desired)) == {"m"}
    assert not any(reconciler.must_deploy() for _ in range(3))
    del serving.applications["m"]
    assert [reconciler.must_deploy() for _ in range(2)] == [False, True]
    assert reconciler.reconcile(desired) == {}
    assert not reconciler.must_deploy()


@pytest.mark.parametrize("other_version", [(), ("HEALTHY",)], ids=["alone", "beside one that runs"])
def test_what_ran_and_has_been_given_up_by_serve_is_deployed_again_until_it_runs(
    serving: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_version: tuple[str, ...]
) -> None:
    """A controller of Serve's that has just started tries once where it finds no replica."""
    now_s = 100.0
    monkeypatch.setattr(reconciler_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    _, desired, reconciler = started(tmp_path)
    reconciler.reconcile(desired)
    serving.settle()
    now_s, serving.statuses = 200.0, ("DEPLOY_FAILED", *other_version)
    assert not any(reconciler.must_deploy() for _ in range(3))  # it has never run
    serving.statuses = ("HEALTHY", *other_version)
    assert not reconciler.must_deploy()
    serving.statuses = ("DEPLOY_FAILED", *other_version)
    for again in range(1, 4):
        assert reconciler.must_deploy()
        reconciler.reconcile(desired)
        serving.settle()
        assert len(serving.deployed) == 1 + again
        assert not any(reconciler.must_deploy() for _ in range(3))  # a moment ago
        now_s += 11
    tries = [each._bound_deployment._deployment_config.max_constructor_retry_count for each in serving.deployed]
    assert tries == [1, 2, 3, 4]  # else Serve would take no notice
    reconciler.end_all()
    assert not reconciler.must_deploy()


def test_what_somebody_has_deleted_is_deployed_again(serving: Serve, tmp_path: Path) -> None:
    repository, desired, reconciler = started(tmp_path)
    reconciler.reconcile(desired)
    assert not any(reconciler.must_deploy() for _ in range(3))
    del serving.applications["m"]
    assert [reconciler.must_deploy() for _ in range(2)] == [False, True]
    assert reconciler.reconcile(desired) == {}
    assert not reconciler.must_deploy()
    assert set(serving.applications) == {"m"}
    reconciler.reconcile(unloaded(repository.options, desired, ["m"]))
    assert serving.applications == {}


def test_what_a_former_controller_deployed_and_leaves_stays_as_it_is(serving: Serve, tmp_path: Path) -> None:
    """Under other options its replicas would be replaced, and load what they have loaded."""
    repository, desired, reconciler = started(tmp_path)
    serving.applications |= {"m": [], "theirs": THEIRS}
    runs, refused = reconciler.look(desired)
    assert not runs and set(refused) == {"m"}
    serving.settle()
    deployed = serving.applications["m"]
    assert reconciler.look(desired) == (True, {})
    repository.configure("m", PLACED % "packed")
    both = repository.load(desired, "m")
    assert both.plan.leaving == {("m", 1)}
    assert reconciler.reconcile(both) == {}
    assert serving.applications["m"] is deployed and set(serving.applications) == {"m", "eagleray-packed", "theirs"}
    serving.settle()
    assert reconciler.reconcile(replace(both)) == {} and serving.applications["m"] is deployed
    reconciler.reconcile(repository.revert(both))
    assert serving.applications["m"] == [] and set(serving.applications) == {"m", "theirs"}


def leaving(serving: Serve, root: Path) -> tuple[Repository, DesiredState, Reconciler]:
    """Have a model go elsewhere that a former controller has deployed."""
    repository, desired, reconciler = started(root)
    serving.applications["m"] = []
    serving.settle()
    repository.configure("m", PLACED % "packed")
    both = repository.load(desired, "m")
    reconciler.reconcile(both)
    return repository, both, reconciler


def test_what_a_former_controller_deployed_ends_when_it_has_left(serving: Serve, tmp_path: Path) -> None:
    repository, both, reconciler = leaving(serving, tmp_path)
    reconciler.reconcile(repository.commit(both))
    assert set(serving.applications) == {"eagleray-packed"}


def test_a_group_that_is_kept_without_models_is_deployed(serving: Serve, tmp_path: Path) -> None:
    _, desired, reconciler = started(tmp_path)
    serving.applications["eagleray-packed"] = []
    serving.settle()
    deployed = serving.applications["eagleray-packed"]
    empty = make_plan(replace(desired.snapshot, models={}), PlanSettings(keep_packed=True), desired.facts)
    assert [deployment.models for deployment in empty.deployments] == [()]
    reconciler.reconcile(replace(desired, plan=empty))
    assert serving.applications["eagleray-packed"] is not deployed
    reconciler.end_all()
    assert serving.applications == {}


def test_the_application_of_somebody_who_deleted_what_leaves_is_let_be(serving: Serve, tmp_path: Path) -> None:
    repository, both, reconciler = leaving(serving, tmp_path)
    serving.applications["m"] = THEIRS
    reconciler.reconcile(repository.commit(both))
    assert serving.applications["m"] is THEIRS


def test_loads_of_packed_models_are_gathered_while_others_load_but_not_for_long(
    serving: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serve says that a replica runs once nothing has changed for a moment: the first of many loads would wait."""
    now_s = 100.0
    monkeypatch.setattr(reconciler_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    for name in ("first", "second", "third", "fourth"):
        write(tmp_path, name, PLACED % "packed")
    write(tmp_path, "alone", PLACED % "isolated")
    repository, desired, reconciler = started(tmp_path, at_start=("m",))
    reconciler.reconcile(desired)
    serving.settle()

    def deployed(do: Callable[[], Any]) -> list[str]:
        do()
        found = [name for name, deployments in serving.applications.items() if not deployments]
        serving.settle()
        return found

    alone = repository.load(desired, "alone")
    one = repository.load(alone, "first")
    assert deployed(lambda: reconciler.reconcile(one)) == ["alone", "eagleray-packed"]
    two = repository.load(one, "second")
    now_s += 1
    assert deployed(lambda: reconciler.reconcile(two)) == deployed(reconciler.end_due) == []
    assert reconciler.ends_later
    reconciler.replicas_told(["eagleray-packed"])
    assert deployed(reconciler.end_due) == ["eagleray-packed"] and not reconciler.ends_later
    now_s += 0.1
    reconciler.replicas_told(["eagleray-packed"])
    reconciler.replicas_told([])
    three = repository.load(two, "third")
    assert deployed(lambda: reconciler.reconcile(three)) == ["eagleray-packed"]

    repository.configure("alone", PLACED % "isolated" + CPUS % "0.5")
    moved = repository.load(committed(repository.options, three, *three.trials), "alone")
    assert deployed(lambda: reconciler.reconcile(repository.load(moved, "fourth"))) == ["alone"]
    now_s += 2
    assert deployed(reconciler.end_due) == ["eagleray-packed"] and not reconciler.ends_later
    assert deployed(reconciler.end_due) == []


@pytest.mark.parametrize(("before", "after", "surge"), [("1", "2", 100), ("3", "2", 0), ("2.5", "2.5", 100)])
def test_a_replica_with_other_resources_takes_those_of_the_old_one_where_there_is_no_room_for_both(
    serving: Serve, tmp_path: Path, before: str, after: str, surge: int
) -> None:
    repository, _, reconciler = started(tmp_path)
    repository.configure("m", CPUS % before)
    reconciler.reconcile(repository.read())
    serving.settle()
    repository.configure("m", CPUS % after + " max_batch_size: 2")
    reconciler.reconcile(repository.read())
    serving.settle()
    for more in (CPUS % after + " max_batch_size: 4", CPUS % "0.5"):
        repository.configure("m", more)
        reconciler.reconcile(repository.read())
        serving.settle()
        serving.statuses = ("HEALTHY",)
        reconciler.must_deploy()
    surges = [each._bound_deployment._deployment_config.max_surge_percent for each in serving.deployed]
    assert surges == [100, surge, surge, 100]  # before it is HEALTHY, Serve may not have replaced all


@pytest.mark.parametrize(
    ("cpus", "count", "goes"),
    [(5, 1, True), (2, 1, False), (5, 0, False)],
    ids=["too little for both", "too little for one", "there is nothing to replace"],
)
def test_what_finds_no_room_beside_what_a_former_controller_deployed_takes_its_place(
    serving: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: int, count: int, goes: bool
) -> None:
    """As other options do, for which every replica is replaced."""
    monkeypatch.setattr(reconciler_module, "replica_counts", lambda: {("m", "v1"): count})
    repository, _, reconciler = started(tmp_path)
    repository.configure("m", CPUS % "3")
    desired = repository.read()
    serving.applications["m"] = []
    serving.settle()
    reconciler.reconcile(desired)
    serving.settle()
    serving.statuses = ("UPDATING",)
    assert not reconciler.must_deploy()
    serving.message = "1 replicas that have taken more than 30s to be scheduled."
    nodes = tuple(replace(node, num_cpus=cpus) for node in desired.facts.nodes)
    desired = replace(desired, facts=replace(desired.facts, nodes=nodes))
    reconciler.reconcile(desired)
    assert reconciler.must_deploy() is goes
    reconciler.reconcile(desired)
    serving.settle()
    surges = [each._bound_deployment._deployment_config.max_surge_percent for each in serving.deployed]
    assert surges == [100, 0][: 1 + goes]
    assert not reconciler.must_deploy()
