"""The Serve deployment that keeps Serve at what the repositories ask for, and tells the ingresses what there is."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray import serve

from deployments.control.busy_replicas import BusyReplicas
from deployments.control.canary_watch import CanaryWatch
from deployments.control.client_settings import ClientSettings
from deployments.control.cluster_reader import ClusterReader, living_actors, living_replicas
from deployments.control.controller_options import ControllerOptions
from deployments.control.current_state import CurrentState
from deployments.control.desired_state import DesiredState
from deployments.control.first_state import read_desired_state
from deployments.control.gpu_cards import release_cards
from deployments.control.growth_request import GrowthRequest
from deployments.control.model_commands import ModelCommands, told
from deployments.control.model_table import ModelTable
from deployments.control.open_calls import OpenCalls
from deployments.control.packed_watch import PackedWatch
from deployments.control.plan_report import report_plan
from deployments.control.publisher import Publisher
from deployments.control.reconciler import Reconciler
from deployments.control.redeployment import beside_what_ran
from deployments.control.repository_commands import RepositoryCommands
from deployments.control.repository_watch import RepositoryWatch
from deployments.control.scale_down import ScaleDown
from deployments.control.scaler import Scaler
from deployments.control.serve_clock import ServeClock
from deployments.control.shared_look import SharedLook
from deployments.control.sole_application import require_sole
from deployments.control.state_store import StateStore
from deployments.control.status_reader import StatusReader, Verdict
from deployments.control.traffic_commands import TrafficCommands
from deployments.control.trial_ends import TrialEnds
from deployments.control.trial_parts import tried
from deployments.control.waiting_models import WaitingModels
from deployments.log.failed_start import tells_why_it_fails
from deployments.replica.kept_files import KeptFiles
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder
from deployments.replica.node_log import NodeLog
from deployments.replica.override_files import OverrideFiles
from deployments.replica.worker_wakes import wake_main_thread_less
from deployments.serve_internals import (
    DELETING,
    ENDING,
    ClusterTable,
    application_status,
    handle_of,
    restart_serve_controller,
    serve_controller_time_s,
)
from protocol.errors import Internal, ServingError, Unavailable
from repository_loader.deployment_plan import Place
from repository_loader.repository import RepositoryError, find_models
from repository_loader.storage.location import is_remote
from repository_loader.waits import longest_wait

logger = logging.getLogger(__name__)

_BUSY_POLL_S = 0.1
_UNLOAD_BUSY_S = 15.0
_REPLACING_POLL_S = 1.0
_IDLE_POLL_S = 5.0
_BACK_OFF_FIRST_S = 0.5
_BACK_OFF_LAST_S = 10.0
# When its application is deleted the controller has 10 s, and Serve waits first for all calls to end.
_WATCH_S = 5.0
# A replica that waits for what another one holds would wait for ever if that one waited for it.
_SWEEP_AFTER_S = 30.0
_RELEASE_S = 8.0
_LIST_S = 2.0
_LOOK_S = 2.0
_FOLLOW_TIMEOUT_S = 1.0
_TRY_TIMEOUT_S = 2.0
_TAKE_OVER_TIMEOUT_S = 5.0
"""Ingresses look for another controller, and tell it what they have, before they follow it."""


class RepositoryController:
    """One replica; all it knows can be read again from the repositories, from Serve and from the ingresses.

    It is a loop: desired state, reconciler, status, directory. Whatever fails in there is logged and tried again.
    """

    __module__ = "eagleray"

    @tells_why_it_fails
    def __init__(self, options: ControllerOptions) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        wake_main_thread_less()
        self._app = serve.get_replica_context().app_name
        table = ClusterTable()
        require_sole(table, self._app)
        node = NodeFolder(ray.get_runtime_context().get_node_id())
        self._log = NodeLog(node.path, options.log)
        self._log.follow(self._loop)
        self._cluster = ClusterReader(options.gpu_memory_bytes)
        self._table = ModelTable()
        self._publisher = Publisher()
        self._counters = NodeCounters(node)
        self._scaler = Scaler(self._loop, self._counters)
        busy = BusyReplicas(self._loop, (self._app, options.ingress))
        self._reconciler = Reconciler(options, self._app, self._scaler.count, busy.count, busy.answering)
        self._scaler.scale_down = ScaleDown(self._loop, self._reconciler.give_time)
        ingresses = partial(living_replicas, self._app, options.ingress)
        self._status = StatusReader(ingresses, self._scaler.fails_to_start)
        self._growth = GrowthRequest(table, self._app)
        self._store = StateStore(table, self._app, options)
        self._state = CurrentState(self._store, self._adopt)
        self._trial_ends = TrialEnds(options, self._state, self._table)
        self._kept = KeptFiles(table, self._app)
        self._files = OverrideFiles(node.path, self._kept)
        self._commands = ModelCommands(options, self._state, self._files, self._table)
        self._waiting = WaitingModels(options, self._state, self._cluster.read, self._files.here)
        self._traffic = TrafficCommands(self._state)
        self._repositories = RepositoryCommands(options, self._state)
        self._settings = ClientSettings(self._state)
        self._listing = SharedLook(self._list_models, _LIST_S)
        self._canaries = CanaryWatch(self._state, self._table)
        self._open_calls = OpenCalls(lambda: application_status(self._app) == DELETING)
        self._serve_clock = ServeClock(serve_controller_time_s, restart_serve_controller)
        self._watch_of_repositories = RepositoryWatch(options, self._state, self._table)
        self._refused: dict[str, str] = {}
        self._unread = ""
        """Why the repositories have not been read yet, where one of them cannot be."""
        self._reconciled: DesiredState | None = None
        self._spare_cards = False
        """Whether there may be cards that no model is on any more."""
        self._follow_s = 0.0
        self._adopted_s = 0.0
        self._sweep_at_s = 0.0
        self._look_at_s = 0.0
        self._models_known = asyncio.Event()
        self._status_known = asyncio.Event()
        self._first_known = asyncio.Event()
        """What who knows nothing may follow: nothing ran before, or the status is known."""
        self._wake = asyncio.Event()
        self._packed_watch = PackedWatch(self._loop, self._packed_changed)
        self._tasks = [
            self._loop.create_task(self._run(), name="repository controller"),
            self._loop.create_task(self._waiting.run(), name="models that wait"),
            self._loop.create_task(self._canaries.run(), name="canaries"),
            self._loop.create_task(self._scaler.run(), name="autoscaler"),
            self._loop.create_task(self._serve_clock.run(), name="clock of Serve"),
            self._loop.create_task(self._open_calls.run(), name="open calls"),
        ]
        if options.control_mode == "poll" and options.repository_poll_s:
            self._tasks.append(self._loop.create_task(self._watch_of_repositories.run(), name="repository watch"))

    def check_health(self) -> None:
        """Fail, so that Serve replaces the controller, when one of its tasks has ended."""
        if any(task.done() for task in self._tasks):
            raise RuntimeError("a task of the controller has ended")

    async def load(self, command: str, name: str, config: str | None, files: dict[str, bytes]) -> dict[str, Any]:
        """Load a model; see `ModelCommands.load`.

        Returns `error`, None or [gRPC code, message], and the epoch and generation of the directory that has it.
        """
        return await self._answer(self._load(command, name, config, files))

    async def _load(self, command: str, name: str, config: str | None, files: dict[str, bytes]) -> None:
        await self._waiting.look()
        await self._commands.load(command, name, config, files)

    async def unload(self, command: str, name: str, unload_dependents: bool) -> dict[str, Any]:
        """Unload a model; see `ModelCommands.unload`. Returns as `load`."""
        return await self._answer(self._commands.unload(command, name, unload_dependents))

    async def change_traffic(self, command: str, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """Share a model's requests otherwise; see `TrafficCommands.change`. Returns as `load`."""
        return await self._answer(self._traffic.change(command, name, given))

    async def register_repository(self, command: str, repository: str, names: dict[str, str]) -> dict[str, Any]:
        """Have the models of one more repository be there; see `RepositoryCommands.register`. Returns as `load`."""
        return await self._answer(self._repositories.register(command, repository, names))

    async def unregister_repository(self, command: str, repository: str) -> dict[str, Any]:
        """Forget a repository; see `RepositoryCommands.unregister`. Returns as `load`."""
        return await self._answer(self._repositories.unregister(command, repository))

    async def registered_repositories(self) -> dict[str, dict[str, str]]:
        """Return the repositories, each with the names that were given to models by their folders."""
        return await self._repositories.known()

    async def report_plan(self) -> dict[str, Any]:
        """Return what shall run, and why; see `report_plan`."""
        return report_plan(self._table.plan)

    async def list_models(self) -> dict[str, Any]:
        """Look which models the repositories have; returns the epoch and generation of the directory that has them.

        Where a repository takes longer to be read than ingresses wait, it is that of what was known.
        """
        await self._listing.take()
        return self._position()

    async def _list_models(self) -> None:
        # A store far away is asked when a model is loaded, and not by whoever asks for the index.
        desired = await self._state.until(lambda desired: desired)
        local = [path for path in desired.repositories if not is_remote(path)]
        loader = replace(self._options.loader, names=desired.repositories)
        unreadable: dict[str, str] = {}
        names = await asyncio.to_thread(find_models, local, loader, unreadable)
        self._table.know(names, all_repositories=len(local) - len(unreadable) == len(desired.repositories))
        self._publish()

    def _position(self) -> dict[str, Any]:
        return {"epoch": self._publisher.epoch, "generation": self._publisher.generation}

    async def _answer(self, command: Coroutine[Any, Any, None]) -> dict[str, Any]:
        try:
            error = await self._open_calls.wait(self._outcome(command))
        except Unavailable as refusal:
            error = told(refusal)
        return {"error": error, **self._position()}

    async def _outcome(self, command: Coroutine[Any, Any, None]) -> list[int | str] | None:
        error: list[int | str] | None = None
        await self._models_known.wait()
        try:
            await command
        except ServingError as refusal:
            error = told(refusal)
        except Exception:
            logger.exception("a command failed")
            error = told(Internal("internal server error"))
        # Nobody can follow before, and who hears of an answer may rely on all ingresses.
        await self._status_known.wait()
        return error

    async def watch(self, epoch: str = "", generation: int = -1) -> dict[str, Any] | None:
        """Return what has changed after a follower's epoch and generation, None if nothing has for 5 s.

        A follower that knows nothing hears of the models once the repositories have been read. Where some run already,
        it does once this controller knows their states too, as does one that follows an earlier controller. While a
        repository cannot be read, or takes long to be, it hears why instead.
        """
        try:
            async with asyncio.timeout(_WATCH_S):
                await (self._status_known if epoch else self._first_known).wait()
                return await self._publisher.news(epoch, generation)
        except TimeoutError:
            unread = longest_wait(_WATCH_S) or self._unread
            return {"unread": unread} if unread and not epoch else None

    async def report_embedded(self, rows: list[list[Any]], node: str = "", ingress: str = "") -> None:
        """Take from an ingress what became of the models it hosts; see `ModelTable.take_embedded`.

        `ingress` is the name of its actor.
        """
        known = self._table.reports
        if ingress not in known or known.failed or any(row[2] for row in rows):
            await self._forget_ingresses()
        self._table.take_embedded(rows, node, ingress)
        self._publish()

    async def _forget_ingresses(self) -> None:
        """Have ingresses that have gone count no more."""
        self._table.keep_ingresses(await asyncio.to_thread(living_actors))

    async def report_load(self, ingress: str, loads: dict[str, tuple[float, float]]) -> None:
        """Take what is under way from an ingress to autoscaled models; see `Autoscaler.take`."""
        self._scaler.take(ingress, loads)

    async def report_traffic(self, reporter: str, measured: dict[str, dict[str, Any]]) -> None:
        """Take from a process what the requests of canaries have come to; see `CanaryWatch.take`."""
        self._canaries.take(reporter, measured)

    async def set_client_state(self, rows: dict[str, Any]) -> tuple[str, int]:
        """Keep what a client has set for all ingresses (None: no longer); returns epoch and generation that have it."""
        await self._settings.change(rows)
        await self._status_known.wait()
        return self._publisher.epoch, self._publisher.generation

    async def restore_client_state(self, rows: dict[str, Any]) -> None:
        """Take from an ingress what clients had set; see `ClientSettings.restore`."""
        await self._settings.restore(rows)

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
        await asyncio.to_thread(self._growth.ask, desired)
        if self._reconciled is not desired:
            if not self._status_known.is_set() and not await self._take_over(desired):
                return  # the next step takes over what there is now
            await self._followed()
            await self._scaler.follow(desired.plan.deployments, tried(desired))
            refused = await asyncio.to_thread(self._reconciler.reconcile, desired)
            self._scaler.deployed()
            self._reconciled, self._spare_cards = desired, True
            self._look_at_s = self._loop.time() + _LOOK_S
            if refused != self._refused:
                self._refused = refused
                self._adopt(self._state.desired or desired)  # a command may have changed it meanwhile
        if self._reconciler.ends_later:
            await asyncio.to_thread(self._reconciler.end_due)
        if self._table.reports.failed:
            await self._forget_ingresses()
        await self._trial_ends.take(await self._read_status(desired))
        if self._sweep_at_s and (self._publisher.settled or self._loop.time() > self._sweep_at_s):
            await asyncio.to_thread(self._reconciler.sweep, desired)
            self._sweep_at_s = 0.0
        await self._release_cards(desired)
        await self._try_again()
        await self._commands.forget_files()
        if self._loop.time() > self._look_at_s:
            self._look_at_s = self._loop.time() + _LOOK_S
            if await asyncio.to_thread(self._reconciler.must_deploy) and not await self._is_deleted():
                self._reconciled = None

    async def _release_cards(self, desired: DesiredState) -> None:
        """Give back the cards that no model is on, once none may return there: Ray keeps the node of each."""
        if self._spare_cards and not desired.trials and not self._reconciler.ends_later:
            needed = {plan.gpu for plan in desired.plan.deployments if plan.gpu is not None}
            self._spare_cards = not await asyncio.to_thread(release_cards, 0.0, needed)

    async def _try_again(self) -> None:
        """Have processes load what had been loaded, and failed in them; what comes of it they tell."""
        for (app, name), versions in self._table.tries.due().items():
            place = (app, name) if app else (self._app, self._options.ingress)
            try:
                told = handle_of(place[1], place[0]).broadcast("try_again", versions)
                await told.results_async(timeout_s=_TRY_TIMEOUT_S, return_exceptions=True)
            except Exception as error:  # none is there, or one takes long
                logger.debug("not all of %s try %s again: %s", place, versions, error)
            if app:
                self._status.replicas_changed(place)

    async def _take_over(self, desired: DesiredState) -> bool:
        """Take what a former controller has left, if there was one; returns False if the models have changed meanwhile.

        What is ready stays so while it is replaced. The ingresses follow before anything ends: that controller may have
        died before it told them.
        """
        runs, refused = await asyncio.to_thread(self._reconciler.look, desired)
        if not runs and not self._state.inherited:
            self._first_known.set()
            return True
        if refused:
            self._refused = refused
            self._adopt(self._state.desired or desired)
        await self._read_status(desired, taking_over=True)
        self._follow_s = _TAKE_OVER_TIMEOUT_S
        return self._status_known.is_set()

    async def _read_status(self, desired: DesiredState, *, taking_over: bool = False) -> list[Verdict]:
        verdicts = await self._status.read(self._table, desired, taking_over=taking_over)
        self._reconciler.replicas_told(self._status.told)
        self._table.note_long_gone()
        self._publish()
        if self._table.plan is desired.plan:  # else nothing was taken
            self._status_known.set()
            self._first_known.set()
        return verdicts

    async def _read(self) -> DesiredState:
        """Return the desired state; the first one is that of a former controller, or is read from the repositories."""
        if self._state.desired is not None:
            return self._state.desired
        self._sweep_at_s = self._loop.time() + _SWEEP_AFTER_S
        restored = await self._state.restore()
        if restored is not None:
            logger.info("going on with what a former controller was told")
            return restored
        facts = await asyncio.to_thread(self._cluster.read)
        wishes = await asyncio.to_thread(self._store.wishes)
        async with self._state.lock:
            try:
                first = await asyncio.to_thread(read_desired_state, self._options, facts, wishes, self._files.here)
            except RepositoryError as error:
                self._unread = f"{error}; it is tried again"
                raise
            self._unread = ""
            first = await asyncio.to_thread(self._beside_what_ran, first)
            await self._state.change(first)
        return first

    def _beside_what_ran(self, first: DesiredState) -> DesiredState:
        runs, _ = self._reconciler.look(first)
        former = self._store.former()
        if former is None or (former.plan.deployments and not runs):  # it was left by a cluster that is no more
            return first
        try:
            return beside_what_ran(self._options, former, first)
        except Exception:
            logger.exception("all models are deployed anew")
            return first

    async def _followed(self) -> None:
        """Have the ingresses send nothing more to what is about to be ended; one that is slow is not waited for."""
        if not self._follow_s:
            return
        timeout_s, self._follow_s = self._follow_s, 0.0
        told = (self._publisher.epoch, self._publisher.generation)
        try:
            followed = handle_of(self._options.ingress, self._app).broadcast("has_followed", *told)
            await followed.results_async(timeout_s=timeout_s, return_exceptions=True)
        except Exception as error:  # none is there, or one takes long
            logger.debug("not every ingress has followed: %s", error)

    def _adopt(self, desired: DesiredState) -> None:
        """Have the table, and all who follow it, be those of a desired state."""
        self._adopted_s = self._loop.time()
        self._table.replace(desired, self._refused)
        if self._table.unloading or self._table.moved:
            self._follow_s = max(self._follow_s, _FOLLOW_TIMEOUT_S)
        self._publish()
        self._models_known.set()
        self._wake.set()
        self._packed_watch.follow(self._table.deployments)

    def _packed_changed(self, place: Place) -> None:
        self._status.replicas_changed(place)
        self._wake.set()

    def _publish(self) -> None:
        desired = self._state.desired
        settled = desired is not None and self._table.settled
        settings = {} if desired is None else desired.client_settings
        self._publisher.publish(settled=settled, client_state=settings, **self._table.tables())

    def _poll_s(self) -> float:
        desired = self._state.desired
        # What answers what it has, or keeps a stream, may take its time.
        unloads = self._table.unloading and self._loop.time() < self._adopted_s + _UNLOAD_BUSY_S
        if not self._publisher.settled or unloads or (desired is not None and desired.trials):
            return _BUSY_POLL_S
        soon = self._table.replacing or self._table.unloading or self._reconciler.ends_later or self._refused
        return _REPLACING_POLL_S if soon else _IDLE_POLL_S

    async def __del__(self) -> None:
        """End what this controller deployed if its application is being deleted; else a successor goes on with it."""
        for task in self._tasks:
            task.cancel()
        self._log.close()
        self._counters.close()
        if await self._is_deleted():
            await asyncio.to_thread(self._store.end)
            await asyncio.to_thread(self._kept.end)
            await asyncio.to_thread(self._reconciler.end_all)
            await asyncio.to_thread(self._growth.end)
            await asyncio.to_thread(release_cards, _RELEASE_S)

    async def _is_deleted(self) -> bool:
        """Whether somebody has deleted the application that this controller is part of."""
        return await asyncio.to_thread(application_status, self._app) in ENDING
