"""With what a controller has stored its successor goes on; a controller that was deployed anew does not."""

from dataclasses import replace
from pathlib import Path

import pytest

from deployments.control import state_store
from deployments.control.controller_options import ControllerOptions
from deployments.control.desired_state import Origin, loaded, reverted
from deployments.control.first_state import read_desired_state
from deployments.control.model_commands import read_models
from deployments.control.state_store import StateStore
from protocol.limits import Limits
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from repository_loader.snapshot import LoaderOptions
from tests.deployments.control.test_repository_watch import write

FACTS = ClusterFacts((NodeFacts(4),))


class Table(dict[str, bytes]):
    """Ray's tables, in this process."""

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return super().get(key, b"")

    def put(self, key: str, value: bytes) -> None:
        self[key] = value

    def forget(self, key: str) -> None:
        self.pop(key, None)


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


def test_a_successor_goes_on_with_what_was_stored_and_one_that_was_deployed_anew_knows_what_ran(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write(tmp_path, "b")
    options, table = options_of(tmp_path), Table()
    started = read_desired_state(options, FACTS)
    assert set(started.snapshot.models) == {"a"}
    desired = loaded(options, started, read_models(options, started, "b", None), {"b": Origin()}, "command", "b")
    store = StateStore(table, "eagleray", options)
    assert store.load() is None
    store.save(desired)
    assert store.load() == desired
    assert StateStore(table, "another", options).load() is None
    anew = StateStore(table, "eagleray", replace(options, deployed="2"))
    assert (anew.load(), anew.former()) == (None, desired)
    store.end()
    assert not table


def test_a_state_of_other_code_says_nothing_of_what_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a")
    options, table = options_of(tmp_path), Table()
    monkeypatch.setattr(state_store, "code_version", lambda: "of before")
    StateStore(table, "eagleray", options).save(read_desired_state(options, FACTS))
    monkeypatch.undo()
    now = StateStore(table, "eagleray", options)
    assert (now.load(), now.former()) == (None, None)
    assert set(now.wishes().loaded) == {"a"}


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
