"""How a process loads what it hosts: files, instances, codecs, statistics."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import Any
from weakref import WeakSet

from deployments.backends.backend import ModelLoadError
from deployments.core import loader
from deployments.core.clock import Clock
from deployments.core.counts import IsGone, Rows
from deployments.core.latency_recorder import first_response_bounds
from deployments.core.metrics_options import MetricsOptions
from deployments.core.model_version import ModelVersion
from deployments.core.rate_limit import RateLimiter
from deployments.core.response_cache import ResponseCache
from deployments.core.statistics import ModelStatistics
from deployments.lane.slow_codec import SlowCodec
from deployments.lane.work_queue import WorkQueue
from deployments.log.line_format import about
from deployments.replica.changes import Key
from deployments.replica.host_router import HostRouter
from deployments.replica.hosted_model import HostedModel, key_of, release
from deployments.replica.model_calls import LoadedModel, ModelCalls
from deployments.replica.model_codecs import input_gpus, wire_codecs
from deployments.replica.override_files import OverrideFiles
from deployments.replica.served_model import ServedModel
from deployments.replica.shared_memory import Regions
from protocol.errors import ServingError
from protocol.limits import Limits

logger = logging.getLogger(__name__)


class HostedLoads:
    """Makes served models of what is told of them; see `ModelHost` for what they are made with.

    `files` brings what clients have sent for a model. What is loaded is counted until its version is gone.
    """

    def __init__(
        self,
        clock: Clock,
        router: HostRouter,
        calls: ModelCalls,
        slow_queue: WorkQueue,
        limits: Limits,
        counters: Rows,
        regions: Regions,
        *,
        cache: ResponseCache | None,
        max_queue_s: float,
        limiter: RateLimiter | None,
        metrics: MetricsOptions,
        gpu_uuid: str,
    ) -> None:
        self._clock = clock
        self._router = router
        self._calls = calls
        self._slow_queue = slow_queue
        self._limits = limits
        self._counters = counters
        self._regions = regions
        self._cache = cache
        self._max_queue_s = max_queue_s
        self._limiter = limiter
        self._metrics = metrics
        self._gpu_uuid = gpu_uuid
        self._counting: WeakSet[ModelStatistics] = WeakSet()
        self.files: OverrideFiles | None = None

    async def load(self, data: dict[str, Any], wanted: Callable[[], bool]) -> ServedModel | str | None:
        """Load a version (`HostedModel.to_dict`); returns why that cannot be, None where it is `wanted` no more."""
        started = time.monotonic()
        name, version = key_of(data)
        held: list[int] = []
        model: ModelVersion | None = None
        calls = LoadedModel(self._calls)
        try:
            await self._bring(data)
            hosted = await asyncio.to_thread(HostedModel.from_dict, data)
            signatures = hosted.step_signatures()
            self._router.set_signatures(signatures)
            hosted, held = await asyncio.to_thread(hosted.provided)
            labels = hosted.read_labels()
            model = await loader.load(
                hosted.package,
                hosted.specs,
                self._clock,
                self._router,
                signatures,
                None if self._cache is None else self._cache.of(data["digest"]),
                self._max_queue_s,
                calls,
                self._limiter,
            )
            calls.loading = False
            on_gpu = any(spec.kind == "GPU" for spec in hosted.specs)
            gpus = await asyncio.to_thread(input_gpus, hosted)
            if not wanted():
                await model.close()
                release(held)
                return None
            model.statistics.count_in(self._counters, self._gpu_uuid if on_gpu else "")
            self._counting.add(model.statistics)
            model.statistics.record_latencies(self._metrics, first_response_bounds(model.package.config))
            given = model.signature, str(version), self._limits, labels, self._regions
            codecs, slow_codecs = (wire_codecs(*given, on_gpus=bool(gpus)) for _ in range(2))
        except ModelLoadError as error:
            release(held)
            return error.reason or "it did not load"
        except Exception as error:
            logger.exception("failed to load '%s' version %d", name, version, extra=about(name, version))
            if model is not None:
                await model.close()
            release(held)
            return f"{type(error).__name__}: {error}"
        slow, load_s = SlowCodec(slow_codecs, self._slow_queue), time.monotonic() - started
        return ServedModel(model, codecs, slow, gpus, digest=data["digest"], load_s=load_s, held=held)

    async def _bring(self, data: dict[str, Any]) -> None:
        """Have the files here that a client has sent for a model."""
        if self.files is not None:
            try:
                await asyncio.to_thread(self.files.bring, data)
            except ServingError as error:
                raise ModelLoadError(error.message) from error

    def let_go(self, is_gone: IsGone, served: Collection[Key]) -> None:
        """Have models that are not served any more count in their rows no longer, where their version is gone.

        Parts of a model refer to each other in circles, which may stay in memory for long.
        """
        for statistics in list(self._counting):
            if statistics.whose not in served and is_gone(*statistics.whose):
                statistics.let_go()
                self._counting.discard(statistics)
