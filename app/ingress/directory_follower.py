"""Follows the controller's directory: what the service knows, which replicas have lanes, which models are embedded."""

import asyncio
import copy
import logging
from collections.abc import Callable, Collection
from typing import Any, Final

from ray.serve.handle import DeploymentHandle

from app.service.client_settings import ClientSettings
from app.service.models import Models
from deployments.control.answer import answer, follow, pause
from deployments.lane.fleet import Fleet
from deployments.replica.hosted_model import key_of
from deployments.replica.lane_address import address_of
from deployments.replica.model_host import ModelHost
from deployments.serve_internals import watch_replicas

logger = logging.getLogger(__name__)

_RETRY_S: Final = 2.0


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
        self._copies: dict[str, dict[str, Any]] = {}
        self._hosting: set[asyncio.Task[None]] = set()
        self._untold = asyncio.Event()
        """That the controller does not know what has become of embedded models here."""
        self._watched: dict[str, Callable[[], None]] = {}
        host.loaded_late = self._host_changed

    async def run(self) -> None:
        """Follow for ever; without a controller, what is served goes on being served."""
        telling = self._loop.create_task(self._tell(), name="what has become of embedded models")
        try:
            await follow(self._directory, self._follow)
        finally:
            for task in (telling, *self._hosting):
                task.cancel()

    async def _follow(self) -> None:
        directory = self._directory
        told = directory.epoch
        news = await self._ask(told, directory.generation)
        while news is not None and news.get("epoch", told) != told and (self._embedded or directory.client_state):
            # A controller that has just started does not know what is loaded here, nor what clients have set. Where it
            # dies meanwhile, it is its successor that answers, and knows nothing of that either.
            told = news["epoch"]
            if self._embedded:
                await self._report_embedded()
            await answer(self._controller.restore_client_state.remote(directory.client_state))
            news = await self._ask(told, -1)
        if news is None:
            return
        directory.take(news)
        # Before anybody hears that the change was followed: some copies and versions are void now.
        self._routes_changed()
        self._host.router.set_traffic(directory.traffic)
        self._settings.take(directory.client_state)
        self._models.changed()
        await self._watch(directory.deployments)
        self._routes_changed()
        embeds = self._embedded != directory.embedded
        if embeds or self._copies != directory.copies:
            self._embedded, self._copies = dict(directory.embedded), dict(directory.copies)
            hosting = self._host_wanted(self._host_changed if embeds else self._routes_changed)
            self._hosting.add(task := self._loop.create_task(hosting, name="models that the ingress hosts"))
            task.add_done_callback(self._end_hosting)
        elif not self._hosting:
            self._forget_all_but(directory.deployments)

    async def _host_wanted(self, hosted: Callable[[], None]) -> None:
        """Load and unload what the directory asks for, however often it takes; changes of it may come meanwhile."""
        while True:
            copies = [key_of(row) for key, row in self._copies.items() if key not in self._embedded]
            try:
                await self._host.apply(copy.deepcopy(list({**self._copies, **self._embedded}.values())), copies)
                return hosted()
            except Exception:
                logger.exception("models of this ingress could not be loaded or unloaded; it tries again")
                await asyncio.sleep(_RETRY_S)

    def _end_hosting(self, task: asyncio.Task[None]) -> None:
        self._hosting.discard(task)
        if not self._hosting and not task.cancelled():  # until now ensembles here may have needed what has gone
            self._forget_all_but(self._directory.deployments)

    def _host_changed(self) -> None:
        self._routes_changed()
        self._untold.set()

    async def _ask(self, epoch: str, generation: int) -> dict[str, Any] | None:
        news: dict[str, Any] | None = await answer(self._controller.watch.remote(epoch, generation))
        return news

    async def _report_embedded(self) -> None:
        await answer(self._controller.report_embedded.remote(self._host.report(), self._node, self._ingress))

    async def _tell(self) -> None:
        """Tell the controller for ever what has become of embedded models."""
        while True:
            await self._untold.wait()
            self._untold.clear()
            try:
                await self._report_embedded()
            except (Exception, asyncio.CancelledError) as error:
                self._untold.set()
                await pause(error)

    async def try_again(self, versions: Collection[tuple[str, int]]) -> None:
        """Load what had been loaded before, and failed here; the controller is told what came of it."""
        if await self._host.try_again(versions):
            self._host_changed()

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
