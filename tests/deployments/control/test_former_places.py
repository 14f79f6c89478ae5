"""Models that a change puts elsewhere run where they were as well, until the change has succeeded."""

import shutil
from pathlib import Path

import pytest

from deployments.control.controller_options import ControllerOptions
from deployments.control.desired_state import DesiredState, Origin, committed, loaded, reverted
from deployments.control.directory import READY
from deployments.control.first_state import read_desired_state
from deployments.control.former_places import has_room
from deployments.control.model_commands import read_models
from deployments.control.model_table import ModelTable
from protocol.limits import Limits
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from repository_loader.snapshot import LoaderOptions
from tests.deployments.control.test_desired_state import ENSEMBLE, TENSORS, write

PLACED = 'parameters { key: "eagleray.placement" value { string_value: "%s" } }'
GPUS = 'parameters { key: "eagleray.num_gpus" value { string_value: "%s" } }'
CPUS = 'parameters { key: "eagleray.num_cpus" value { string_value: "%s" } }'


class Repository:
    """A repository for a cluster of one node; `configure` changes a model that is there."""

    def __init__(self, root: Path, cpus: float = 4, gpus: int = 0, at_start: tuple[str, ...] | None = None) -> None:
        self.root = root
        self._facts = ClusterFacts((NodeFacts(cpus, gpus),))
        loader = LoaderOptions(gpu_count=gpus)
        self.options = ControllerOptions(
            (str(root),), loader, PlanSettings(), Limits(), control_mode="explicit", load_models=at_start or ("*",)
        )

    def configure(self, name: str, more: str) -> None:
        (self.root / name / "config.pbtxt").write_text(TENSORS + more)

    def read(self) -> DesiredState:
        return read_desired_state(self.options, self._facts)

    def load(self, before: DesiredState, name: str) -> DesiredState:
        return loaded(self.options, before, read_models(self.options, before, name, None), {name: Origin()})

    def commit(self, tried: DesiredState) -> DesiredState:
        return committed(self.options, tried, tried.trials[0])

    def revert(self, tried: DesiredState) -> DesiredState:
        return reverted(self.options, tried, tried.trials[0], {}, "it failed")


def places(desired: DesiredState) -> dict[tuple[str, int], list[str]]:
    """Return where each version is; "-" before a place says that it leaves."""
    found: dict[tuple[str, int], list[str]] = {}
    for deployment in desired.plan.deployments:
        for model in deployment.models:
            where = f"{deployment.app_name}#{deployment.name}"
            found.setdefault((model.name, model.version), []).append(f"{'-' * model.leaving}{where}")
    for model in desired.plan.embedded:
        found.setdefault((model.name, model.version), []).append(f"{'-' * model.leaving}ingress")
    return found


def test_a_version_that_keeps_one_of_its_places_has_all_of_them_again_when_the_change_fails(tmp_path: Path) -> None:
    repository = Repository(tmp_path, gpus=2)
    write(tmp_path, "m", "instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }")
    before = repository.read()
    assert places(before) == {("m", 1): ["m#v1-gpu0", "m#v1-gpu1"]}
    repository.configure("m", "instance_group { kind: KIND_GPU gpus: [ 0 ] } instance_group { kind: KIND_CPU }")
    tried = repository.load(before, "m")
    assert places(tried) == places(repository.commit(tried)) == {("m", 1): ["m#v1-cpu", "m#v1-gpu0"]}
    assert places(repository.revert(tried)) == places(before)


def test_a_version_that_goes_elsewhere_as_it_is_runs_once_when_the_change_has_ended(tmp_path: Path) -> None:
    """As `auto` does with the model of which a version comes that an ensemble has, which is loaded."""
    repository = Repository(tmp_path, at_start=("step",))
    write(tmp_path, "step", "version_policy { all {} }")
    before = repository.read()
    shutil.copytree(tmp_path / "step/1", tmp_path / "step/2")
    (tmp_path / "pipe/1").mkdir(parents=True)
    (tmp_path / "pipe/config.pbtxt").write_text(ENSEMBLE)
    tried = repository.load(before, "pipe")
    packed = "eagleray-packed#models"
    assert places(tried) == {("pipe", 1): [packed], ("step", 1): [packed, "-step#v1"], ("step", 2): [packed]}
    assert places(repository.commit(tried)) == {("pipe", 1): [packed], ("step", 1): [packed], ("step", 2): [packed]}
    assert places(repository.revert(tried)) == places(before) == {("step", 1): ["step#v1"]}


