"""Models of other processes as a replica finds them, in the controller's directory.

A replica of several models or of an ensemble follows it from its start on, any other from its models' first call on.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from deployments.control.answer import answer, follow, until_answered
from deployments.control.directory import READY, Directory, ModelEntry
from deployments.core.core import LATEST
from deployments.lane.fleet import Fleet
from deployments.lane.routes import REPLACEMENT_S
from deployments.replica.group_watch import GroupWatch
from deployments.replica.host_router import HostRouter
from deployments.replica.load_report import LoadReport
from deployments.replica.neighbours import Found
from deployments.replica.traffic_report import TrafficReport
from protocol.errors import from_grpc_code
from protocol.signature import Signature
from repository_loader.namespaces import identifiers
from repository_loader.traffic import Traffic

logger = logging.getLogger(__name__)

_FOLLOW_TIMEOUT_S: Final = 2.0
_VERSIONS_TIMEOUT_S: Final = 3.0
"""For which a call waits until every version that it may go to can be reached, where another one can."""
_CALLED: Final = "called"


class DirectoryNeighbours:
    """Finds models in the directory of the controller, whose handle `controller` returns; opens lanes to them.

    `router` is told the signature of each model that is found, which versions take requests, and how those of a model
    share the requests that name none. A called model that scales with its load gets its replicas as it does for
    clients: calls count, and wait for the first one. All methods run on the loop's thread.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fleet: Fleet,
        watch: GroupWatch,
        router: HostRouter,
        controller: Callable[[], Any],
    ) -> None:
        self._find_controller = controller
        self._loop = loop
        self._fleet = fleet
        self._watch = watch
        self._router = router
        self.directory = Directory()
        self.loads = asyncio.Event()
        """Whether a model here has had another loaded."""
        self._signatures: dict[str, tuple[str, Signature]] = {}
        self._groups: set[tuple[str, str]] = set()
        self._called: set[str] = set()
        self._reached: dict[tuple[str, int], Mapping[int, float]] = {}
        """What has been found, with what each version gets of the requests that name none."""
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._following = False
        self._controller: Any = None
        self._load: LoadReport | None = None
        self._traffic: TrafficReport | None = None

    def changed(self) -> None:
        """Wake whoever waits for a model: the directory, or what the lanes lead to, has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    def find(self, name: str, version: int, found: Found) -> None:
        """Tell the signature of a model version that can be asked; None when there is none.

        One whose replica is being replaced is waited for as long as clients wait for it.
        """
        if self.directory.known and (name, version) in self._reached:
            entry = self.directory.models.get(name)
            target = self._fleet.target(name, version) or self._fleet.awaited(name, version)
            if entry is not None and target is not None and entry.takes(target.version):
                found(self._signature(name, entry))
                return
        self._start(self._reach(name, version, found))

    def have_scaled(self, names: Collection[str]) -> None:
        """Have models scale with what goes to them from here, as steps of ensembles, as if models called them."""
        if not self._called.issuperset(names):
            self._called.update(names)
            self.follow()
            self._watch_called()

    async def _reach(self, name: str, version: int, found: Found) -> None:
        signature = None
        try:
            self.follow()
            async with asyncio.timeout(REPLACEMENT_S):
                signature = await self._until_reached(name, version)
        except TimeoutError:
            logger.warning("no replica of model '%s', which a model calls, can be reached", name)
        except Exception:  # of Ray's, as where no more files may be open: the call must end
            logger.exception("model '%s', which a model calls, cannot be looked for", name)
            self._called.discard(name)
        found(signature)

    async def _until_reached(self, name: str, version: int) -> Signature | None:
        while True:
            changed = self._changed
            if self.directory.known:
                entry = self.directory.models.get(name)
                if entry is None or entry.model_config is None or not entry.takes(version):
                    return None
                if name not in self._called:
                    self._called.add(name)
                    self._watch_called()
                if self._reaches(name, version):
                    if (name, version) in self._reached:
                        return self._signature(name, entry)
                    await self._until_versions_are_reached(name, version)
                    continue  # the model may have changed, or gone, meanwhile
            await changed.wait()

    async def _until_versions_are_reached(self, name: str, version: int) -> None:
        """Wait, for a while, for those that requests go to which name none; the lanes to them open in any order."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_VERSIONS_TIMEOUT_S):
                while version == LATEST and not all(self._reaches(name, each) for each in self._shares(name)):
                    await self._changed.wait()
        self._reached[name, version] = self._shares(name)

    def _shares(self, name: str) -> Mapping[int, float]:
        entry = self.directory.models.get(name, ModelEntry())
        ready = [number for number, state in entry.versions.items() if state.state == READY]
        return Traffic.from_dict(entry.traffic).shares(ready)

    def _reaches(self, name: str, version: int) -> bool:
        return (self._fleet.target(name, version) or self._fleet.awaited(name, version)) is not None

    def left(self, name: str, version: int) -> bool:
        """Whether the directory says that a model takes no requests; see `Neighbours`."""
        if not self.directory.known:
            return False
        entry = self.directory.models.get(name)
        return entry is None or not entry.takes(version)

    def unloaded(self, name: str, version: int) -> bool:
        """Whether the directory says that a model was unloaded; see `Neighbours`."""
        entry = self.directory.models.get(name)
        return entry is not None and entry.is_unloaded(version)

    def sharing(self, name: str) -> int:
        """Return how many models share a name; see `Neighbours`."""
        models = self.directory.models
        return sum(bool(models[each].namespace) for each in identifiers(name, models))

    def _signature(self, name: str, entry: ModelEntry) -> Signature:
        text, signature = self._signatures.get(name, ("", None))
        if signature is None or text != entry.config:
            config = entry.model_config
            assert config is not None
            signature = Signature.from_config(config)
            self._signatures[name] = entry.config, signature
            self._router.set_signatures({name: signature})
        return signature

    def _watch_called(self) -> None:
        """Keep lanes to the deployments that run the models which were called, and have those scale that do."""
        assert self._load is not None
        models = self.directory.models
        self._load.follow({name: models[name] for name in self._called if name in models})
        groups = {
            self.directory.deployments[key]
            for key, models in self.directory.hosted.items()
            if not self._called.isdisjoint(models)
        }
        if groups != self._groups:
            self._watch.want(_CALLED, groups)
            self._groups = groups  # only now: what could not be watched is wanted again

    def follow(self) -> None:
        """Follow the directory from now on."""
        if not self._following:
            self._controller = self._find_controller()
            self._following = True
            self._load = LoadReport(self._controller, self._fleet)
            self._start(follow(self.directory, self._take_news))
            self._start(self._load.run())
            self._traffic = TrafficReport(self._controller, self._router.canaries.to_dict)
            self._start(self._traffic.run())

    async def _take_news(self) -> None:
        directory = self.directory
        news = await answer(self._controller.watch.remote(directory.epoch, directory.generation))
        if news is not None:
            directory.take(news)
            self._reached = {key: shares for key, shares in self._reached.items() if shares == self._shares(key[0])}
            self._watch_called()
            self._measure_canaries()
            self._router.expect(directory.taken)
            self._router.set_traffic(directory.traffic)
            self.changed()

    def _measure_canaries(self) -> None:
        assert self._traffic is not None
        self._router.canaries.follow(self.directory.models)
        self._traffic.follow(self.directory.models)

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load a model; see `Neighbours`."""
        self.loads.set()
        await self._command("load", name, config, dict(files))

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Unload a model; see `Neighbours`."""
        await self._command("unload", name, unload_dependents)

    async def _command(self, method: str, *arguments: Any) -> None:
        self.follow()
        command, ask = secrets.token_hex(8), getattr(self._controller, method)
        told = await until_answered(lambda: ask.remote(command, *arguments))
        if told["error"] is not None:
            raise from_grpc_code(*told["error"])
        try:
            async with asyncio.timeout(_FOLLOW_TIMEOUT_S):
                while self.directory.epoch != told["epoch"] or self.directory.generation < told["generation"]:
                    await self._changed.wait()
        except TimeoutError:
            logger.warning("what a model had the server do is not known here yet")

    def _start(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Follow no longer."""
        for task in self._tasks:
            task.cancel()
