"""ModelStreamInfer: any number of requests on one stream, each answered by one response or, decoupled, by many.

Requests to models that are not decoupled are answered in their order; responses of decoupled models leave as they come.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from app.edge.slow_readers import falls_behind
from app.grpc.call import Call
from app.grpc.head import GrpcHead
from app.grpc.infer_call import send_response
from app.grpc.status import OK, RESOURCE_EXHAUSTED, STOPPING, UNAVAILABLE
from app.http2.open_connection import OpenConnection
from app.trace.traced_target import under
from deployments.lane.frames import Buffer
from deployments.lane.sink import Target
from deployments.lane.wire import GRPC_STREAM
from protocol.errors import ServingError
from protocol.grpc_route import Route, read_route
from protocol.grpc_stream import stream_error
from protocol.short_error import shortened


class StreamInferCall(Call):
    """A call of ModelStreamInfer."""

    __slots__ = (
        "_half_closed",
        "_held_bytes",
        "_inflight_bytes",
        "_max_count",
        "_ordered",
        "_real_errors",
        "_requests",
        "_stopping",
        "full",
    )

    wire = GRPC_STREAM

    def __init__(self, connection: OpenConnection, stream_id: int, head: GrpcHead) -> None:
        super().__init__(connection, stream_id, head)
        self.full = False
        self._max_count = head.context.options.max_stream_inflight_count
        self._requests: set[StreamRequest] = set()
        self._ordered: deque[StreamRequest] = deque()
        self._half_closed = self._stopping = False
        self._inflight_bytes = 0
        self._held_bytes = 0
        """Of answers that wait for the answer to an earlier request."""
        self._real_errors = head.metadata.get(b"triton_grpc_error") == b"true"

    def message(self, message: Buffer) -> None:
        """Send a request to its model."""
        request = StreamRequest(self, message)
        self._requests.add(request)
        self._inflight_bytes += request.size
        if len(self._requests) >= self._max_count or len(self._ordered) >= self._max_count:
            self.full = True
        try:
            request.route = read_route(message)
            request.decoupled = self.context.service.routing.decoupled(request.route[0])
            target = self.context.routes.find(message)
        except ServingError as error:
            self._ordered.append(request)
            request.on_error(error)
            return
        if not request.decoupled:
            self._ordered.append(request)
        if self.head.trace_parent is not None:
            target = under(target, self.head.trace_parent)
        request.target = target
        forwarded = self.head.forwarded
        parts = (message, forwarded) if forwarded else (message,)
        token = target.submit(parts, None, request, GRPC_STREAM)
        if not request.ended:
            request.token = token

    def half_closed(self) -> None:
        """End the call when everything is answered."""
        self._half_closed = True
        self._end_if_over()

    def server_stops(self) -> None:
        """Answer what has arrived, take nothing more, and end."""
        if self._stopping or not self.behind:  # what has come since is not taken
            self._stopping = self.full = True
            self._end_if_over()

    def _end_if_over(self) -> None:
        if self._requests or self.done:
            return
        if self._half_closed:
            self.finish(OK, "")
        elif self._stopping and not (self.compressor is not None and self.compressor.busy):
            self.finish(UNAVAILABLE, STOPPING)

    def answer(self, request: "StreamRequest", parts: Sequence[Buffer], final: bool) -> None:
        """Send a response, unless an earlier request is to be answered first."""
        if self.done:
            return
        if request.decoupled or self._ordered[0] is request:
            self._write(parts)
        else:
            request.responses.append(parts)
            self._held_bytes += sum(len(part) for part in parts)
        if final:
            request.ended = True
            self._requests.discard(request)
            self._inflight_bytes -= request.size
            self._advance()
            self.caught_up()
            self._end_if_over()

    def refuse(self, request: "StreamRequest", error: ServingError) -> None:
        """Tell of a failed request, by a response or, if the client wants that, by the status of the call."""
        if self.done:
            return
        target, request.target = request.target, None
        request.token = None
        if self._real_errors:
            self.finish(error.grpc_code, error.message, target)
        else:
            self.note(error.grpc_code, error.message, target)
            taken = target is not None
            self.answer(request, (stream_error(shortened(error).message, request.route, taken=taken),), True)

    def _advance(self) -> None:
        """Send what has waited for the answer to an earlier request."""
        ordered = self._ordered
        while ordered and ordered[0].ended:
            ordered.popleft()
            if ordered:
                responses, ordered[0].responses = ordered[0].responses, []
                for parts in responses:  # one too many ends the call, and empties `ordered`
                    self._held_bytes -= sum(len(part) for part in parts)
                    self._write(parts)

    def _write(self, parts: Sequence[Buffer]) -> None:
        size = sum(len(part) for part in parts)
        if not size or self.done:
            return
        waiting_bytes = self.queued_bytes + (self.compressor.waiting_bytes if self.compressor is not None else 0)
        # What waits for its compression alone is not the client's to take.
        idle_s = self.context.loop.time() - self.progress_s if self.queued_bytes else 0.0
        if falls_behind(waiting_bytes, self.context.options.max_stream_queued_bytes, idle_s):
            self.connection.sender.forget(self)
            self.finish(RESOURCE_EXHAUSTED, "the client reads its responses more slowly than they come")
            return
        send_response(self, parts, size)

    def caught_up(self) -> None:
        """Take or let the client send more, unless much of what it has sent is under way, or answered and not sent."""
        if self.full and self._count < self._max_count and not self._stopping:
            self.full = False
            self.go_on()
        options = self.context.options
        if (
            self.credit_bytes <= self.connection.initial_credit_bytes // 2
            and not self.peer_ended
            and not self.done
            and not self.behind
            and self._count < self._max_count
            and self._inflight_bytes + self._held_bytes < options.max_stream_inflight_bytes
        ):
            self.grant(self.connection.initial_credit_bytes - self.credit_bytes)

    @property
    def _count(self) -> int:
        """How many requests are under way, or wait for the answer to an earlier one."""
        return max(len(self._requests), len(self._ordered))

    def under_way(self) -> Target | None:
        """Return the model that has the oldest request, of decoupled models any if no other has one."""
        requests = (*self._ordered, *self._requests)
        return next((request.target for request in requests if request.target is not None), None)

    def cancelled(self) -> None:
        """Give every request of the stream up."""
        requests, self._requests = self._requests, set()
        self._ordered.clear()
        for request in requests:
            if request.target is not None:
                token, request.token = request.token, None
                request.target.cancel(token)


class StreamRequest:
    """One request of a stream; the sink of its responses."""

    __slots__ = ("_call", "decoupled", "ended", "responses", "route", "size", "target", "token")

    def __init__(self, call: StreamInferCall, message: Buffer) -> None:
        self._call = call
        self.size = len(message)
        self.route: Route = ("", "", "")
        self.decoupled = False
        self.ended = False
        self.responses: list[Sequence[Buffer]] = []
        self.target: Target | None = None
        self.token: Any = None

    def on_response(self, json_length: int | None, parts: Sequence[Buffer], final: bool) -> None:
        """Pass a response on; one without parts only ends the request."""
        if final:
            self.target = self.token = None  # which has the request's message, and leads back here
        self._call.answer(self, parts, final)

    def on_error(self, error: ServingError) -> None:
        """Pass the error on."""
        self._call.refuse(self, error)
