"""Trials that end change the desired state: those that succeed together, in one change."""

import asyncio
from pathlib import Path

import pytest

from deployments.control.current_state import CurrentState
from deployments.control.desired_state import DesiredState, Trial
from deployments.control.directory import READY, UNAVAILABLE
from deployments.control.model_table import ModelTable
from deployments.control.state_store import StateStore
from deployments.control.status_reader import Verdict
from deployments.control.trial_ends import TrialEnds
from tests.deployments.control.test_desired_state import write
from tests.deployments.control.test_former_places import PLACED, Repository
from tests.deployments.control.test_state_store import Table

NAMES = ("a", "b", "c", "d")


class Control:
    """Has a trial for each of four models; `changes` are the desired states that there were since."""

    def __init__(self, root: Path) -> None:
        for name in NAMES:
            write(root, name, PLACED % "packed")
        self.repository = Repository(root, at_start=("none",))
        self.table = ModelTable()
        self.changes: list[DesiredState] = []
        self.state = CurrentState(StateStore(Table(), "test", self.repository.options), self._adopt)
        self.ends = TrialEnds(self.repository.options, self.state, self.table)

    def _adopt(self, desired: DesiredState) -> None:
        self.table.replace(desired, {})
        self.changes.append(desired)

    async def load(self) -> dict[str, Trial]:
        desired = self.repository.read()
        for name in NAMES:
            desired = self.repository.load(desired, name)
        await self.state.change(desired)
        self.changes.clear()
        return dict(zip(NAMES, desired.trials, strict=True))

    def states(self) -> dict[str, str]:
        return {name: self.table.models[name].versions[1].state for name in NAMES}


def test_loads_that_succeed_together_make_one_change(tmp_path: Path) -> None:
    async def scenario() -> None:
        control = Control(tmp_path)
        trials = await control.load()
        await control.ends.take([Verdict(trials[name]) for name in "abc"])
        assert [list(change.on_trial) for change in control.changes] == [["d"]]
        assert {name for name, state in control.states().items() if state == READY} == {"a", "b", "c"}
        await control.ends.take([])
        assert len(control.changes) == 1

    asyncio.run(scenario())


def test_one_that_fails_takes_none_of_those_with_it_that_succeed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        control = Control(tmp_path)
        trials = await control.load()
        failed = Verdict(trials["b"], {"b": {1: "no such file"}})
        await control.ends.take([Verdict(trials["a"]), failed, Verdict(trials["c"])])
        assert [list(change.on_trial) for change in control.changes] == [["b", "d"], ["d"]]
        states = control.states()
        assert states["a"] == states["c"] == READY and states["b"] == UNAVAILABLE
        assert "failed to load 'b' version 1: no such file" in caplog.text

    asyncio.run(scenario())


def test_a_trial_that_has_ended_meanwhile_is_passed_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        control = Control(tmp_path)
        trials = await control.load()
        await control.ends.take([Verdict(trials["a"])])
        late = [Verdict(trials["a"]), Verdict(trials["a"], {"a": {1: "late"}}), Verdict(trials["a"], lacks_room=True)]
        await control.ends.take(late)
        assert len(control.changes) == 1 and control.states()["a"] == READY

    asyncio.run(scenario())
