"""What the requests that a canary got have come to: how many failed, and how long the others took."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns
from typing import Any, Final

from deployments.control.canary import BUCKETS_PER_OCTAVE
from deployments.lane.frames import Buffer
from deployments.lane.sink import Sink
from protocol.errors import Cancelled, ServingError
from protocol.infer import InferRequest, InferResponse, Reply

_SERVER_ERROR: Final = 500


class VersionMeter:
    """Counts since the step of the canary began whose id it has; a latency is known to 9 %."""

    def __init__(self, step: str, now_ns: Callable[[], int] = monotonic_ns) -> None:
        self.step = step
        self.now_ns = now_ns
        self.request_count = 0
        self.error_count = 0
        self.buckets: dict[int, int] = {}

    def measured(self, sink: Sink) -> Sink:
        """Return what takes the answer of a request that is about to be sent, and passes it on to its sink."""
        return _MeasuredSink(self, sink)

    def told(self, tell: Reply) -> Reply:
        """Return what takes the outcomes of a request in this process, in place of what it passes them on to."""
        return partial(self._told, tell, self.now_ns())

    def _told(self, tell: Reply, since_ns: int, request: InferRequest, result: InferResponse | ServingError) -> None:
        if not isinstance(result, InferResponse):
            if not isinstance(result, Cancelled):
                self.failed(result)
        elif result.final:
            self.answered(self.now_ns() - since_ns)
        tell(request, result)

    def answered(self, took_ns: int) -> None:
        """Count a request that was answered."""
        self.request_count += 1
        bucket = math.ceil(math.log2(max(took_ns, 1000) / 1000) * BUCKETS_PER_OCTAVE)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def failed(self, error: ServingError) -> None:
        """Count a request that failed; what is wrong with a request itself says nothing of the version."""
        self.request_count += 1
        self.error_count += error.http_status >= _SERVER_ERROR

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: bucket B has latencies of up to 2^(B / 8) µs."""
        buckets = {str(bucket): count for bucket, count in self.buckets.items()}
        return {"step": self.step, "requests": self.request_count, "errors": self.error_count, "buckets": buckets}


class _MeasuredSink:
    """Passes answers on; a cancelled request is not counted."""

    __slots__ = ("_meter", "_since_ns", "_sink")

    def __init__(self, meter: VersionMeter, sink: Sink) -> None:
        self._meter = meter
        self._sink = sink
        self._since_ns = meter.now_ns()

    def on_response(self, json_length: int | None, parts: Sequence[Buffer], final: bool) -> None:
        if final:
            self._meter.answered(self._meter.now_ns() - self._since_ns)
        self._sink.on_response(json_length, parts, final)

    def on_error(self, error: ServingError) -> None:
        self._meter.failed(error)
        self._sink.on_error(error)
