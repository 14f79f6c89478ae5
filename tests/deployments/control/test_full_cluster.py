"""Where models are in a cluster that has no room left for replicas of their own, and that they stay there."""

from dataclasses import replace
from pathlib import Path

import pytest

from deployments.control.desired_state import DesiredState, Origin, loaded, reverted
from deployments.control.model_commands import read_models
from deployments.control.redeployment import beside_what_ran
from repository_loader.deployment_plan import PlanSettings
from repository_loader.snapshot import Snapshot
from tests.deployments.control.test_desired_state import write
from tests.deployments.control.test_former_places import CPUS, Repository, places

ALONE = {("b", 1): ["b#v1"], ("c", 1): ["c#v1"], ("d", 1): ["d#v1"]}
FULL = {**ALONE, ("a", 1): ["eagleray-packed#models"]}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository of Python models for a cluster of four replicas."""
    found = Repository(tmp_path, cpus=1, at_start=("b", "c", "d"))
    found.options = replace(found.options, plan=PlanSettings(num_cpus_per_replica=0.25))
    for name in "bcd":
        write(tmp_path, name, "")
    return found


def filled(repository: Repository) -> DesiredState:
    """Load one model more, which finds no room, after the others."""
    write(repository.root, "a", "")
    desired = repository.commit(repository.load(repository.read(), "a"))
    assert places(desired) == FULL
    return desired


def change(repository: Repository, name: str) -> None:
    with (repository.root / name / "1/model.py").open("a") as code:
        code.write("# changed")


def test_models_that_change_together_stay_where_they_are_each(repository: Repository) -> None:
    before = filled(repository)
    for name in "ad":
        change(repository, name)
    read = [read_models(repository.options, before, name, None).models for name in "ad"]
    tried = loaded(repository.options, before, Snapshot(read[0] | read[1]), {"a": Origin(), "d": Origin()})
    assert places(tried) == FULL
    assert places(reverted(repository.options, tried, tried.trials[-1], {"d": {1: "broken"}}, "broken")) == FULL


@pytest.mark.parametrize("more", ["", CPUS % "0.25"])
def test_models_stay_where_they_are_when_they_are_deployed_anew(repository: Repository, more: str) -> None:
    repository.configure("d", more)
    former = filled(repository)
    repository.options = replace(repository.options, load_models=("*",))
    desired = beside_what_ran(repository.options, former, repository.read())
    assert places(desired) == FULL
    assert desired.trials == desired.postponed == ()
