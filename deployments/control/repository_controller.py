"""The Serve deployment that keeps Serve at what the repositories ask for, and tells the ingresses what there is."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from ray import serve

from deployments.control.cluster_reader import ClusterReader
from deployments.control.controller_options import ControllerOptions
from deployments.control.desired_state import DesiredState, place_waiting, read_desired_state
from deployments.control.gpu_cards import release_cards
from deployments.control.growth_request import GrowthRequest
from deployments.control.model_table import ModelTable
from deployments.control.publisher import Publisher
from deployments.control.reconciler import Reconciler
from deployments.control.scaler import Scaler
from deployments.control.status_reader import StatusReader
from deployments.replica.replica_logging import set_up_logging
from deployments.serve_internals import application_status, watch_replicas

logger = logging.getLogger(__name__)

_BUSY_POLL_S = 0.1
_REPLACING_POLL_S = 1.0
_IDLE_POLL_S = 5.0
_BACK_OFF_FIRST_S = 0.5
_BACK_OFF_LAST_S = 10.0
_LOOK_S = 2.0
_WATCH_S = 20.0
# A replica that waits for what another one holds would wait for ever if that one waited for it.
_SWEEP_AFTER_S = 30.0
_RELEASE_S = 8.0
_REFUSED_S = 10.0


class RepositoryController:
    """One replica; all it knows can be read again from the repositories, from Serve and from the ingresses.

    It is a loop: desired state, reconciler, status, directory. Whatever fails in there is logged and tried again.
    """

    __module__ = "eagleray"

    def __init__(self, options: ControllerOptions) -> None:
        set_up_logging(options.log_verbosity)
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._app = serve.get_replica_context().app_name
        self._cluster = ClusterReader(options.gpu_memory_bytes)
        self._table = ModelTable()
        self._publisher = Publisher()
        self._scaler = Scaler(self._loop)
        self._reconciler = Reconciler(options, self._app, self._scaler.count)
        self._status = StatusReader()
        self._growth = GrowthRequest()
        self._desired: DesiredState | None = None
        self._refused: dict[str, str] = {}
        self._client_state: dict[str, Any] = {}
        self._reconciled = False
        self._sweep_at_s = 0.0
        self._refused_until_s = 0.0
        self._look_at_s = 0.0
        self._models_known = asyncio.Event()
        self._status_known = asyncio.Event()
        self._wake = asyncio.Event()
        self._watched: dict[tuple[str, str], Callable[[], None]] = {}
        self._task = self._loop.create_task(self._run(), name="repository controller")

    def check_health(self) -> None:
        """Fail, so that Serve replaces the controller, when its task has ended."""
        if self._task.done():
            raise RuntimeError("the controller's task has ended")

    async def watch(self, epoch: str = "", generation: int = -1) -> dict[str, Any] | None:
        """Return what has changed after a follower's epoch and generation, None if nothing has for 20 s.

        A follower that knows nothing hears of the models once the repositories have been read; one that follows an
        earlier controller only once this one knows their states too.
        """
        try:
            async with asyncio.timeout(_WATCH_S):
                await (self._status_known if epoch else self._models_known).wait()
                return await self._publisher.news(epoch, generation)
        except TimeoutError:
            return None

    async def report_embedded(self, rows: list[list[Any]]) -> None:
        """Take from an ingress what became of the models it hosts: `[[name, version, reason, seconds]]`."""
        self._table.take_embedded(rows)
        self._publish()

    async def report_load(self, ingress: str, loads: dict[str, tuple[float, float]]) -> None:
        """Take what is under way from an ingress to autoscaled models; see `Autoscaler.take`."""
        self._scaler.take(ingress, loads)

    async def set_client_state(self, rows: dict[str, Any]) -> tuple[str, int]:
        """Keep what a client has set for all ingresses (None: no longer); returns epoch and generation that have it."""
        state = self._client_state | rows
        self._client_state = {key: value for key, value in state.items() if value is not None}
        self._publisher.publish(client_state=self._client_state)
        return self._publisher.epoch, self._publisher.generation

    async def restore_client_state(self, rows: dict[str, Any]) -> None:
        """Take from an ingress what clients had set when another controller kept it."""
        await self.set_client_state(rows | self._client_state)

    async def _run(self) -> None:
        back_off_s = _BACK_OFF_FIRST_S
        while True:
            self._wake.clear()
            try:
                await self._step()
                pause_s, back_off_s = self._poll_s(), _BACK_OFF_FIRST_S
            except Exception:
                logger.exception("the repository controller tries again in %g s", back_off_s)
                pause_s, back_off_s = back_off_s, min(2 * back_off_s, _BACK_OFF_LAST_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _step(self) -> None:
        """Bring everything one step on; each part may be done any number of times."""
        desired = await self._read()
        await asyncio.to_thread(self._growth.ask, desired.snapshot, desired.plan, desired.facts)
        if not self._reconciled:
            await self._scaler.follow(desired.plan.deployments)
            refused = await asyncio.to_thread(self._reconciler.reconcile, desired)
            self._reconciled = True
            self._refused_until_s = self._loop.time() + _REFUSED_S
            if refused != self._refused:
                self._take(desired, refused)
        await self._status.read(self._table)
        self._publish()
        self._status_known.set()
        if self._sweep_at_s and (self._publisher.settled or self._loop.time() > self._sweep_at_s):
            await asyncio.to_thread(self._reconciler.sweep, desired)
            self._table.swept()
            self._sweep_at_s = 0.0
        if self._refused and self._loop.time() > self._refused_until_s:
            self._reconciled = False  # a name may have become free

    async def _read(self) -> DesiredState:
        """Read the repositories, and what waits in them again when the cluster has become another."""
        before, now_s = self._desired, self._loop.time()
        if before is not None and (not before.waiting or now_s < self._look_at_s):
            return before
        self._look_at_s = now_s + _LOOK_S
        facts = await asyncio.to_thread(self._cluster.read)
        if before is None:
            desired = await asyncio.to_thread(read_desired_state, self._options, facts)
        elif facts == before.facts:
            return before
        else:
            logger.info("the cluster has changed; models that wait are read again: %s", ", ".join(before.waiting))
            desired = await asyncio.to_thread(place_waiting, self._options, facts, before)
            self._reconciled = False
        self._desired = desired
        self._sweep_at_s = self._loop.time() + _SWEEP_AFTER_S
        self._take(desired, self._refused)
        return desired

    def _take(self, desired: DesiredState, refused: dict[str, str]) -> None:
        self._refused = refused
        self._table.replace(desired, refused)
        self._watch_packed()
        self._publish()
        self._models_known.set()

    def _watch_packed(self) -> None:
        """Hear at once when a packed group has other replicas: they may have loaded other models than the last."""
        wanted = {(each.app_name, each.name) for each in self._table.deployments if each.placement == "packed"}
        for key in wanted - self._watched.keys():
            self._watched[key] = watch_replicas(*key, self._replica_listener(key))
        for key in self._watched.keys() - wanted:
            self._watched.pop(key)()

    def _replica_listener(self, key: tuple[str, str]) -> Callable[[tuple[Any, ...]], None]:
        def changed(replicas: tuple[Any, ...]) -> None:
            self._loop.call_soon_threadsafe(take)

        def take() -> None:
            self._status.replicas_changed(key)
            self._wake.set()

        return changed

    def _publish(self) -> None:
        self._table.fail_dependents()
        settled = self._desired is not None and self._table.settled
        self._publisher.publish(settled=settled, **self._table.tables())

    def _poll_s(self) -> float:
        if not self._publisher.settled:
            return _BUSY_POLL_S
        return _REPLACING_POLL_S if self._table.replacing else _IDLE_POLL_S

    async def __del__(self) -> None:
        """End what this controller deployed if its application is being deleted; else a successor goes on with it."""
        self._task.cancel()
        self._scaler.close()
        if await asyncio.to_thread(application_status, self._app) in ("DELETING", "NOT_STARTED"):
            await asyncio.to_thread(self._reconciler.end_all)
            await asyncio.to_thread(release_cards, _RELEASE_S)
