"""Models that wait are read again when the cluster has become another, and hold up nothing else meanwhile."""

import asyncio
from pathlib import Path

from deployments.control.controller_options import ControllerOptions
from deployments.control.current_state import CurrentState
from deployments.control.desired_state import DesiredState, unloaded
from deployments.control.first_state import read_desired_state
from deployments.control.state_store import StateStore
from deployments.control.waiting_models import WaitingModels, place_waiting, read_waiting
from protocol.limits import Limits
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from repository_loader.snapshot import LoaderOptions
from tests.deployments.control.test_state_store import Table
from tests.repository_loader.repositories import TENSORS, python_model, write

SMALL, GROWN = (ClusterFacts((NodeFacts(count),)) for count in (2, 8))
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
    return place_waiting(options, facts, before, read_waiting(options, facts, before))


def test_what_takes_long_to_be_read_again_holds_nothing_else_up(tmp_path: Path) -> None:
    """What is unloaded meanwhile does not come back, though it waited too."""
    released, asked = tmp_path / "released", tmp_path / "released.asked"
    slow = python_model("slow", TENSORS + CPUS) | {
        "slow/1/model.py": WAITS_TO_BE_READ.format(released=str(released)),
    }
    repository = write(tmp_path / "models", slow | python_model("other", TENSORS + CPUS) | python_model("runs"))
    options = ControllerOptions(
        (repository,), LoaderOptions(), PlanSettings(), Limits(), control_mode="explicit", load_models=("*",)
    )

    async def scenario() -> None:
        state = CurrentState(StateStore(Table(), "test", options), lambda desired: None)
        released.touch()
        first = await asyncio.to_thread(read_desired_state, options, SMALL)
        await state.change(first)
        assert first.waiting == {"slow", "other"}
        released.unlink()
        asked.unlink()
        placing = asyncio.create_task(WaitingModels(options, state, lambda: GROWN).place())
        while not asked.exists():
            await asyncio.sleep(0.01)
        async with asyncio.timeout(5), state.lock:
            await state.change(unloaded(options, first, ["other", "runs"]))
        assert not placing.done()
        released.touch()
        await placing
        desired = await state.until(lambda desired: desired)
        assert set(desired.snapshot.models) == {"slow"} and desired.runs("slow")

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
