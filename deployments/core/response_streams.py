"""Requests of a decoupled model: their responses come one by one, after the batch they ran in has long returned."""

from deployments.core.clock import Clock
from deployments.core.statistics import ModelStatistics, failure_reason
from protocol.errors import ServingError
from protocol.infer import InferRequest, InferResponse, Reply


class _Stream:
    """One request that is under way; it stands where the request's `reply` stood."""

    __slots__ = ("index", "reply", "since_ns", "streams")

    def __init__(self, streams: "ResponseStreams", reply: Reply) -> None:
        self.streams = streams
        self.reply = reply
        self.index = 0
        self.since_ns = 0

    def __call__(self, request: InferRequest, result: InferResponse | ServingError) -> None:
        self.streams.count(self, request, result)
        self.reply(request, result)


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
        request.reply = _Stream(self, request.reply)

    def count(self, stream: _Stream, request: InferRequest, result: InferResponse | ServingError) -> None:
        """Count a response, and with the last one its request."""
        now_ns = self._now_ns()
        statistics = self._statistics
        if request.started_ns:
            duration_ns = now_ns - (stream.since_ns or request.started_ns)
            statistics.record_response(request, stream.index, duration_ns, result)
            if not stream.index and statistics.latencies is not None and not isinstance(result, ServingError):
                statistics.latencies.record_first_response(now_ns - request.received_ns)
            stream.index += 1
            stream.since_ns = now_ns
        if isinstance(result, ServingError):
            # A request that never ran was counted by its scheduler.
            if request.started_ns:
                statistics.record_failure(failure_reason(request, result), now_ns - request.received_ns)
        elif result.final:
            statistics.record_stream(now_ns, request)
        else:
            return
        self.open_count -= 1
        request.reply = stream.reply
