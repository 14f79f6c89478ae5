"""The Serve deployment that clients talk to: HTTP and metrics on ports of its own, lanes to every replica."""

import asyncio
import contextlib
import logging
import os
import secrets
from importlib.metadata import version
from typing import Any

import ray
from ray.serve.handle import DeploymentHandle

from app.ingress.listeners import Listeners
from app.service.log_settings import LogSettings
from app.service.model_control import NoModelControl
from app.service.service import Service
from app.service.trace_settings import TraceSettings
from app.settings import Settings
from deployments.control.directory import Directory
from deployments.lane.fleet import Fleet
from deployments.replica.lane_address import address_of
from deployments.replica.model_host import ModelHost
from deployments.replica.process_memory import keep_freed_pages, spare_long_lived_objects
from deployments.serve_internals import watch_replicas
from protocol.limits import Limits

logger = logging.getLogger(__name__)

_RETRY_S = 0.5


class Ingress:
    """One per node. It holds no model, unless models are placed `embedded`."""

    def __init__(self, settings: dict[str, Any], limits: Limits, controller: DeploymentHandle) -> None:
        keep_freed_pages()
        self._settings = Settings(**settings)
        self._controller = controller
        self._id = secrets.token_hex(8)
        self._loop = asyncio.get_running_loop()
        node_id = ray.get_runtime_context().get_node_id()
        self._fleet = Fleet(node_id, self._loop, self._routes_changed, self._settings.max_inflight_per_replica)
        self._host = ModelHost(self._loop, self._fleet, limits, shared=True)
        self.service = _service(self._settings, self._host, self._fleet)
        self._listeners = Listeners(self._settings, self.service, self._loop)
        self._watched: dict[tuple[str, str], Any] = {}
        self._task: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Open the ports, once; Serve reports the ingress as running when they are open."""
        if self._task is not None:
            return
        self.service.settings.apply()
        await self._listeners.open()
        spare_long_lived_objects()
        self._task = self._loop.create_task(self._follow_controller(), name="directory watch")

    def _routes_changed(self) -> None:
        self._listeners.routes_changed()

    async def _follow_controller(self) -> None:
        generation = -1
        while True:
            try:
                data = await self._controller.watch.remote(generation)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                # The controller is being replaced; what is served goes on being served.
                logger.warning("the repository controller does not answer: %s", type(error).__name__)
                await asyncio.sleep(_RETRY_S)
                generation = -1
                continue
            directory = Directory.from_dict(data)
            if directory.generation == generation:
                continue
            generation = directory.generation
            self.service.models.set_directory(directory)
            self._watch(directory)
            self._routes_changed()
            await self._embed(directory)

    def _watch(self, directory: Directory) -> None:
        wanted = set(directory.deployments)
        for key in wanted - self._watched.keys():
            self._watched[key] = watch_replicas(*key, self._listener(*key))
        for key in self._watched.keys() - wanted:
            self._watched.pop(key)()

    def _listener(self, app: str, deployment: str) -> Any:
        def changed(replicas: tuple[Any, ...]) -> None:
            addresses = {replica.replica_id: address_of(replica) for replica in replicas}
            self._loop.call_soon_threadsafe(self._fleet.set_replicas, f"{app}#{deployment}", addresses)

        return changed

    async def _embed(self, directory: Directory) -> None:
        keys = {(data["package"]["name"], int(data["package"]["version"])) for data in directory.embedded}
        if keys == set(self._host.served) | set(self._host.failures):
            return
        await self._host.apply(directory.embedded)
        self._routes_changed()
        await self._controller.report_embedded.remote(self._id, {"models": self._host.report()})

    async def ports(self) -> dict[str, int]:
        """Return the ports that are open, by name."""
        return self._listeners.ports

    async def settled(self) -> bool:
        """Return whether every model was tried and whatever loaded can be reached from here."""
        return self.service.health.models_settled()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Report what Serve cannot see: requests under way."""
        return {"inflight_requests": float(self._listeners.inflight_count)}

    def check_health(self) -> None:
        """Fail when the watch of the controller has ended."""
        if self._task is not None and self._task.done():
            raise RuntimeError("the ingress lost its watch of the controller")

    async def drain(self) -> None:
        """Say that this ingress is not ready, and, after the delay, answer what is under way and take nothing new.

        However often it is called, it happens once.
        """
        if self._draining is None:
            self._draining = self._loop.create_task(self._drain(), name="drain")
        await asyncio.shield(self._draining)

    async def _drain(self) -> None:
        self.service.health.draining = True
        await asyncio.sleep(self._settings.drain_delay_s)
        await self._listeners.close(self._settings.exit_timeout_secs)

    async def __del__(self) -> None:
        """Drain and free everything; Serve calls this when it stops the replica."""
        await self.drain()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._host.close()
        await self._fleet.close()

    async def pid(self) -> int:
        """Return the process id."""
        return os.getpid()


def _service(settings: Settings, host: ModelHost, fleet: Fleet) -> Service:
    return Service(
        settings.id,
        version("eagleray"),
        settings.strict_readiness,
        host,
        fleet,
        allow_client_shm=settings.allow_client_shm,
        trace=TraceSettings(settings.trace_config),
        log=LogSettings(
            settings.log_verbose, settings.log_info, settings.log_warning, settings.log_error, settings.log_format
        ),
        control=NoModelControl(explicit=settings.model_control_mode == "explicit"),
    )
