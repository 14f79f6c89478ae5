"""An instance pool under the rate limiter: an instance runs a batch when its resources are free."""

from collections.abc import Callable, Sequence
from functools import partial

from deployments.backends.backend import Batch, ModelInstance
from deployments.core.clock import Clock
from deployments.core.instance_pool import CLOSE_TIMEOUT_S, InstancePool, Worker, fail, failure
from deployments.core.rate_limit import RateLimiter
from deployments.schedulers.scheduler import STOPPING
from protocol.errors import Cancelled, Internal, Unavailable
from protocol.infer import InferRequest


class LimitedPool(InstancePool):
    """Has each batch wait for the resources of the instance that is to run it, which are free again right after.

    `keys` are those of the instances in the limiter, "" for one that needs nothing. What waits runs on such an instance
    instead, once one is idle, and before what waits for a shorter time. The wait counts as time in the queue, its
    requests as some that wait there, and the batch takes along what came meanwhile and fits.
    """

    def __init__(
        self, instances: Sequence[ModelInstance], clock: Clock, limiter: RateLimiter, keys: Sequence[str]
    ) -> None:
        super().__init__(instances, clock)
        self._limiter = limiter
        by_instance = dict(zip(map(id, instances), keys, strict=True))
        self._keys = {worker: by_instance[id(worker.instance)] for worker in self._workers}
        self._holders: dict[Batch, str] = {}
        self._waiting: dict[Batch, Worker] = {}
        self._wanting: set[Worker] = set()

    @property
    def finished(self) -> Callable[[Batch], None]:
        """Called with each batch that has run, after its resources are free."""
        return self._finish

    @finished.setter
    def finished(self, tell: Callable[[Batch], None]) -> None:
        self._tell = tell

    @property
    def running_count(self) -> int:
        """How many instances are at work, or wait for their turn."""
        return super().running_count + len(self._waiting)

    @property
    def oldest_queued_ns(self) -> int:
        """When the request came that waits the longest for its instance's turn, 0 when none does."""
        waiting = (request.queued_ns for batch in self._waiting for request in batch.own_requests)
        return min(waiting, default=0)

    def holds_back(self, request: InferRequest) -> bool:
        """Whether the request waits for its instance's turn."""
        return any(request in batch.requests for batch in self._waiting)

    def run(self, batch: Batch) -> None:
        """Run the batch on an idle instance, of which there must be one, as soon as the limiter lets it."""
        free = self._free()
        if free is not None:
            self._run_on(free, batch)
            return
        worker = self._waiting[batch] = self.idle.pop()
        self.waits(len(batch.own_requests))
        if worker not in self._wanting:
            self._wanting.add(worker)
            self._limiter.acquire(self._keys[worker], partial(self._granted, worker))

    def _granted(self, worker: Worker) -> None:
        self._wanting.discard(worker)
        if worker not in self._waiting.values() or self._closing:  # what waited runs elsewhere, or nothing more does
            self._limiter.release(self._keys[worker])
            return
        batch, its_worker = next(iter(self._waiting.items()))
        if its_worker is not worker:
            self._waiting[next(other for other, given in self._waiting.items() if given is worker)] = its_worker
        self._wait_no_more(batch)
        self._holders[batch] = self._keys[worker]
        if not batch.cancelled:
            self.grow(batch)
        self.idle.append(worker)
        if batch.cancelled:
            fail(batch, Cancelled(""), self._now_ns())
            self._finish(batch)
        else:
            super().run(batch)

    def _changed(self, worker: Worker) -> None:
        """Take note that an instance has died or come back; what waited for its turn with one that dies has failed.

        It may be of a sequence that no other process knows.
        """
        super()._changed(worker)
        for batch in [batch for batch, waiting in self._waiting.items() if waiting is worker]:
            self._wait_no_more(batch)
            fail(batch, Internal(failure(worker.instance, "its process has died")), self._now_ns())
            self._finish(batch)
        self._use_free()

    def _finish(self, batch: Batch) -> None:
        key = self._holders.pop(batch, "")
        if key:
            self._limiter.release(key)
        self._use_free()
        for waiting in self._waiting:  # before the idle instance forms another batch of what has come
            count = len(waiting.own_requests)
            self.grow(waiting)
            self.waits(len(waiting.own_requests) - count)
        self._tell(batch)

    def _use_free(self) -> None:
        """Run what has waited the longest on an instance that needs nothing, if one is idle."""
        free = self._free() if self._waiting and not self._closing else None
        if free is not None:
            first, worker = next(iter(self._waiting.items()))
            self._wait_no_more(first)
            self.grow(first)
            self.idle.insert(0, worker)
            self._run_on(free, first)

    def _wait_no_more(self, batch: Batch) -> None:
        del self._waiting[batch]
        self.waits(-len(batch.own_requests))

    def _free(self) -> Worker | None:
        """Return an idle instance that needs nothing."""
        return next((worker for worker in reversed(self.idle) if not self._keys[worker]), None)

    def _run_on(self, worker: Worker, batch: Batch) -> None:
        self.idle.remove(worker)
        self.idle.append(worker)
        super().run(batch)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close the instances, have the limiter forget them, and refuse what waits for it."""
        super().close(timeout_s)
        self._call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        for key in filter(None, self._keys.values()):
            self._limiter.remove(key)
        for batch in list(self._waiting):
            self._wait_no_more(batch)
            fail(batch, Unavailable(STOPPING), self._now_ns())
            self._tell(batch)
