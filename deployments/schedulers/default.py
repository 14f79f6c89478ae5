"""The scheduler of models that choose none: each request is a batch of its own, first come, first served."""

from deployments.backends.backend import Batch
from deployments.core.clock import Clock
from deployments.core.instance_pool import InstancePool
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.scheduler import PlainQueue, PoolScheduler

_TURN_NS = 1_000_000


class DefaultScheduler(PoolScheduler):
    """Runs requests one by one on whichever instance is idle.

    Since nothing is gained by waiting for company, requests that run inline follow each other within one turn of the
    loop until a millisecond has passed.
    """

    def __init__(self, pool: InstancePool, statistics: ModelStatistics, clock: Clock) -> None:
        super().__init__(PlainQueue(), pool, statistics, clock)

    def _next_batch(self) -> Batch | None:
        while self._queue:
            request = self._queue.popleft()
            if not request.cancelled:
                return Batch([request], request.rows)
            self._fail_cancelled(request)
        return None

    def _dispatch(self) -> None:
        self._dispatch_due = False
        turn_ends_ns = self._now_ns() + _TURN_NS
        while self._queue and self._pool.idle:
            batch = self._next_batch()
            if batch is None:
                break
            self._statistics.counts.pending_count -= 1
            self._pool.run(batch)
            if batch.end_ns > turn_ends_ns:  # still 0 when it went to a thread
                break
        if self._drained is not None:
            self._check_drained()
