"""The Serve deployment that clients talk to: HTTP, gRPC and metrics on ports of its own, lanes to every replica."""

import asyncio
import contextlib
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from app.ingress.all_ingresses import all_ingresses
from app.ingress.client_state import ClusterState
from app.ingress.cluster_control import ClusterControl
from app.ingress.cluster_counters import ClusterCounters, OfDead
from app.ingress.directory_follower import DirectoryFollower
from app.ingress.ingress_neighbours import IngressNeighbours
from app.ingress.listeners import Listeners
from app.ingress.listening_mark import ListeningMark
from app.ingress.niceness import warn_of_niceness
from app.ingress.node_ports import NodePorts
from app.ingress.serve_cluster_view import Examination, ServeClusterView
from app.ingress.successor import until_succeeded
from app.metrics.node_sampler import NodeSampler
from app.metrics.ray_agent import AgentSweep
from app.service.log_settings import LogSettings
from app.service.model_control import ExplicitControl
from app.service.service import Service
from app.service.trace_settings import TraceSettings
from app.settings import Settings
from deployments.backends.python.model_module import hide_arguments
from deployments.control.sole_application import require_sole
from deployments.core.refusals import Refusals
from deployments.core.request_meter import RequestMeters
from deployments.core.response_cache import open_response_cache
from deployments.core.side_tasks import SideTasks
from deployments.lane.fleet import Fleet
from deployments.log.failed_start import tells_why_it_fails
from deployments.replica.counter_sweep import CounterSweep
from deployments.replica.kept_files import KeptFiles
from deployments.replica.load_report import LoadReport
from deployments.replica.model_host import ModelHost
from deployments.replica.model_output import show_model_output
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder
from deployments.replica.node_log import NodeLog
from deployments.replica.node_rate_limiter import NodeRateLimiter
from deployments.replica.override_files import OverrideFiles
from deployments.replica.process_memory import keep_freed_pages, spare_long_lived_objects
from deployments.replica.ray_metrics import RayMetrics
from deployments.replica.region_table import RegionTable
from deployments.replica.search_path import leave_start_folder
from deployments.replica.served_model import ServedModel
from deployments.replica.shared_memory import Regions
from deployments.replica.stall_guard import StallGuard
from deployments.replica.state_sampler import StateSampler
from deployments.replica.traffic_report import TrafficReport
from deployments.replica.worker_wakes import wake_main_thread_less
from deployments.serve_internals import ClusterTable, application_status, with_plain_calls
from protocol.limits import Limits

_FOLLOW_TIMEOUT_S: Final = 10.0
_REACH_TIMEOUT_S: Final = 30.0
_SETTLE_TIMEOUT_S: Final = 10.0
_AS_OTHERS_TIMEOUT_S: Final = 600.0
_AS_TOLD_TIMEOUT_S: Final = 30.0
_AS_OTHERS_POLL_S: Final = 0.5
_TRACES_TIMEOUT_S: Final = 3.0
_LEAST_EXIT_S: Final = 2.0
"""How long what is under way may take, once an ingress that was replaced has waited for its successor."""
_COMMANDS_S: Final = 2.0
"""How long an ingress that stops waits for a model that loads or unloads."""


