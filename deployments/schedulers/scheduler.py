"""The seam between a model version and its scheduler, and what the schedulers over an instance pool share."""

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Protocol

from deployments.backends.backend import Batch
from deployments.core.clock import Clock
from deployments.core.inline_gate import INLINE_LIMIT_US
from deployments.core.instance_pool import InstancePool
from deployments.core.statistics import CANCELED, OTHER, REJECTED, ModelStatistics
from deployments.core.traced_request import begin_streams, note_batch, traced_in
from deployments.log.line_format import about_requests
from deployments.schedulers.outage import LASTS, Outage
from deployments.schedulers.queue_bound import ALWAYS_TAKEN, QueueBound
from protocol.errors import Cancelled, QueueFull, ServingError, Unavailable
from protocol.infer import InferRequest, InferResponse
from protocol.normalise import request_prefix

log = logging.getLogger(__name__)

_SLOW_NS: Final = INLINE_LIMIT_US * 1000
"""A shorter batch runs on the loop's thread, which cannot write answers meanwhile."""
_SWEEP_S: Final = 0.02
"""How long a cancelled request may still wait: a sweep looks at all that wait, and must not do so for each of them."""

STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"


class Scheduler(Protocol):
    """Decides when a model version's requests run; every call comes on the loop's thread."""

    @property
    def oldest_queued_ns(self) -> int:
        """When the request came that waits the longest, 0 when none does."""
        ...

    def submit(self, request: InferRequest) -> None:
        """Take a request; every outcome comes through its `reply`, never before this returns."""
        ...

    def cancel(self, request: InferRequest) -> None:
        """Give a request up; its reply still comes."""
        ...

    def drain(self, drained: Callable[[], None]) -> None:
        """Refuse new requests from now on, and call `drained` once everything taken before is answered."""
        ...

    def abandon(self) -> None:
        """Fail what is still queued; what runs already may finish."""
        ...


