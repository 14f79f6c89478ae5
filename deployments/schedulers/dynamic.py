"""The dynamic batcher with everything it can be asked for: sizes, delay, priorities, queue policies, ordering."""

import os
from collections import deque
from typing import NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelDynamicBatching

from deployments.backends.backend import Batch
from deployments.core.clock import NEVER_NS, Clock, Timer
from deployments.core.instance_pool import InstancePool
from deployments.core.statistics import REJECTED, ModelStatistics
from deployments.schedulers.equal_inputs import EqualInputs
from deployments.schedulers.late_requests import take_along
from deployments.schedulers.priority_queue import PriorityQueue
from deployments.schedulers.scheduler import PoolScheduler
from protocol.errors import Unavailable
from protocol.infer import InferRequest
from protocol.signature import Signature

HOLD_VARIABLE = "TRITONSERVER_DELAY_SCHEDULER"


class _Pending(NamedTuple):
    """The requests at the head of the queue that would fit in one batch."""

    requests: int
    rows: int
    closed: bool
    oldest_ns: int


class DynamicBatcher(PoolScheduler):
    """Sends the head of the queue when it has a preferred size, cannot grow, or has waited `max_queue_delay`.

    Without a delay it never waits: the largest preferred prefix goes, else all that fits. Requests are taken strictly
    in queue order; the first that does not fit closes the batch. With `preserve_ordering` batches are answered in the
    order in which they were formed. The variable `TRITONSERVER_DELAY_SCHEDULER=N` holds the first batch back until N
    requests are queued.
    """

    def __init__(
        self,
        batching: ModelDynamicBatching,
        signature: Signature,
        pool: InstancePool,
        statistics: ModelStatistics,
        clock: Clock,
    ) -> None:
        self._requests = PriorityQueue(batching)
        super().__init__(self._requests, pool, statistics, clock)
        self._max_rows = max(1, signature.max_batch_size)
        self._preferred = frozenset(batching.preferred_batch_size) or frozenset((self._max_rows,))
        self._max_preferred = max(self._preferred)
        self._delay_ns = batching.max_queue_delay_microseconds * 1000
        self._equal_inputs = EqualInputs.of(signature)
        self._running: deque[Batch] | None = deque() if batching.preserve_ordering else None
        self._hold_count = held_count(HOLD_VARIABLE)
        self._timer: Timer | None = None
        self._timer_ns = NEVER_NS
        pool.grow = self._grow

    @property
    def oldest_queued_ns(self) -> int:
        """When the request came that waits the longest, of whatever priority, 0 when none does."""
        return self._requests.oldest_queued_ns

    def submit(self, request: InferRequest) -> None:
        """Queue the request, and see to it that its timeout is noticed while it waits."""
        super().submit(request)
        self._wake_at(self._requests.next_deadline_ns)

    def _next_batch(self) -> Batch | None:
        if len(self._requests) < self._hold_count and self._drained is None:
            return None
        self._hold_count = 0
        now_ns = self._now_ns()
        self._drop_expired(now_ns)
        pending, preferred = self._scan()
        if not pending.requests:
            return None
        delay_over = bool(self._delay_ns) and now_ns - pending.oldest_ns >= self._delay_ns
        if preferred is not None and not delay_over:
            pending = preferred
        elif not (
            pending.closed or delay_over or not self._delay_ns or pending.rows >= self._max_preferred or self._drained
        ):
            self._wake_at(pending.oldest_ns + self._delay_ns)
            return None
        reason = self._reason(pending, delay_over=delay_over)
        batch = Batch([self._requests.popleft() for _ in range(pending.requests)], pending.rows, reason)
        if self._running is not None:
            self._running.append(batch)
        return batch

    def _reason(self, pending: _Pending, *, delay_over: bool) -> str:
        """Return why a batch leaves, as `BatchReasons` names it."""
        if pending.rows >= self._max_rows:
            return "full"
        if pending.rows in self._preferred:
            return "preferred"
        if delay_over:
            return "delay"
        if pending.closed:
            return "next_differs"
        return "stopping" if self._delay_ns and self._drained else "none_waits"

    def _scan(self) -> tuple[_Pending, _Pending | None]:
        """Return the longest batch at the head of the queue, and its longest prefix of a preferred size."""
        count = rows = 0
        oldest_ns = NEVER_NS
        key: tuple[object, ...] | None = None
        preferred: _Pending | None = None
        for request in self._requests:
            if request.cancelled:
                self._make_room()
                return self._scan()
            own_key = self._equal_inputs.key(request) if self._equal_inputs is not None else None
            if count:
                if rows + request.rows > self._max_preferred and preferred is None:
                    preferred = _Pending(count, rows, True, oldest_ns)
                if rows + request.rows > self._max_rows or own_key != key:
                    return _Pending(count, rows, True, oldest_ns), preferred
            key = own_key
            count += 1
            rows += request.rows
            oldest_ns = min(oldest_ns, request.queued_ns)
            if rows in self._preferred:
                preferred = _Pending(count, rows, True, oldest_ns)
        return _Pending(count, rows, False, oldest_ns), preferred

    def _grow(self, batch: Batch) -> None:
        if self._running is not None and batch is not self._running[-1]:
            return  # what comes now is answered after the batches behind this one
        count = take_along(batch, self._requests, self._preferred, self._equal_inputs)
        self._statistics.counts.pending_count -= count

    def _finished(self, batch: Batch) -> None:
        if self._running is None:
            self._start_another(batch)
            self._answer(batch)
        else:
            while self._running and self._running[0].end_ns:  # set by the pool when a batch is done
                self._answer(self._running.popleft())
        self._go_on()

    def _drop_expired(self, now_ns: int) -> None:
        for request in self._requests.expire(now_ns):
            self._fail(request, Unavailable("Request timeout expired"), REJECTED)

    def _wake_at(self, when_ns: int) -> None:
        if when_ns >= self._timer_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = when_ns
        self._timer = self._call_later(max(0, when_ns - self._now_ns()) / 1e9, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._timer_ns = NEVER_NS
        self._drop_expired(self._now_ns())
        self._wake_at(self._requests.next_deadline_ns)
        self._dispatch()


def held_count(variable: str) -> int:
    """Return how many requests are waited for as an environment variable says, 0 when it is not set."""
    value = os.environ.get(variable, "")
    return int(value) if value.isdecimal() else 0


def needs_policies(batching: ModelDynamicBatching, max_batch_size: int) -> bool:
    """Whether a model asks for more than `FifoBatcher` does."""
    policy = batching.default_queue_policy
    return bool(
        batching.max_queue_delay_microseconds
        or batching.preserve_ordering
        or batching.priority_levels
        or policy.max_queue_size
        or policy.default_timeout_microseconds
        or set(batching.preferred_batch_size) - {max_batch_size}
        or held_count(HOLD_VARIABLE)
    )
