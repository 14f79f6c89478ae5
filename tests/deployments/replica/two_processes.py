"""Two processes with models, as far as their calls of each other go: a lane between them, and a directory."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.control.directory import READY, UNAVAILABLE, UNLOADED, ModelEntry, VersionEntry
from deployments.control.publisher import Publisher
from deployments.control.replica_directory import RunningReplica
from deployments.core.counts import Totals
from deployments.core.refusals import Refusals
from deployments.lane.fleet import Fleet
from deployments.replica.directory_neighbours import DirectoryNeighbours
from deployments.replica.group_watch import GroupWatch
from repository_loader.config_json import config_to_json
from tests.deployments.lane.harness import NODE, Replica
from tests.deployments.replica.hosted_models import Hosted, Models


class FakeController:
    """The controller's directory, as a deployment handle reaches it."""

    def __init__(self, models: Models, groups: dict[str, list[str]]) -> None:
        self._publisher = Publisher()
        self.watch = self
        self.report_load = LoadReports()
        self._entries = entries = {}
        for names in groups.values():
            for name in names:
                config = text_format.Parse((models.root / name / "config.pbtxt").read_text(), ModelConfig())
                config.name = name
                entry = ModelEntry(config_to_json(config), "python", "", {1: VersionEntry(READY)})
                entries[name] = entry.to_dict()
        deployments = {f"{group}#models": [group, "models", names] for group, names in groups.items()}
        self._publisher.publish(models=entries, deployments=deployments)

    def remote(self, epoch: str, generation: int) -> Coroutine[Any, Any, dict[str, Any]]:
        return self._publisher.news(epoch, generation)

    def unload(self, name: str) -> None:
        unloaded = VersionEntry(UNAVAILABLE, UNLOADED).to_dict()
        self._entries[name] = {**self._entries[name], "versions": {"1": unloaded}}
        self._publisher.publish(models=self._entries)


class LoadReports:
    """What is reported of models that scale with their load."""

    def __init__(self) -> None:
        self.loads: dict[str, tuple[float, float]] = {}
        self.came = asyncio.Event()

    async def remote(self, reporter: str, loads: dict[str, tuple[float, float]]) -> None:
        self.loads |= loads
        if loads:
            self.came.set()


@asynccontextmanager
async def two_processes(models: Models, there: str, *, asleep: bool = False) -> AsyncIterator["Hosted"]:
    """Host one model as another process does, behind a lane; all others as the process that calls.

    One that is `asleep` has no replica before a load is reported of it.
    """
    loop = asyncio.get_running_loop()
    names = [folder.name for folder in models.root.iterdir()]
    with tempfile.TemporaryDirectory() as folder:
        replica = Replica(folder, "there", loop)
        replica.server.set_model("echo", 1, None)
        await replica.server.listen([replica.sock])
        fleet = Fleet(NODE, loop, lambda: neighbours.changed(), Refusals(Totals()), away_s=0.0)

        def watch(app: str, name: str, listener: Any) -> Callable[[], None]:
            assert (app, name) == ("there", "models")
            unix = {"unix": replica.address.unix_path, "tcp": ("", 0), "secret": "secret"}
            running = (RunningReplica("there", NODE, unix),)
            if not asleep:
                listener(running)
                return lambda: None

            async def wake() -> None:
                await controller.report_load.came.wait()
                listener(running)

            waking = loop.create_task(wake())

            def forget() -> None:
                waking.cancel()

            return forget

        here = [name for name in names if name != there]
        async with models.hosted(there) as other, models.hosted(*here, fleet=fleet) as call:
            replica.server.set_model(there, 1, other.host.served[(there, 1)])
            controller = FakeController(models, {"there": [there], "here": here})
            watching, host = GroupWatch(fleet, loop, 0.0, watch), call.host
            neighbours = DirectoryNeighbours(loop, fleet, watching, host.router, lambda: controller)
            call.host.calls.neighbours = neighbours
            call.controller, call.there = controller, replica
            yield call
            neighbours.close()
            await fleet.close()
        await replica.server.drain(0.0)