def test_an_ensemble_is_where_its_step_will_be(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    write(tmp_path, "step", PLACED % "embedded")
    (tmp_path / "pipe/1").mkdir(parents=True)
    (tmp_path / "pipe/config.pbtxt").write_text(ENSEMBLE)
    before = repository.read()
    assert places(before) == {("pipe", 1): ["ingress"], ("step", 1): ["ingress"]}
    repository.configure("step", PLACED % "packed")
    (tmp_path / "pipe/config.pbtxt").write_text(f"{ENSEMBLE} # other")
    shutil.copytree(tmp_path / "pipe/1", tmp_path / "pipe/2")
    tried = repository.load(before, "pipe")
    packed = "eagleray-packed#models"
    assert places(tried) == {("pipe", 2): [packed], ("pipe", 1): ["ingress"], ("step", 1): [packed, "-ingress"]}
    assert places(repository.commit(tried)) == {("pipe", 2): [packed], ("step", 1): [packed]}


@pytest.mark.parametrize(("cpus", "both"), [(3.9, False), (4.1, True)])
def test_a_group_that_grows_needs_room_for_what_it_was_as_well(tmp_path: Path, cpus: float, both: bool) -> None:
    """Serve ends its replica only once the larger one has started."""
    repository = Repository(tmp_path, cpus=cpus)
    write(tmp_path, "large", CPUS % "1" + PLACED % "packed")
    write(tmp_path, "moves", CPUS % "1")
    before = repository.read()
    repository.configure("moves", CPUS % "1" + PLACED % "packed")
    tried = repository.load(before, "moves")
    packed = ["eagleray-packed#models"]
    assert places(tried) == {("large", 1): packed, ("moves", 1): packed + ["-moves#v1"] * both}


@pytest.mark.parametrize(
    ("before", "after", "room"),
    [("0.4", "0.6", True), ("0.6", "0.7", False), ("0.6", "0.6", True), ("0.6", "2", True), ("2", "3", False)],
)
def test_another_share_of_a_gpu_needs_room_beside_the_one_before(
    tmp_path: Path, before: str, after: str, room: bool
) -> None:
    repository, on_gpu = Repository(tmp_path, gpus=3), "instance_group { kind: KIND_GPU gpus: [ 0 ] }"
    write(tmp_path, "m", on_gpu + GPUS % before)
    was = repository.read()
    repository.configure("m", on_gpu + GPUS % after)
    now = repository.read()
    assert has_room(was.plan, now.plan, now.facts) is room


def test_a_model_stays_ready_where_it_is_when_its_new_place_is_refused(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    write(tmp_path, "m", PLACED % "packed")
    table, before = ModelTable(), repository.read()
    table.replace(before, {})
    table.models["m"].versions[1].loaded("", 1.0)
    repository.configure("m", PLACED % "isolated")
    tried = repository.load(before, "m")
    refused = {"m": "the Serve application 'm' is not Eagleray's"}
    table.replace(tried, refused)
    assert table.models["m"].versions[1].state == READY
    table.replace(repository.revert(tried), refused)
    assert table.models["m"].versions[1].state == READY


def test_nothing_of_an_application_of_somebody_else_is_followed(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    write(tmp_path, "m", PLACED % "isolated")
    table, found = ModelTable(), repository.read()
    table.replace(found, {})
    table.replace(found, {"m": "the Serve application 'm' is not Eagleray's"})
    table.left({("m", "v1")}, None)
    assert not table.unloading and table.deployments == ()
    assert table.tables()["deployments"] == {}


@pytest.mark.parametrize("there", ["packed", "embedded"])
def test_a_model_that_has_failed_where_it_was_is_ready_elsewhere(tmp_path: Path, there: str) -> None:
    repository = Repository(tmp_path)
    here = "embedded" if there == "packed" else "packed"
    write(tmp_path, "m", PLACED % here)
    table, before = ModelTable(), repository.read()
    table.replace(before, {})
    table.models["m"].versions[1].loaded("it did not load", 1.0)
    repository.configure("m", PLACED % there)
    tried = repository.load(before, "m")
    table.replace(tried, {})
    assert (table.models["m"].versions[1].placement, table.models["m"].versions[1].failed) == (here, True)
    table.succeed(tried.trials[0].before)
    table.replace(repository.commit(tried), {})
    version = table.models["m"].versions[1]
    assert (version.state, version.reason, version.placement) == (READY, "", there)
