"""The target of a model of which some requests are traced."""

from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any, Final

from app.trace.error_trace import error_trace
from app.trace.sampler import Sampler
from app.trace.trace_parent import TraceParent
from deployments.lane.frames import Buffer
from deployments.lane.sink import Sink, Target
from deployments.lane.wire import HTTP
from protocol.errors import ServingError
from protocol.trace import Trace, new_trace

_HTTP: Final = ("HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END")
_GRPC: Final = ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END")
_NAMES: Final = (_HTTP, _GRPC, _GRPC)
MAX_SENDS: Final = 64
"""Responses of one request whose sending is noted, besides the last."""

Ended = Callable[[Trace, Sampler], None]


class TracedTarget:
    """Sends requests on to the model's own target, those whose turn it is with a trace.

    Args:
        ended: gets each trace when its request has ended.
    """

    def __init__(self, target: Target, sampler: Sampler, ended: Ended) -> None:
        self.model_name = target.model_name
        self.version = target.version
        self.sampler = sampler
        self.ended = ended
        self.target = target
        self._submit = target.submit

    @property
    def shared(self) -> bool:
        """Whether others wait for the loop that decodes its requests."""
        return self.target.shared

    @property
    def ready(self) -> bool:
        """Whether the model is ready."""
        return self.target.ready

    def submit(
        self,
        parts: Sequence[Buffer],
        json_length: int | None,
        sink: Sink,
        wire: int = HTTP,
        trace: Trace | None = None,
    ) -> Any:
        """Send a request; see `Target`."""
        sampler = self.sampler
        sampler.left -= 1
        if sampler.left:
            return self._submit(parts, json_length, sink, wire)
        sampler.taken()
        return self.submit_traced(new_trace(sampler.sampling.flags), parts, json_length, sink, wire)

    def submit_traced(
        self, trace: Trace, parts: Sequence[Buffer], json_length: int | None, sink: Sink, wire: int
    ) -> "_TracedToken":
        """Send a request that is traced, whosever turn it is."""
        recv_start, recv_end, send_start, send_end = _NAMES[wire]
        now_ns = monotonic_ns()
        trace.mark(recv_start, getattr(sink, "receive_began_ns", 0) or now_ns)
        trace.mark(recv_end, now_ns)
        trace.model_name, trace.version = self.model_name, self.version
        traced = _TracedSink(sink, trace, send_start, send_end, self)
        return _TracedToken(self._submit(parts, json_length, traced, wire, trace), traced)

    def cancel(self, token: Any) -> None:
        """Give a request up."""
        if type(token) is not _TracedToken:
            self.target.cancel(token)
            return
        self.target.cancel(token.token)
        token.sink.cancelled()


class _ParentedTarget(TracedTarget):
    """Traces every request, as part of what its client has begun."""

    def __init__(self, traced: TracedTarget, parent: TraceParent) -> None:
        super().__init__(traced.target, traced.sampler, traced.ended)
        self._parent = parent

    def submit(
        self,
        parts: Sequence[Buffer],
        json_length: int | None,
        sink: Sink,
        wire: int = HTTP,
        trace: Trace | None = None,
    ) -> Any:
        """Send a request; see `Target`."""
        trace = new_trace(self.sampler.sampling.flags, *self._parent)
        return self.submit_traced(trace, parts, json_length, sink, wire)


def under(target: Target, parent: TraceParent) -> Target:
    """Return where a request goes that is part of what its client has begun; traced only where its model is."""
    return _ParentedTarget(target, parent) if isinstance(target, TracedTarget) else target


class _TracedToken:
    __slots__ = ("sink", "token")

    def __init__(self, token: Any, sink: "_TracedSink") -> None:
        self.token = token
        self.sink = sink


class _TracedSink:
    """Passes answers on, and notes when."""

    __slots__ = ("_left", "_send_end", "_send_start", "_sink", "_target", "_trace")

    def __init__(self, sink: Sink, trace: Trace, send_start: str, send_end: str, target: TracedTarget) -> None:
        self._sink = sink
        self._trace = trace
        self._send_start = send_start
        self._send_end = send_end
        self._target: TracedTarget | None = target
        self._left = MAX_SENDS

    def on_response(self, json_length: int | None, parts: Sequence[Buffer], final: bool) -> None:
        if final:
            self._trace.mark("INFER_RESPONSE_COMPLETE", monotonic_ns())
        elif not self._left:
            self._sink.on_response(json_length, parts, final)
            return
        else:
            self._left -= 1
        self._trace.mark(self._send_start, monotonic_ns())
        self._sink.on_response(json_length, parts, final)
        self._trace.mark(self._send_end, monotonic_ns())
        if final:
            self._end()

    def on_error(self, error: ServingError) -> None:
        self._trace.fail(error.message)
        self._trace.mark("INFER_RESPONSE_COMPLETE", monotonic_ns())
        self._trace.mark(self._send_start, monotonic_ns())
        outer = error_trace.set(self._trace)
        try:
            self._sink.on_error(error)
        finally:
            error_trace.reset(outer)
        self._trace.mark(self._send_end, monotonic_ns())
        self._end()

    def cancelled(self) -> None:
        """End the trace of a request that its client has given up."""
        self._trace.fail("cancelled")
        self._end()

    def _end(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            target.ended(self._trace, target.sampler)
