"""Models that wait are read again when the cluster has become another, and hold up nothing else meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from deployments.control.controller_options import ControllerOptions
from deployments.control.current_state import CurrentState
from deployments.control.desired_state import DesiredState, committed, unloaded
from deployments.control.first_state import read_desired_state
from deployments.control.model_commands import ModelCommands
from deployments.control.model_table import ModelTable
from deployments.control.state_store import StateStore
from deployments.control.waiting_models import WaitingModels, place_waiting, read_waiting
from protocol.limits import Limits
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from repository_loader.snapshot import LoaderOptions
from tests.deployments.control.test_state_store import Table
from tests.repository_loader.repositories import TENSORS, python_model, write

SMALL, GROWN = (ClusterFacts((NodeFacts(cpus, gpus),)) for cpus, gpus in ((2, 0), (8, 1)))
CPUS = 'parameters { key: "eagleray.num_cpus" value { string_value: "3" } }'
WAITS_TO_BE_READ = """
import os, time

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        open({released!r} + ".asked", "w").close()
        while not os.path.exists({released!r}):
            time.sleep(0.05)
        return config
"""


def with_waiting(options: ControllerOptions, facts: ClusterFacts, before: DesiredState) -> DesiredState:
    now = replace(before, facts=facts)
    return place_waiting(options, now, read_waiting(options, now))


class SlowlyRead:
    """A model that waits for a GPU, and is read again until it is `released` when there is one; others beside it."""

    def __init__(self, folder: Path, at_start: tuple[str, ...]) -> None:
        self.released, self.asked = folder / "released", folder / "released.asked"
        slow = python_model("slow", TENSORS + "instance_group { kind: KIND_GPU }") | {
            "slow/1/model.py": WAITS_TO_BE_READ.format(released=str(self.released)),
        }
        repository = write(folder / "models", slow | python_model("other", TENSORS + CPUS) | python_model("runs"))
        self.options = ControllerOptions(
            (repository,), LoaderOptions(), PlanSettings(), Limits(), control_mode="explicit", load_models=at_start
        )

    @asynccontextmanager
    async def being_read(self) -> AsyncIterator[tuple[CurrentState, WaitingModels]]:
        state = CurrentState(StateStore(Table(), "test", self.options), lambda desired: None)
        self.released.touch()
        await state.change(await asyncio.to_thread(read_desired_state, self.options, SMALL))
        self.released.unlink()
        self.asked.unlink(missing_ok=True)
        waiting = WaitingModels(self.options, state, lambda: GROWN, look_s=0.01)
        running = asyncio.create_task(waiting.run())
        try:
            while not self.asked.exists():
                await asyncio.sleep(0.01)
            yield state, waiting
        finally:
            self.released.touch()
            running.cancel()


def test_what_takes_long_to_be_read_again_holds_nothing_else_up(tmp_path: Path) -> None:
    """What is unloaded meanwhile does not come back, though it waited too."""
    slow = SlowlyRead(tmp_path, ("*",))

    async def scenario() -> None:
        async with slow.being_read() as (state, _):
            first = await state.until(lambda desired: desired)
            assert first.waiting == {"slow", "other"}
            async with asyncio.timeout(5), state.lock:
                await state.change(unloaded(slow.options, first, ["other", "runs"]))
            slow.released.touch()
            desired = await state.until(lambda desired: desired if desired.runs("slow") else None)
            assert set(desired.snapshot.models) == {"slow"}

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_load_waits_for_no_model_that_is_read_again(tmp_path: Path) -> None:
    """It has a place in the cluster as it is now; what was read is placed beside it when it has succeeded."""
    slow = SlowlyRead(tmp_path, ("slow",))

    async def scenario() -> None:
        async with slow.being_read() as (state, waiting):
            no_files: Any = None  # which no command here brings
            commands = ModelCommands(slow.options, state, no_files, ModelTable())
            async with asyncio.timeout(5):
                await waiting.look()
                loading = asyncio.create_task(commands.load("1", "other", None, {}))
                tried = await state.until(lambda desired: desired if desired.trials else None)
            assert tried.runs("other") and tried.waiting == {"slow"}
            slow.released.touch()
            await asyncio.sleep(0.5)  # in which what was read could be placed
            assert state.desired is tried
            await state.change(committed(slow.options, tried, tried.trials[0]))
            await loading
            desired = await state.until(lambda desired: None if desired.waiting else desired)
            assert desired.runs("slow") and desired.runs("other") and desired.facts == GROWN

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_what_waits_is_read_once_for_a_cluster(tmp_path: Path) -> None:
    """A controller that takes over reads it for itself."""
    repository = write(tmp_path, python_model("m", TENSORS + CPUS.replace('"3"', '"9"')))
    options = ControllerOptions((repository,), LoaderOptions(), PlanSettings(), Limits())
    store = StateStore(Table(), "test", options)
    changes: list[DesiredState] = []

    async def looked_at(state: CurrentState, facts: ClusterFacts) -> int:
        """Return how often the desired state changes while the cluster is looked at four times."""
        changes.clear()
        looks: list[ClusterFacts] = []

        def look() -> ClusterFacts:
            looks.append(facts)
            return facts

        running = asyncio.create_task(WaitingModels(options, state, look, look_s=0.0).run())
        while len(looks) < 4:
            await asyncio.sleep(0.005)
        running.cancel()
        return len(changes)

    async def scenario() -> None:
        state = CurrentState(store, changes.append)
        await state.change(await asyncio.to_thread(read_desired_state, options, SMALL))
        assert await looked_at(state, SMALL) == 0
        assert await looked_at(state, GROWN) == 2, "the cluster, and what was read for it"
        successor = CurrentState(store, changes.append)
        await successor.restore()
        assert await looked_at(successor, GROWN) == 1

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_what_waits_is_looked_at_again_after_an_error(tmp_path: Path) -> None:
    repository = write(tmp_path, python_model("m", TENSORS + CPUS))
    options = ControllerOptions((repository,), LoaderOptions(), PlanSettings(), Limits())
    answers = [SMALL, GROWN]

    def read_facts() -> ClusterFacts:
        if len(answers) == 1:
            answers.append(GROWN)
            raise ConnectionError
        return answers.pop(0)

    async def scenario() -> None:
        state = CurrentState(StateStore(Table(), "test", options), lambda desired: None)
        await state.change(read_desired_state(options, SMALL))
        looking = asyncio.create_task(WaitingModels(options, state, read_facts, look_s=0.01).run())
        await state.until(lambda desired: desired.runs("m") or None)
        assert not looking.done()
        looking.cancel()

    asyncio.run(asyncio.wait_for(scenario(), 60))