class RequestQueue(Protocol):
    """Where requests wait for an instance."""

    def append(self, request: InferRequest, /) -> None:
        """Take a request; raises QueueFull when there is no room for it."""
        ...

    def popleft(self) -> InferRequest:
        """Remove the request that is first in order."""
        ...

    def remove_cancelled(self) -> list[InferRequest]:
        """Remove the cancelled requests and return them."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[InferRequest]: ...


class PlainQueue(deque[InferRequest]):
    """Requests in the order in which they came."""

    def remove_cancelled(self) -> list[InferRequest]:
        """Remove the cancelled requests and return them."""
        cancelled = [request for request in self if request.cancelled]
        if cancelled:
            kept = [request for request in self if not request.cancelled]
            self.clear()
            self.extend(kept)
        return cancelled


class PoolScheduler:
    """Queues requests until an instance is idle; a subclass says in `_next_batch` which of them run together.

    Requests that arrive in the same turn of the loop are looked at together: the first asks for a dispatch in the next
    turn. An instance that becomes free asks for one too, so that input which has arrived meanwhile is read first.
    """

    def __init__(self, queue: RequestQueue, pool: InstancePool, statistics: ModelStatistics, clock: Clock) -> None:
        self._queue = queue
        self._pool = pool
        self._statistics = statistics
        self._now_ns = clock.now_ns
        self._call_soon = clock.call_soon
        self._call_later = clock.call_later
        self._dispatch_due = False
        self._forming = False
        self._sweep_due = False
        self._drained: Callable[[], None] | None = None
        self._bound: QueueBound | None = None
        self._bound_from_count = sys.maxsize
        self._late = pool.late
        self._outage = Outage(clock, lambda: pool.alive, self._give_up_waiting)
        pool.finished = self._finished
        pool.waits = statistics.count_pending
        pool.died = self._outage.look
        pool.revived = self._revived

    @property
    def oldest_queued_ns(self) -> int:
        """When the request came that is first in order, 0 when none waits."""
        first = next(iter(self._queue), None)
        return 0 if first is None else first.queued_ns

    def bound_queue(self, max_queue_s: float) -> None:
        """Refuse, from now on, what comes while more waits than the model answers in so many seconds."""
        self._bound = QueueBound(max_queue_s, self._statistics)
        self._bound_from_count = ALWAYS_TAKEN

    def submit(self, request: InferRequest) -> None:
        """Queue the request."""
        now_ns = self._now_ns()
        request.queued_ns = now_ns
        if not request.received_ns:
            request.received_ns = now_ns
        if self._drained is not None:
            return self._refuse(request, Unavailable(STOPPING))
        if len(self._queue) >= self._bound_from_count and self._is_full(now_ns):
            return self._refuse(request, QueueFull())
        try:
            self._queue.append(request)
        except QueueFull as error:
            if not self._make_room() and not self._dispatch_at_once():
                return self._refuse(request, error)
            return self.submit(request)
        self._statistics.counts.pending_count += 1
        if self._pool.idle and not self._dispatch_due:
            self._dispatch_due = True
            self._call_soon(self._dispatch)

    def cancel(self, request: InferRequest) -> None:
        """Mark the request; if it waits it is answered soon, together with others that are given up meanwhile."""
        request.cancelled = True
        if self._queue and not self._sweep_due:
            self._sweep_due = True
            self._call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweep_due = False
        self._make_room()
        if self._drained is not None:
            self._check_drained()

    def drain(self, drained: Callable[[], None]) -> None:
        """Refuse new requests, and call `drained` in a later turn, once nothing is queued or running."""
        self._drained = drained
        self._call_soon(self._dispatch)

    def abandon(self) -> None:
        """Fail the queued requests as a stopping server does."""
        while self._queue:
            self._fail(self._queue.popleft(), Unavailable(STOPPING), OTHER)

    def _revived(self) -> None:
        self._outage.look()
        self._go_on()

    def _give_up_waiting(self) -> bool:
        """Fail the queued requests, which no instance is there for; returns whether others may come."""
        for _ in range(len(self._queue)):
            self._fail(self._queue.popleft(), Unavailable(LASTS), OTHER)
        self._go_on()
        return self._drained is None

    def _is_full(self, now_ns: int) -> bool:
        return self._bound is not None and self._bound.is_reached(len(self._queue), now_ns)

    def _make_room(self) -> bool:
        """Take out of the queue what need not wait any more; returns whether there was anything."""
        cancelled = self._queue.remove_cancelled()
        for request in cancelled:
            self._fail_cancelled(request)
        return bool(cancelled)

    def _dispatch_at_once(self) -> bool:
        """Run what came in this turn of the loop, if an instance is idle; returns whether that made room."""
        queued_count = len(self._queue)
        if self._dispatch_due and not self._forming:
            self._dispatch()
        return len(self._queue) < queued_count

    def _next_batch(self) -> Batch | None:
        """Take the next batch out of the queue, or None when nothing shall run now."""
        raise NotImplementedError

    def _dispatch(self) -> None:
        self._dispatch_due = False
        while self._queue and self._pool.idle and not self._dispatch_due:
            self._forming = True  # which may answer requests, whose clients send others
            batch = self._next_batch()
            self._forming = False
            if batch is None:
                break
            self._statistics.counts.pending_count -= len(batch.requests)
            self._pool.run(batch)
        if self._drained is not None:
            self._check_drained()

    def _finished(self, batch: Batch) -> None:
        self._start_another(batch)
        self._answer(batch)
        self._go_on()

    def _start_another(self, before: Batch) -> None:
        """Run what waits before the answers of a batch are written, where a GPU would have nothing to do until then."""
        is_slow = before.end_ns - before.start_ns >= _SLOW_NS
        pool = self._pool
        if is_slow and self._queue and pool.on_gpu and self._drained is None:
            inline, pool.may_run_inline = pool.may_run_inline, False  # the answers would wait for it
            try:
                self._dispatch()
            finally:
                pool.may_run_inline = inline

    def _go_on(self) -> None:
        if self._queue:
            self._schedule_dispatch()
        elif self._drained is not None:
            self._check_drained()

    def _schedule_dispatch(self) -> None:
        if not self._dispatch_due:
            self._dispatch_due = True
            self._call_soon(self._dispatch)

    def _answer(self, batch: Batch) -> None:
        self._statistics.record_batch(batch)
        traced: list[str] | None = None
        for request, result in zip(batch.requests, batch.results, strict=not batch.answered):
            if request.trace is not None:
                if traced is None:
                    traced = traced_in(batch)
                note_batch(request, batch, traced)
            try:
                request.reply(request, result)
            except Exception:
                _note_failed(request)
        if batch.late is not None and not batch.results:  # else it was given up
            begin_streams(batch, batch.start_ns)
            self._late.follow(batch, self._answer_late)

    def _answer_late(self, request: InferRequest, result: InferResponse | ServingError) -> None:
        now_ns = self._now_ns()
        self._statistics.record_late(now_ns, request, result)
        if request.trace is not None:
            request.trace.mark("COMPUTE_OUTPUT_START", now_ns)
            request.trace.mark("COMPUTE_END", now_ns)
        reply(request, result)
        if self._drained is not None:
            self._check_drained()

    def _check_drained(self) -> None:
        at_rest = not self._pool.running_count and not self._late.count
        if not self._queue and at_rest and self._drained is not None:
            self._outage.end()
            drained, self._drained = self._drained, _already_drained
            drained()

    def _refuse(self, request: InferRequest, error: ServingError) -> None:
        if isinstance(error, QueueFull) and not request.over_lane:
            self._statistics.record_failure(REJECTED, 0)
        told = type(error)(request_prefix(request.id) + error.message)
        told.refused = True
        self._call_soon(partial(reply, request, told))

    def _fail(self, request: InferRequest, error: ServingError, reason: str) -> None:
        """Answer a request that has left the queue without having run."""
        request.started_ns = 0  # the failure is counted here, also where an earlier run has rescheduled it
        self._statistics.counts.pending_count -= 1
        self._statistics.record_failure(reason, self._now_ns() - request.received_ns)
        reply(request, error)

    def _fail_cancelled(self, request: InferRequest) -> None:
        self._fail(request, Cancelled(""), CANCELED)


def reply(request: InferRequest, result: InferResponse | ServingError) -> None:
    """Answer a request; an exception of whoever waits for it is logged, so that others are answered too."""
    try:
        request.reply(request, result)
    except Exception:
        _note_failed(request)


def _note_failed(request: InferRequest) -> None:
    log.exception("the reply to request '%s' failed", request.id, extra=about_requests("", None, (request,)))


def _already_drained() -> None:
    pass
