"""Files that clients send with loads: found by whoever needs them, and forgotten when nobody does."""

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from deployments.control.controller_options import ControllerOptions
from deployments.control.current_state import CurrentState
from deployments.control.desired_state import reverted
from deployments.control.first_state import read_desired_state
from deployments.control.model_commands import ModelCommands
from deployments.control.model_table import ModelTable
from deployments.control.state_store import StateStore
from deployments.replica.kept_files import KeptFiles
from deployments.replica.override_files import OverrideFiles
from protocol.errors import InvalidArgument
from protocol.limits import Limits
from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import PlanSettings
from repository_loader.snapshot import LoaderOptions
from tests.deployments.control.test_model_commands import CONFIG, STEPS, commit
from tests.deployments.control.test_state_store import Table
from tests.repository_loader.repositories import TENSORS, write


class Kept(Table):
    """Ray's tables, with the files in them."""

    def keys(self, prefix: str) -> list[str]:  # type: ignore[override]
        return [key for key in self if key.startswith(prefix)]


def test_files_of_a_load_that_is_under_way_are_not_forgotten(tmp_path: Path) -> None:
    """Those of a load whose controller died before it was stored are, once nothing is under way."""
    (repository := tmp_path / "repository").mkdir()
    options = ControllerOptions((str(repository),), LoaderOptions(), PlanSettings(), Limits(), control_mode="explicit")
    files = OverrideFiles(tmp_path, KeptFiles(table := Kept(), "test"))
    tensors = ", ".join(
        f'"{put}": [{{"name": "X", "data_type": "TYPE_INT32", "dims": [1]}}]' for put in ("input", "output")
    )
    config = f'{{"backend": "python", {tensors}}}'

    async def scenario() -> None:
        state = CurrentState(StateStore(Table(), "test", options), lambda desired: None)
        await state.change(read_desired_state(options, ClusterFacts((NodeFacts(4),))))
        commands = ModelCommands(options, state, files, ModelTable())
        files.write("left", {"file:1/model.py": b"1"})
        await commands.forget_files()
        assert not table and not any((tmp_path / "models").glob("*/[0-9a-f]*"))
        loading = asyncio.create_task(
            commands.load("1", "m", config, {"file:1/model.py": b"class TritonPythonModel: ..."})
        )
        trial = asyncio.create_task(state.until(lambda desired: desired if desired.trials else None))
        await asyncio.wait({loading, trial}, return_when=asyncio.FIRST_COMPLETED)
        await commands.forget_files()
        assert table
        loading.cancel()
        await asyncio.wait({loading})
        await commands.forget_files()
        assert table, "its client has gone, and it is on trial still"
        desired = trial.result()
        await state.change(reverted(options, desired, desired.trials[0], {}, ""))
        await commands.forget_files()
        assert not table

    asyncio.run(scenario())


def test_files_of_a_load_that_fails_are_forgotten(tmp_path: Path) -> None:
    """Each time, though what is used of files is the same as before: nothing."""
    (repository := tmp_path / "repository").mkdir()
    options = ControllerOptions((str(repository),), LoaderOptions(), PlanSettings(), Limits(), control_mode="explicit")
    files = OverrideFiles(tmp_path, KeptFiles(table := Kept(), "test"))

    async def scenario() -> None:
        state = CurrentState(StateStore(Table(), "test", options), lambda desired: None)
        await state.change(read_desired_state(options, ClusterFacts((NodeFacts(4),))))
        commands = ModelCommands(options, state, files, ModelTable())
        for number in range(3):
            with pytest.raises(InvalidArgument, match=r"^load failed for model 'm'"):
                await commands.load(str(number), "m", '{"backend": "python"}', {"file:model.py": b"%d" % number})
            assert table and any((tmp_path / "models").glob("*/[0-9a-f]*"))
            await commands.forget_files()
            assert not table and not any((tmp_path / "models").glob("*/[0-9a-f]*"))

    asyncio.run(scenario())


def test_files_of_a_load_that_is_cancelled_while_they_are_written_are_forgotten(tmp_path: Path) -> None:
    options = ControllerOptions((), LoaderOptions(), PlanSettings(), Limits(), control_mode="explicit")
    asked, go_on = threading.Event(), threading.Event()

    class Slow(KeptFiles):
        def put_files(self, name: str, archive: bytes) -> None:
            asked.set()
            assert go_on.wait(10)
            super().put_files(name, archive)

    files = OverrideFiles(tmp_path, Slow(table := Kept(), "test"))

    async def scenario() -> None:
        state = CurrentState(StateStore(Table(), "test", options), lambda desired: None)
        await state.change(read_desired_state(options, ClusterFacts((NodeFacts(4),))))
        commands = ModelCommands(options, state, files, ModelTable())
        loading = asyncio.create_task(commands.load("1", "m", '{"backend": "python"}', {"file:model.py": b"1"}))
        await asyncio.to_thread(asked.wait, 10)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        await commands.forget_files()
        go_on.set()
        while not any((tmp_path / "models").glob("*/[0-9a-f]*/m/model.py")):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        await commands.forget_files()
        assert not table and not any((tmp_path / "models").glob("*/[0-9a-f]*"))

    asyncio.run(scenario())


def test_files_of_a_load_are_found_by_a_controller_on_another_node(tmp_path: Path) -> None:
    """The node that they were sent to, and the controller there, may be gone."""
    repository = write(tmp_path / "models", {"pipe/config.pbtxt": TENSORS + STEPS, "pipe/1": None})
    options = ControllerOptions((repository,), LoaderOptions(), PlanSettings(), Limits(), control_mode="explicit")
    table, kept = Table(), KeptFiles(Kept(), "test")
    files = {"file:1/model.py": b"class TritonPythonModel: ..."}

    async def scenario() -> None:
        for node in ("one", "other"):
            state = CurrentState(StateStore(table, "test", options), lambda desired: None)
            if await state.restore() is None:
                await state.change(await asyncio.to_thread(read_desired_state, options, ClusterFacts((NodeFacts(4),))))
            commands = ModelCommands(options, state, OverrideFiles(tmp_path / node, kept), ModelTable())
            for name in ("step", "slow") if node == "one" else ("pipe",):
                sent = (CONFIG, files) if node == "one" else (None, {})
                loading = asyncio.create_task(commands.load(f"load of {name}", name, *sent))
                await commit(state, options)
                await loading
            shutil.rmtree(tmp_path / "one", ignore_errors=True)
        desired = await state.until(lambda desired: desired)
        assert {name for name in ("pipe", "step", "slow") if desired.runs(name)} == {"pipe", "step", "slow"}

    asyncio.run(asyncio.wait_for(scenario(), 60))
