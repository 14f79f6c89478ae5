"""The Serve deployment that runs models: a core, reached over lanes and by deployment handles."""

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

import numpy as np
import orjson
import ray
from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.util import get_node_ip_address

from deployments.backends.backend import ModelLoadError
from deployments.backends.python.model_module import hide_arguments
from deployments.control.controller_options import CONTROLLER
from deployments.core.refusals import Refusals
from deployments.core.response_cache import open_response_cache
from deployments.core.side_tasks import SideTasks
from deployments.lane.fleet import Fleet
from deployments.lane.parent_descriptors import keep_all_from_children
from deployments.lane.server import LaneServer
from deployments.log.failed_start import tells_why_it_fails
from deployments.replica.counter_sweep import CounterSweep
from deployments.replica.departure import Departure
from deployments.replica.directory_neighbours import DirectoryNeighbours
from deployments.replica.group_watch import GroupWatch
from deployments.replica.handle_calls import Answer, HandleCall, HandleCalls
from deployments.replica.kept_files import KeptFiles
from deployments.replica.lane_address import LaneAddress
from deployments.replica.model_host import ModelFaultError, ModelHost
from deployments.replica.model_output import show_model_output
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder
from deployments.replica.node_log import NodeLog
from deployments.replica.node_rate_limiter import NodeRateLimiter
from deployments.replica.override_files import OverrideFiles
from deployments.replica.process_memory import keep_freed_pages
from deployments.replica.ray_metrics import RayMetrics
from deployments.replica.region_table import RegionTable
from deployments.replica.replica_options import ReplicaOptions
from deployments.replica.search_path import leave_start_folder
from deployments.replica.served_model import ServedModel
from deployments.replica.shared_memory import Regions
from deployments.replica.stall_guard import StallGuard
from deployments.replica.state_sampler import StateSampler
from deployments.replica.worker_wakes import wake_main_thread_less
from deployments.serve_internals import OWNER_KEY, ClusterTable, GpuReader, handle_of, with_plain_calls
from protocol.infer import Parameter
from repository_loader.traffic import Traffic

MAX_BATCH_SIZE = 512


