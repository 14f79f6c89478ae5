"""An instance pool under the rate limiter: an instance runs a batch when its resources are free."""

from collections.abc import Callable, Sequence

from deployments.backends.backend import Batch, ModelInstance
from deployments.core.clock import Clock
from deployments.core.instance_pool import CLOSE_TIMEOUT_S, InstancePool, Worker, fail, failure
from deployments.core.rate_limit import RateLimiter
from deployments.schedulers.scheduler import STOPPING
from protocol.errors import Cancelled, Internal, Unavailable


class LimitedPool(InstancePool):
    """Has each batch wait for the resources of the instance that is to run it, which are free again right after.

    `keys` are those of the instances in the limiter, "" for one that needs nothing. The wait counts as time in the
    queue.
    """

    def __init__(
        self, instances: Sequence[ModelInstance], clock: Clock, limiter: RateLimiter, keys: Sequence[str]
    ) -> None:
        super().__init__(instances, clock)
        self._limiter = limiter
        self._keys = dict(zip(map(id, instances), keys, strict=True))
        self._holders: dict[Batch, str] = {}
        self._waiting: dict[Batch, Worker] = {}

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

    def run(self, batch: Batch) -> None:
        """Run the batch on an idle instance, of which there must be one, as soon as the limiter lets it."""
        worker = self.idle[-1]
        key = self._keys[id(worker.instance)]
        if not key:
            super().run(batch)
            return
        self.idle.pop()
        self._waiting[batch] = worker

        def granted() -> None:
            if batch not in self._waiting or self._closing:  # its instance has died, or runs nothing more
                self._limiter.release(key)
                return
            del self._waiting[batch]
            self._holders[batch] = key
            self.idle.append(worker)
            if all([request.cancelled for request in batch.requests]):
                fail(batch, Cancelled(""), self._now_ns())
                self._finish(batch)
            else:
                super(LimitedPool, self).run(batch)

        self._limiter.acquire(key, granted)

    def _changed(self, worker: Worker) -> None:
        """Take note that an instance has died or come back; what waited for its turn with one that dies has failed.

        It may be of a sequence that no other process knows.
        """
        super()._changed(worker)
        for batch in [batch for batch, waiting in self._waiting.items() if waiting is worker]:
            del self._waiting[batch]
            fail(batch, Internal(failure(worker.instance, "its process has died")), self._now_ns())
            self._finish(batch)

    def _finish(self, batch: Batch) -> None:
        key = self._holders.pop(batch, "")
        if key:
            self._limiter.release(key)
        self._tell(batch)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close the instances, have the limiter forget them, and refuse what waits for it."""
        super().close(timeout_s)
        self._call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        for key in filter(None, self._keys.values()):
            self._limiter.remove(key)
        for batch in self._waiting:
            fail(batch, Unavailable(STOPPING), self._now_ns())
            self._tell(batch)
        self._waiting.clear()
