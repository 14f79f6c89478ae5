"""A scheduler in front of another one: it answers what the response cache has, and keeps what the other answers."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from deployments.core.clock import Clock
from deployments.core.response_cache import ResponseCache
from deployments.core.statistics import ModelStatistics
from deployments.replica.region_mapping import region_under
from deployments.schedulers.scheduler import Scheduler, reply
from protocol.errors import ServingError
from protocol.infer import Array, InferRequest, InferResponse, Reply

MAX_INPUT_BYTES: Final = 2 << 20
MAX_OUTPUT_BYTES: Final = 16 << 20
MAX_TEXTS: Final = 16_384
"""Elements of a tensor of BYTES."""


class CachedScheduler:
    """Asks the cache first; for models with `response_cache { enable: true }` on a server that has a cache.

    A request within a sequence, such as an ensemble hands on to its steps, goes past the cache, and so does one of more
    than `MAX_INPUT_BYTES`: to read them all would keep the loop from its work. For the same reason no response of more
    than `MAX_OUTPUT_BYTES` is kept. What lies in a client's shared memory is copied, in and out: if the client changed
    it meanwhile, others would be answered wrongly.
    """

    def __init__(self, scheduler: Scheduler, cache: ResponseCache, statistics: ModelStatistics, clock: Clock) -> None:
        self.scheduler = scheduler
        self._cache = cache
        self._statistics = statistics
        self._now_ns = clock.now_ns
        self._call_soon = clock.call_soon
        self._draining = False
        statistics.counts.cache_count = 1
        self.cancel = scheduler.cancel
        self.abandon = scheduler.abandon

    @property
    def oldest_queued_ns(self) -> int:
        """That of the other scheduler."""
        return self.scheduler.oldest_queued_ns

    def submit(self, request: InferRequest) -> None:
        """Answer from the cache in a later turn, or have the request run."""
        if self._draining or request.sequence_id or _is_large(request.inputs, MAX_INPUT_BYTES):
            self.scheduler.submit(request)
            return
        began_ns = self._now_ns()
        request.queued_ns = began_ns
        if not request.received_ns:
            request.received_ns = began_ns
        request.inputs = {name: _own(array) for name, array in request.inputs.items()}
        request.places = None
        key = self._cache.key(request)
        response = self._cache.find(key)
        now_ns = self._now_ns()
        if response is None:
            request.reply = partial(self._keep, key, now_ns - began_ns, request.reply)
            self.scheduler.submit(request)
            return
        if request.trace is not None:
            request.trace.attributes["cache_hit"] = True
        self._statistics.record_cache_hit(now_ns, now_ns - request.received_ns, now_ns - began_ns)
        self._call_soon(partial(reply, request, response))

    def drain(self, drained: Callable[[], None]) -> None:
        """Drain the other scheduler; keep nothing more."""
        self._draining = True
        self.scheduler.drain(drained)

    def _keep(
        self, key: bytes, look_up_ns: int, answer: Reply, request: InferRequest, result: InferResponse | ServingError
    ) -> None:
        request.reply = answer
        if isinstance(result, InferResponse) and not self._draining:
            began_ns = self._now_ns()
            if not _is_large(result.outputs, MAX_OUTPUT_BYTES):
                self._cache.keep(key, result)
            now_ns = self._now_ns()
            self._statistics.record_cache_miss(now_ns, look_up_ns + now_ns - began_ns)
        answer(request, result)


def _own(array: Array) -> Array:
    """Return an array that no client can change."""
    return array if region_under(array) is None else array.copy()


def _is_large(tensors: Mapping[str, Array], max_bytes: int) -> bool:
    size_bytes = 0
    for array in tensors.values():
        size_bytes += array.nbytes
        if array.dtype.kind == "O" and array.size <= MAX_TEXTS:
            size_bytes += sum(map(len, array.ravel().tolist()))
        elif array.dtype.kind == "O":
            return True
    return size_bytes > max_bytes