class ModelReplica:
    """One replica of a deployment group: one model version (isolated) or many (packed).

    `user_config["load"]` is JSON with `models` (as `HostedModel.to_dict` writes them), `watch` (the deployments that
    ensembles in here send steps to), `scaled` (the models of steps there that scale with their load), `traffic` (of the
    models of steps, until the directory is known), `spill` (see `LaneServer`) and `batching` (see `infer`); a change of
    it is applied in place.
    """

    __module__ = "eagleray"

    @tells_why_it_fails
    def __init__(self, options: ReplicaOptions, *bound: DeploymentHandle) -> None:
        keep_freed_pages()
        wake_main_thread_less()
        leave_start_folder()
        keep_all_from_children()
        del bound  # older versions of the model, named so that Serve deploys them too
        self._strict = options.strict
        self._max_batch_duration_s = options.max_batch_duration_s
        self._loop = asyncio.get_running_loop()
        node_id = ray.get_runtime_context().get_node_id()
        self._node = node = NodeFolder(node_id)
        self._log = NodeLog(node.path, options.log)
        self._log.follow(self._loop)
        show_model_output(self._log.is_on)
        hide_arguments()
        self._counters = NodeCounters(node)
        self._fleet = Fleet(node_id, self._loop, self._routes_changed, Refusals(self._counters))
        regions = Regions(RegionTable(node))
        gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", ())
        given = options.rate_limit
        self._limiter = None if given is None else NodeRateLimiter(node.path, given, self._loop)
        self._cache = open_response_cache(node.path, options.response_cache_bytes)
        self._host = ModelHost(
            self._loop,
            self._fleet,
            options.limits,
            self._counters,
            regions,
            shared=False,
            changed=self._model_changed,
            cache=self._cache,
            retry_count=options.load_retry_count,
            thread_count=options.load_thread_count,
            max_queue_s=options.max_queue_s,
            limiter=self._limiter,
            metrics=options.metrics,
            gpu_uuid=GpuReader().uuid(gpus) if gpus else "",
        )
        self._watch = GroupWatch(self._fleet, self._loop, options.unload_timeout_s)
        self._owner = ""
        own = serve.get_replica_context()
        self._departure = Departure(
            self._loop, own.app_name, options.drain_timeout_s, max(options.drain_timeout_s, options.unload_timeout_s)
        )
        self._neighbours = DirectoryNeighbours(
            self._loop,
            self._fleet,
            self._watch,
            self._host.router,
            lambda: with_plain_calls(handle_of(CONTROLLER, self._owner)),
        )
        self._host.calls.neighbours = self._neighbours
        self._calls = HandleCalls(self._host, self._loop)
        self._address = LaneAddress(get_node_ip_address() if options.lane_tcp else None, gpus)
        mark = self._address.death_mark
        self._host.unload_timeout_s = options.unload_timeout_s
        self._guard = self._host.guard = StallGuard(self._loop, options.max_batch_duration_s, mark.descriptor)
        self._lane = LaneServer(self._address.secret, self._loop, lane_count_changed=mark.set_lane_count)
        self._host.former.gone = self._lane.forget_former
        self._sampler = StateSampler(self._host, self._fleet, self._counters, options.metrics.interval_s)
        ray_metrics = RayMetrics(self._counters, own.replica_id.unique_id, own.app_name, options.metrics.interval_s)
        sweep = CounterSweep(self._neighbours.directory, self._counters.give_back, [self._host.let_go])
        self._beside = SideTasks(self._loop)
        self._beside.begin(self._sampler.run(), "state of the models")
        self._beside.begin(regions.run(), "regions that are no longer registered")
        self._beside.begin(ray_metrics.run(), "metrics of Ray")
        self._beside.begin(sweep.run(), "counts of versions that are gone")
        self._listening = False
        self._applying: set[asyncio.Task[Any]] = set()

    async def reconfigure(self, user_config: dict[str, str]) -> None:
        """Load what is new and unload what is gone; a replica that serves already does so behind Serve's back.

        While Serve waits for a replica to take a change, it does not count it as running. What came of it is told by
        `describe`.

        Raises:
            ModelLoadError: at the start, in a group of one model, which then fails as a deployment; in a packed group
                the failure is that model's state and the others serve.
        """
        load = orjson.loads(user_config["load"])
        self.infer_batch.set_max_batch_size(load["batching"]["max_batch_size"])
        self.infer_batch.set_batch_wait_timeout_s(load["batching"]["wait_s"])
        self._owner = user_config[OWNER_KEY]
        self._watch.want("steps", {(app, deployment) for app, deployment in load["watch"]})
        self._neighbours.have_scaled(load["scaled"])
        if load["watch"] or len(load["models"]) > 1:
            self._neighbours.follow()  # models here may ask others for the version that takes requests
        self._lane.spill = load["spill"]
        if not self._neighbours.directory.known:
            self._host.router.set_traffic({name: Traffic.from_dict(row) for name, row in load["traffic"].items()})
        self._host.loads.files = OverrideFiles(self._node.path, KeptFiles(ClusterTable(), self._owner))
        applied = self._in_background(self._host.apply(load["models"]))
        if self._listening:
            return
        await self._may_start(applied)
        if self._strict and self._host.failures:
            raise ModelLoadError("; ".join(reason for reason, _ in self._host.failures.values()))
        self._listening = True
        await self._lane.listen(self._address.sockets)

    async def _may_start(self, applied: asyncio.Task[Any]) -> None:
        """Wait until all models have been tried, or one of them waits for another that it has had loaded.

        That one may have its place here too, which Serve does not tell a replica that starts.
        """
        if not self._strict:
            loads = self._loop.create_task(self._neighbours.loads.wait())
            await asyncio.wait([applied, loads], return_when=asyncio.FIRST_COMPLETED)
            loads.cancel()
        if self._strict or applied.done():
            await applied

    async def try_again(self, versions: list[tuple[str, int]]) -> None:
        """Begin to load what had been loaded before, and failed here; `describe` tells what came of it."""
        self._in_background(self._host.try_again(versions))

    def _in_background(self, change: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        self._applying.add(task := self._loop.create_task(change))
        task.add_done_callback(self._applying.discard)
        return task

    def _routes_changed(self) -> None:
        self._neighbours.changed()
        self._host.late.routes_changed()

    def _model_changed(self, name: str, version: int, served: ServedModel | None) -> None:
        self._lane.set_model(name, version, served, "" if served else self._host.fault(name, version))

    async def check_health(self) -> None:
        """Fail, so that Serve replaces this replica, when a model in it is stuck; ingresses hear of it at once.

        Raises:
            ModelFaultError: with the reason that the repository index shows.
        """
        try:
            self._host.check(self._max_batch_duration_s)
        except ModelFaultError:
            for (name, version), fault in self._host.faults.items():
                self._lane.set_model(name, version, None, fault)
            raise

    def record_replica_metadata(self) -> dict[str, Any]:
        """Publish the lane's address to every router."""
        return self._address.metadata()

    def describe(self) -> dict[str, Any]:
        """Return what is loaded and what failed: `{"models": [[name, version, reason, seconds, digest]], "pid": …}`."""
        return {"models": self._host.report(), "pid": os.getpid()}

    def is_busy(self) -> bool:
        """Whether requests are inside, or what was unloaded still has some."""
        return bool(self._lane.inflight_count or self._calls.open_count or self.is_answering())

    def is_answering(self) -> bool:
        """Whether something that was unloaded, or lacks a step since, has not yet answered what it has taken."""
        return self._host.is_answering

    async def infer(
        self,
        inputs: dict[str, np.ndarray],
        outputs: list[str] | None = None,
        parameters: dict[str, Parameter] | None = None,
        request_id: str = "",
        model_name: str = "",
        model_version: int | str = -1,
    ) -> dict[str, np.ndarray]:
        """Run one request that comes by a deployment handle and return its outputs by name.

        Args:
            inputs: arrays as a client would send them, the batch dimension included.
            outputs: the outputs to return, all when None.
            parameters: custom request parameters, for the model.
            request_id: echoed in error messages.
            model_name: needed only where a replica serves more than one model.
            model_version: a number, or its text as Triton's clients write it; -1 and "" are the highest.

        Raises:
            ServingError: of the kind and with the text that an HTTP client would get.
        """
        call = HandleCall(inputs, outputs, parameters, request_id, model_name, model_version)
        # The answer has no name here: an error has this frame, and the answer the error.
        arrays: dict[str, np.ndarray] = await (await self.infer_batch(call))
        return arrays

    @serve.batch(  # type: ignore[untyped-decorator]
        max_batch_size=MAX_BATCH_SIZE, batch_wait_timeout_s=0.0, max_concurrent_batches=64
    )
    async def infer_batch(self, calls: list[HandleCall]) -> list[Answer]:
        """Bring the handle calls that arrived together into the core as one submission, and return their answers to be.

        The core's own batcher decides what runs together; here one loop turn carries them all. No call waits for
        another's answer.
        """
        return [self._calls.submit(call) for call in calls]

    def expect_end(self) -> None:
        """Take that Serve may end this replica soon, as fewer will do: it may take as long as a batch then."""
        self._departure.expect()

    async def __del__(self) -> None:
        """Drain: Serve calls this once it sends nothing more."""
        await self._lane.drain(self._departure.begin(), self._departure.left_s)
        self._beside.cancel()
        await self._host.close(self._departure.rest_s())
        self._neighbours.close()
        await self._fleet.close()
        self._guard.stop()
        self._address.remove()
        self._log.close()
        if self._limiter is not None:
            self._limiter.close()
        if self._cache is not None:
            self._cache.close()
        self._counters.close()
