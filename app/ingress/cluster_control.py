"""Loading and unloading models on a client's wish: the controller does it, and every ingress follows."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ray.serve.handle import DeploymentHandle

from app.ingress.all_ingresses import all_have_followed, all_ingresses, ask_all
from app.service.model_control import LoadRequest
from app.service.models import Models
from deployments.control.answer import answer, is_cancelled, until_answered
from protocol.errors import Unavailable, from_grpc_code

logger = logging.getLogger(__name__)

_REACH_TIMEOUT_S: Final = 30.0
_LIST_TIMEOUT_S: Final = 2.0


class _Done(NamedTuple):
    """A command that was carried out: where the directory has it, and whether every ingress has said that it knows."""

    epoch: str
    generation: int
    followed: bool


class ClusterControl:
    """Hands commands to the controller, and again to its successor when it dies before it has answered."""

    def __init__(self, controller: DeploymentHandle, models: Models) -> None:
        self._controller = controller
        self._models = models
        self._stopping = False
        self._told: set[asyncio.Future[dict[str, Any]]] = set()

    def stop(self) -> None:
        """Refuse what is not answered yet, and what comes; the controller carries out what has reached it."""
        self._stopping = True
        for told in self._told:
            told.cancel()

    async def load(self, request: LoadRequest) -> None:
        """Load a model; returns when it is ready at every ingress."""
        done = await self._command("load", request.name, request.config, dict(request.files))
        try:
            async with asyncio.timeout(_REACH_TIMEOUT_S):
                await self._models.until_ready(request.name)
                # One that loads follows later; one that is silent, and loads nothing, is not waited for.
                if done.followed or self._models.is_embedded(request.name):
                    where = (done.epoch, done.generation, request.name)
                    await ask_all(all_ingresses(), "reaches", *where, timeout_s=_REACH_TIMEOUT_S)
        except TimeoutError:
            logger.warning("'%s' is loaded, and cannot be reached from every ingress yet", request.name)

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Unload a model; returns when no ingress sends requests to it."""
        await self._command("unload", name, unload_dependents)

    async def change_traffic(self, name: str, given: Mapping[str, Any]) -> None:
        """Share a model's requests otherwise; returns when every ingress does so."""
        await self._command("change_traffic", name, dict(given))

    async def register_repository(self, repository: str, names: Mapping[str, str]) -> None:
        """Have the models of one more repository be there to be loaded."""
        await self._command("register_repository", repository, dict(names))

    async def unregister_repository(self, repository: str) -> None:
        """Have a repository's models be there no more."""
        await self._command("unregister_repository", repository)

    async def registered_repositories(self) -> Mapping[str, Mapping[str, str]]:
        """Return what the controller knows.

        Raises:
            Unavailable: there is no controller at present.
        """
        try:
            found: Mapping[str, Mapping[str, str]]
            found = await answer(self._controller.registered_repositories.remote(), _LIST_TIMEOUT_S)
            return found
        except Exception as error:
            logger.warning("the repositories could not be told: %s: %s", type(error).__name__, error)
            raise Unavailable("the repositories cannot be told at present") from None

    async def list_models(self) -> None:
        """Have the directory name the models that the repositories have now; without a controller it stays as it is."""
        try:
            async with asyncio.timeout(_LIST_TIMEOUT_S):
                told = await self._controller.list_models.remote()
                await self._models.until_followed(told["epoch"], told["generation"])
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled():
                raise
            logger.warning("the repositories could not be listed: %s: %s", type(error).__name__, error)

    async def _command(self, method: str, *arguments: Any) -> _Done:
        command, ask = secrets.token_hex(8), getattr(self._controller, method)
        task = asyncio.ensure_future(until_answered(lambda: ask.remote(command, *arguments)))
        self._told.add(task)
        if self._stopping:
            task.cancel()
        try:
            told = await task
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            raise Unavailable("the server is stopping; what it was told may happen, and nobody waits for it") from None
        finally:
            self._told.discard(task)
        where = (told["epoch"], told["generation"])
        done = _Done(*where, await all_have_followed(*where))
        # Until then this one knows nothing of a model that was loaded, and serves one that was unloaded.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REACH_TIMEOUT_S):
                await self._models.until_not_behind(*where)
        if told["error"] is not None:
            raise from_grpc_code(*told["error"])
        return done
