"""The dynamic batcher of a model that sets no queue policy, no delay and no preferred sizes: nearly all of them."""

from deployments.backends.backend import Batch
from deployments.core.clock import Clock
from deployments.core.instance_pool import InstancePool
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.equal_inputs import EqualInputs
from deployments.schedulers.even_batches import EvenBatches
from deployments.schedulers.late_requests import take_along
from deployments.schedulers.returning_clients import SLOW_BATCH_NS, ReturningClients
from deployments.schedulers.scheduler import PlainQueue, PoolScheduler
from protocol.infer import InferRequest
from protocol.signature import Signature


class FifoBatcher(PoolScheduler):
    """Sends as many of the waiting requests as fit, in order, whenever an instance is idle.

    It waits for more only as `ReturningClients` says. The first request that does not fit ends the batch. Of the only
    instance on a GPU, batches are as large as `EvenBatches` says.
    """

    def __init__(self, signature: Signature, pool: InstancePool, statistics: ModelStatistics, clock: Clock) -> None:
        self._requests = PlainQueue()
        super().__init__(self._requests, pool, statistics, clock)
        self._max_rows = max(1, signature.max_batch_size)
        self._equal_inputs = EqualInputs.of(signature)
        self._clients = ReturningClients(clock, self._wait_is_over)
        self._even = EvenBatches(pool.filled) if pool.on_gpu and pool.instance_count == 1 else None
        self._next_rows = self._max_rows
        pool.grow = self._grow

    def _finished(self, batch: Batch) -> None:
        if self._even is not None:
            share = self._even.share(batch.rows, sum([request.rows for request in self._requests]))
            self._next_rows = min(share or self._max_rows, self._max_rows)
        self._start_another(batch)
        self._answer(batch)
        elapsed_ns = batch.end_ns - batch.start_ns
        if elapsed_ns >= SLOW_BATCH_NS and batch.late is None and not self._pool.running_count:
            self._clients.answered(len(batch.requests), len(self._requests), elapsed_ns)
        self._go_on()

    def _wait_is_over(self) -> None:
        self._clients.end(len(self._requests))
        self._go_on()

    def _grow(self, batch: Batch) -> None:
        sizes = frozenset((self._max_rows,))
        self._statistics.counts.pending_count -= take_along(batch, self._requests, sizes, self._equal_inputs)

    def _fill_a_batch(self) -> bool:
        return sum(request.rows for request in self._requests) >= self._max_rows

    def _next_batch(self) -> Batch | None:
        waiting = self._requests
        if self._clients.are_awaited:
            if not (self._clients.are_back(len(waiting)) or self._drained or self._fill_a_batch()):
                return None
            self._clients.end(len(waiting))
        equal_inputs = self._equal_inputs
        max_rows, self._next_rows = self._next_rows, self._max_rows
        taken: list[InferRequest] = []
        key = None
        rows = 0
        while waiting:
            request = waiting[0]
            if request.cancelled:
                self._fail_cancelled(waiting.popleft())
                continue
            if taken and rows + request.rows > max_rows:
                break
            if equal_inputs is not None:
                own_key = equal_inputs.key(request)
                if taken and own_key != key:
                    break
                key = own_key
            taken.append(waiting.popleft())
            rows += request.rows
        if not taken:
            return None
        reason = "full" if rows >= self._max_rows else "next_differs" if waiting else "none_waits"
        return Batch(taken, rows, reason)
