"""One loaded version of a model: what requests are given to."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from deployments.core.clock import Clock
from deployments.core.instance_pool import CLOSE_TIMEOUT_S, InstancePool
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.scheduler import Scheduler
from protocol.infer import InferRequest
from protocol.signature import Signature
from repository_loader.package import ModelPackage

log = logging.getLogger(__name__)

DRAIN_TIMEOUT_S = 30.0


class ModelVersion:
    """A model version with its scheduler, its instances and its statistics.

    `submit` takes a request whose outcomes all come through its `reply`, and `cancel` gives one up; both are the
    scheduler's own methods. `pool` is None for an ensemble.
    """

    __slots__ = ("_clock", "cancel", "package", "pool", "scheduler", "signature", "statistics", "submit")

    def __init__(
        self,
        package: ModelPackage,
        signature: Signature,
        statistics: ModelStatistics,
        scheduler: Scheduler,
        pool: InstancePool | None,
        clock: Clock,
    ) -> None:
        self.package = package
        self.signature = signature
        self.statistics = statistics
        self.scheduler = scheduler
        self.pool = pool
        self.submit: Callable[[InferRequest], None] = scheduler.submit
        self.cancel: Callable[[InferRequest], None] = scheduler.cancel
        self._clock = clock

    @property
    def name(self) -> str:
        """The model's name."""
        return self.package.name

    @property
    def version(self) -> int:
        """The version's number."""
        return self.package.version

    def snapshot(self) -> dict[str, Any]:
        """Return the statistics, JSON-safe."""
        return self.statistics.snapshot(self.name, self.version, self._clock.now_ns())

    async def close(self, timeout_s: float = DRAIN_TIMEOUT_S) -> None:
        """Refuse new requests, answer those that were taken, and free the instances.

        What is still queued after `timeout_s` is refused; a batch that still runs then gets as long again to finish.
        """
        drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.scheduler.drain(lambda: None if drained.done() else drained.set_result(None))
        try:
            await asyncio.wait_for(drained, timeout_s)
        except TimeoutError:
            log.warning("model '%s' version %d did not drain in %g s", self.name, self.version, timeout_s)
            self.scheduler.abandon()
        if self.pool is not None:
            await asyncio.to_thread(self.pool.close, min(timeout_s, CLOSE_TIMEOUT_S))