class Ingress:
    """One of a node's, which share its ports. It holds no model, unless models are placed `embedded`."""

    __module__ = "eagleray"

    @tells_why_it_fails
    def __init__(self, settings: dict[str, Any], limits: Limits, controller: DeploymentHandle) -> None:
        keep_freed_pages()
        wake_main_thread_less()
        leave_start_folder()
        with_plain_calls(controller)
        all_ingresses()
        own, table = serve.get_replica_context(), ClusterTable()
        require_sole(table, own.app_name)
        self._settings = Settings(**settings)
        self._loop = asyncio.get_running_loop()
        node_id = ray.get_runtime_context().get_node_id()
        node = NodeFolder(node_id)
        node_log = NodeLog(node.path, self._settings.log_options())
        log = LogSettings(self._settings.log_options(), node_log.change)
        show_model_output(node_log.is_on)
        hide_arguments()
        warn_of_niceness()
        self._counters = NodeCounters(node)
        regions = self._regions = Regions(RegionTable(node), opens_devices=True)
        refusals = Refusals(self._counters)
        max_inflight = self._settings.max_inflight_per_replica
        meters = RequestMeters(self._counters)
        self._fleet = Fleet(node_id, self._loop, self._routes_changed, refusals, max_inflight, regions, meters=meters)
        limits_given = self._settings.rate_limits()
        self._limiter = None if limits_given is None else NodeRateLimiter(node.path, limits_given, self._loop)
        self._cache = open_response_cache(node.path, self._settings.response_cache_bytes())
        self._host = ModelHost(
            self._loop,
            self._fleet,
            limits,
            self._counters,
            regions,
            shared=True,
            changed=self._model_changed,
            cache=self._cache,
            retry_count=self._settings.model_load_retry_count,
            thread_count=self._settings.model_load_thread_count,
            max_queue_s=self._settings.max_queue_s,
            limiter=self._limiter,
            metrics=self._settings.metrics_options(),
        )
        self._host.meters = meters
        self._host.unload_timeout_s = self._settings.unload_timeout_s()
        self._guard = self._host.guard = StallGuard(self._loop, self._settings.max_batch_duration_s)
        self._cluster = ClusterCounters(node_id, self._counters)
        self.service = _service(self._settings, self._host, self._fleet, self._cluster, refusals, log)
        self.service.settings.state = ClusterState(controller)
        control = self._control = ClusterControl(controller, self.service.models)
        self.service.traffic.control = control
        self._view = ServeClusterView(controller, self._fleet, node_id, self._counters.speaks_for_node)
        self.service.cluster = self._view
        if self._settings.model_control_mode == "explicit":
            self.service.control = ExplicitControl(control)
        neighbours = IngressNeighbours(self.service, self._fleet, self._host.router.set_signatures)
        self._host.calls.neighbours = neighbours
        self._files = OverrideFiles(node.path, KeptFiles(table, own.app_name))
        self._host.loads.files = self._files
        self._mark = ListeningMark(node)
        self._listeners = Listeners(self._settings, self.service, NodePorts(node), self._loop, meters)
        self._load = LoadReport(controller, self._fleet)
        interval_s = self._settings.metrics_interval_ms / 1000
        self._state_sampler = StateSampler(self._host, self._fleet, self._counters, interval_s, meters)
        self._ray_metrics = RayMetrics(self._counters, own.replica_id.unique_id, own.app_name, interval_s)
        let_go = [self._host.let_go, meters.let_go]
        self._sweep = CounterSweep(self.service.models.directory, self._cluster.give_back, let_go)
        self._node_sampler = NodeSampler(
            self._counters,
            interval_s,
            cpu=self._settings.allow_cpu_metrics,
            gpu=self._settings.allow_gpu_metrics,
        )
        self._agent_sweep = AgentSweep(node_id, self._counters.speaks_for_node)
        self._traffic = TrafficReport(controller, self.service.routing.measurements, self._host.router.canaries.to_dict)
        self._beside = SideTasks(self._loop)
        self._follower = DirectoryFollower(
            controller,
            self.service.models,
            self.service.settings,
            self._host,
            self._fleet,
            self._loop,
            self._directory_changed,
            node_id,
            ray.get_runtime_context().get_actor_name() or "",
        )
        self._task: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._exit_s = self._settings.exit_timeout_secs

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Open the ports, once; Serve reports the ingress as running when they are open.

        The kernel shares clients between the ingresses of a machine, so this one listens when it can answer as they do.
        Where none of the node's listens, it does so after 10 s at the latest: what takes longer is a first start.
        """
        if self._task is not None:
            return
        self._task = self._loop.create_task(self._follower.run(), name="directory watch")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_TIMEOUT_S):
                await self.service.models.until_settled()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AS_OTHERS_TIMEOUT_S):
                while self._mark.others_listen() and not self.service.models.reached():
                    await asyncio.sleep(_AS_OTHERS_POLL_S)
        with contextlib.suppress(TimeoutError):  # a model may be LOADING for as long as it has too few replicas
            async with asyncio.timeout(_AS_TOLD_TIMEOUT_S):
                while self._mark.others_listen() and not self.service.models.are_as_told():
                    await asyncio.sleep(_AS_OTHERS_POLL_S)
        await self._cluster.connect()
        await self._listeners.open()
        self._mark.set()
        spare_long_lived_objects()
        self._beside.begin(self._load.run(), "load report")
        self._beside.begin(self._traffic.run(), "traffic report")
        self._beside.begin(self._node_sampler.run(), "state of the node")
        self._beside.begin(self._state_sampler.run(), "state of the models")
        self._beside.begin(self._regions.run(), "regions that are no longer registered")
        self._beside.begin(self._files.run(), "files that are no longer used")
        self._beside.begin(self._ray_metrics.run(), "metrics of Ray")
        self._beside.begin(self._sweep.run(), "counts of versions that are gone")
        self._beside.begin(self._agent_sweep.run(), "metrics of processes that are gone")
        self._beside.begin(self._cluster.inherit(), "counts of dead nodes")

    def _directory_changed(self) -> None:
        directory = self.service.models.directory
        self._load.follow(directory.models)
        self._host.router.expect(directory.taken)
        self._host.router.canaries.follow(directory.models)
        self._traffic.follow(directory.models)
        self._routes_changed()

    def _routes_changed(self) -> None:
        self._listeners.routes_changed()
        self.service.models.changed()
        self._host.late.routes_changed()

    def _model_changed(self, name: str, version: int, served: ServedModel | None) -> None:
        self._routes_changed()

    async def ports(self) -> dict[str, int]:
        """Return the ports that are open, by name."""
        return self._listeners.ports

    async def settled(self) -> bool:
        """Return whether every model was tried and whatever loaded can be reached from here."""
        return self.service.models.settled()

    async def check_health(self) -> None:
        """Fail when the watch of the controller has ended, or a model that is hosted here is stuck."""
        self._host.check(self._settings.max_batch_duration_s)
        if self._task is not None and self._task.done():
            raise RuntimeError("the ingress lost its watch of the controller")

    async def has_followed(self, epoch: str, generation: int) -> None:
        """Return when this ingress has what the controller told then; whoever asks gives up after some seconds."""
        async with asyncio.timeout(_FOLLOW_TIMEOUT_S):
            await self.service.models.until_followed(epoch, generation)

    async def reaches(self, epoch: str, generation: int, model: str) -> None:
        """Return when a model that was loaded then can be asked from here, or failed to load here."""
        async with asyncio.timeout(_REACH_TIMEOUT_S):
            await self.service.models.until_followed(epoch, generation)
            await self.service.models.until_ready(model)

    async def is_answering(self) -> bool:
        """Whether an ensemble that runs here, and was unloaded or lacks a step since, has yet to answer something."""
        return self._host.is_answering

    async def try_again(self, versions: list[tuple[str, int]]) -> None:
        """Begin to load embedded models that had been loaded before, and failed here; see `DirectoryFollower`."""
        self._beside.begin(self._follower.try_again(versions), "second tries of embedded models")

    async def counts_of_node(self, asking_node_id: str) -> tuple[str, list[Any]] | None:
        """Return this node's id and what was counted here; None when another ingress speaks for the node."""
        return await self._cluster.answer(asking_node_id)

    async def counts_of_dead(self) -> OfDead:
        """Return the dead nodes of which this ingress has heard, and what these had counted."""
        return await self._cluster.of_dead()

    async def model_log(self, asking_node_id: str, model: str, count: int) -> tuple[str, list[tuple[str, str]]] | None:
        """Return this node's id and what a model has logged here; None when another ingress speaks for the node."""
        return await self._view.answer(asking_node_id, model, count)

    async def examination(self, asking_node_id: str) -> tuple[str, Examination] | None:
        """Return this node's id and what is broken here; None when another ingress speaks for the node."""
        return await self._view.examination(asking_node_id)

    async def drain(self) -> None:
        """Say that this ingress is not ready, and, after the delay, answer what is under way and take nothing new.

        However often it is called, it happens once.
        """
        if self._draining is None:
            self._draining = self._loop.create_task(self._drain(), name="drain")
        await asyncio.shield(self._draining)

    async def _drain(self) -> None:
        self.service.health.draining = True
        self._mark.clear()
        await asyncio.sleep(self._settings.drain_delay_s)
        self._loop.call_later(_COMMANDS_S, self._control.stop)
        await self._listeners.close(self._exit_s)

    async def __del__(self) -> None:
        """Drain and free everything; Serve calls this when it stops the replica."""
        if self._draining is None and self._listeners.ports:
            began_s, status = self._loop.time(), partial(application_status, serve.get_replica_context().app_name)
            await until_succeeded(self._mark, status, self._exit_s)
            self._exit_s = max(self._exit_s - (self._loop.time() - began_s), min(self._exit_s, _LEAST_EXIT_S))
        self._beside.cancel()
        if self._task is not None:
            # First of all: the controller answers this before it ends.
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        deadline_s = self._loop.time() + self._exit_s
        await self.drain()
        await asyncio.to_thread(self.service.tracing.close, _TRACES_TIMEOUT_S)
        await self._host.close(deadline_s - self._loop.time())
        await self._fleet.close()
        self._guard.stop()
        if self._limiter is not None:
            self._limiter.close()
        if self._cache is not None:
            self._cache.close()
        self._counters.close()


def _service(
    settings: Settings,
    host: ModelHost,
    fleet: Fleet,
    counters: ClusterCounters,
    refusals: Refusals,
    log: LogSettings,
) -> Service:
    return Service(
        settings.id,
        version("eagleray"),
        settings.strict_readiness,
        host,
        fleet,
        counters,
        refusals,
        namespacing=settings.model_namespacing,
        allow_client_shm=settings.allow_client_shm,
        trace=TraceSettings(settings.trace_config),
        log=log,
    )
