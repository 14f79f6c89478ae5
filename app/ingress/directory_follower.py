"""Follows the controller's directory: what the service knows, which replicas have lanes, which models are embedded."""

import asyncio
import copy
import logging
from collections.abc import Callable, Collection
from typing import Any

from ray.serve.handle import DeploymentHandle

from app.service.client_settings import ClientSettings
from app.service.models import Models
from deployments.control.answer import answer, follow, is_cancelled, pause
from deployments.lane.fleet import Fleet
from deployments.replica.lane_address import address_of
from deployments.replica.model_host import ModelHost
from deployments.serve_internals import watch_replicas
from repository_loader.traffic import Traffic

logger = logging.getLogger(__name__)


class DirectoryFollower:
    """Everything in one ingress that follows from the directory."""

    def __init__(
        self,
        controller: DeploymentHandle,
        models: Models,
        settings: ClientSettings,
        host: ModelHost,
        fleet: Fleet,
        loop: asyncio.AbstractEventLoop,
        routes_changed: Callable[[], None],
        node: str,
        ingress: str,
    ) -> None:
        self._controller = controller
        self._host = host
        self._fleet = fleet
        self._loop = loop
        self._routes_changed = routes_changed
        self._node = node
        self._ingress = ingress
        self._models = models
        self._directory = models.directory
        self._settings = settings
        self._embedded: dict[str, dict[str, Any]] = {}
        self._reported: dict[str, dict[str, Any]] = {}
        """Of which embedded models the controller knows what became."""
        self._copies: dict[str, dict[str, Any]] = {}
        self._hosting: asyncio.Task[None] | None = None
        self._watched: dict[str, Callable[[], None]] = {}
        self._telling: set[asyncio.Task[None]] = set()
        host.loaded_late = self._loaded_late

    async def run(self) -> None:
        """Follow for ever; without a controller, what is served goes on being served."""
        try:
            await follow(self._directory, self._follow)
        finally:
            if self._hosting is not None:
                self._hosting.cancel()

    async def has_followed(self, epoch: str, generation: int) -> None:
        """Wait until the directory is that of the epoch and at least of the generation, for as long as it takes."""
        await self._models.until_followed(epoch, generation)

    async def _follow(self) -> None:
        directory = self._directory
        news = await self._ask(directory.epoch, directory.generation)
        if news is not None and news["epoch"] != directory.epoch and (self._embedded or directory.client_state):
            # A controller that has just started does not know what is loaded here, nor what clients have set.
            if self._embedded:
                await self._report_embedded()
            await answer(self._controller.restore_client_state.remote(directory.client_state))
            news = await self._ask("", -1)
        if news is None:
            return
        directory.take(news)
        # Before anybody hears that the change was followed: some copies and versions are void now.
        self._routes_changed()
        self._host.set_traffic(
            {name: Traffic.from_dict(entry.traffic) for name, entry in directory.models.items() if entry.traffic}
        )
        self._settings.take(directory.client_state)
        self._models.changed()
        await self._watch(directory.deployments)
        self._routes_changed()
        if self._hosting is None or self._hosting.done():
            self._hosting = self._loop.create_task(self._host_wanted(), name="models that the ingress hosts")

    async def _host_wanted(self) -> None:
        """Load and unload until this process hosts what the directory says, which goes on changing meanwhile."""
        directory = self._directory
        while not (directory.embedded == self._embedded == self._reported and directory.copies == self._copies):
            try:
                embedded, copies = dict(directory.embedded), dict(directory.copies)
                hosted = list(copy.deepcopy({**copies, **embedded}).values())
                await self._host.apply(hosted, [_key(row) for key, row in copies.items() if key not in embedded])
                self._embedded, self._copies = embedded, copies
                self._routes_changed()
                if self._embedded != self._reported:
                    await self._report_embedded()
            except (Exception, asyncio.CancelledError) as error:
                await pause(error)
        self._forget_all_but(directory.deployments)  # whose models ensembles here may have needed until now

    async def _ask(self, epoch: str, generation: int) -> dict[str, Any] | None:
        news: dict[str, Any] | None = await answer(self._controller.watch.remote(epoch, generation))
        return news

    async def _report_embedded(self) -> None:
        told = self._embedded
        await answer(self._controller.report_embedded.remote(self._host.report(), self._node, self._ingress))
        self._reported = told

    async def try_again(self, versions: Collection[tuple[str, int]]) -> None:
        """Load what had been loaded before, and failed here, and tell the controller what came of it."""
        if await self._host.try_again(versions):
            await self._tell()

    def _loaded_late(self) -> None:
        self._telling.add(task := self._loop.create_task(self._tell()))
        task.add_done_callback(self._telling.discard)

    async def _tell(self) -> None:
        """Tell the controller what has become of embedded models."""
        self._routes_changed()
        try:
            await self._report_embedded()
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled():
                raise
            logger.warning("the repository controller does not hear what was loaded: %s", error)
            self._reported = {}  # told with what changes next

    async def _watch(self, wanted: dict[str, tuple[str, str]]) -> None:
        for group in wanted.keys() - self._watched.keys():
            self._watched[group] = watch_replicas(*wanted[group], self._listener(group))
            await asyncio.sleep(0)  # a router for each takes its time, and requests go on

    def _forget_all_but(self, wanted: dict[str, tuple[str, str]]) -> None:
        for group in self._watched.keys() - wanted.keys():
            self._watched.pop(group)()
            self._fleet.forget(group)

    def _listener(self, group: str) -> Callable[[tuple[Any, ...]], None]:
        def changed(replicas: tuple[Any, ...]) -> None:
            self._loop.call_soon_threadsafe(take, {each.replica_id: address_of(each) for each in replicas})

        def take(addresses: dict[str, Any]) -> None:
            if group in self._watched:
                self._fleet.set_replicas(group, addresses)

        return changed


def _key(row: dict[str, Any]) -> tuple[str, int]:
    package = row["package"]
    return package["name"], int(package["version"])
