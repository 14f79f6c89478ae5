"""What a controller has stored its successor reads; a controller that was deployed anew does not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from deployments.control.controller_options import ControllerOptions
from deployments.control.desired_state import Origin, loaded, read_desired_state, reverted
from deployments.control.model_commands import read_models
from deployments.control.state_store import StateStore
from eagleray.state_keeper import StateKeeper
from protocol.limits import Limits
from repository_loader.plan import ClusterFacts, NodeFacts, PlanSettings
from repository_loader.repository import LoaderOptions
from tests.deployments.control.test_repository_watch import write

FACTS = ClusterFacts((NodeFacts(4),))


class Keeper:
    """The actor, in this process."""

    def __init__(self) -> None:
        self._actor = StateKeeper()

    def ask(self, method: str, *arguments: Any) -> Any:
        return getattr(self._actor, method)(*arguments)


def options_of(root: Path) -> ControllerOptions:
    return ControllerOptions(
        (str(root),),
        LoaderOptions(),
        PlanSettings(),
        Limits(),
        control_mode="explicit",
        load_models=("a",),
        deployed="1",
    )


def test_a_successor_reads_what_was_stored_and_one_that_was_deployed_anew_does_not(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write(tmp_path, "b")
    options, keeper = options_of(tmp_path), Keeper()
    store: Any = StateStore
    started = read_desired_state(options, FACTS)
    assert set(started.snapshot.models) == {"a"}
    desired = loaded(options, started, read_models(options, started, "b", None), {"b": Origin()}, "command", "b")
    assert store(keeper, options).load() is None
    store(keeper, options).save(desired)
    assert store(keeper, options).load() == desired
    assert store(keeper, replace(options, deployed="2")).load() is None


def test_a_trial_that_fails_leaves_what_was_there_before(tmp_path: Path) -> None:
    write(tmp_path, "a")
    options = options_of(tmp_path)
    before = read_desired_state(options, FACTS)
    write(tmp_path, "a", version=2)
    tried = loaded(options, before, read_models(options, before, "a", None), {"a": Origin()}, "command", "a")
    assert tried.outcomes == {"command": None}
    (trial,) = tried.trials
    after = reverted(options, tried, trial, {"a": {2: "it does not load"}}, "error")
    assert (after.plan, after.snapshot.models, after.outcomes) == (
        before.plan,
        before.snapshot.models,
        {"command": "error"},
    )
