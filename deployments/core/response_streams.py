"""Requests of a decoupled model: their responses come one by one, after the batch they ran in has long returned."""

from functools import partial

from deployments.core.clock import Clock
from deployments.core.statistics import BACKEND, ModelStatistics
from protocol.errors import ServingError
from protocol.infer import InferRequest, InferResponse, Reply


class ResponseStreams:
    """Counts a decoupled model's requests as succeeded or failed when their last response has come."""

    def __init__(self, statistics: ModelStatistics, clock: Clock) -> None:
        self._statistics = statistics
        self._now_ns = clock.now_ns
        self.open_count = 0

    def open(self, request: InferRequest) -> None:
        """Follow a request; to be called before the scheduler gets it."""
        self.open_count += 1
        request.received_ns = self._now_ns()
        request.reply = partial(self._reply, request.reply)

    def _reply(self, reply: Reply, request: InferRequest, result: InferResponse | ServingError) -> None:
        if isinstance(result, InferResponse):
            if result.final:
                self._close(request, reply)
                self._statistics.record_stream(self._now_ns() - request.received_ns)
        else:
            self._close(request, reply)
            # A request that never ran was counted by its scheduler.
            if request.ran:
                self._statistics.record_failure(BACKEND, self._now_ns() - request.received_ns)
        reply(request, result)

    def _close(self, request: InferRequest, reply: Reply) -> None:
        self.open_count -= 1
        request.reply = reply
