"""One HTTP/1.1 connection: inference requests go straight to their target, all others to the ASGI application.

One request at a time is under way on a connection; what a client pipelines waits in the buffer, so answers keep their
order. A head whose exact bytes were parsed before costs one dictionary look-up.
"""

import asyncio
from collections.abc import Sequence
from time import monotonic_ns
from typing import Any, Final, cast

from app.edge.body_budget import TOO_MANY_BODIES
from app.http.asgi import AsgiExchange
from app.http.chunked import ChunkedBody, body_too_large
from app.http.context import HttpContext
from app.http.error_headers import headers_of
from app.http.exchange import Exchange
from app.http.generate_exchange import GenerateExchange
from app.http.head import INFER, BadRequest, Head, Headers
from app.http.infer_exchange import InferExchange, has_large_json
from app.http.responses import error_response
from app.http.timed_connection import TimedConnection
from app.service.routing import DECOUPLED_BY_HTTP
from deployments.lane.frames import Buffer
from deployments.lane.sink import Target
from deployments.lane.wire import HTTP
from protocol.body_memory import body_memory
from protocol.errors import ServingError, Unsupported, unexpected

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_BINARY_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
    b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n%s"
)
_JSON_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s"
_JOIN_BYTES: Final = 1 << 17
# A refused body of up to this size is read all the same, so that the connection can go on.
_SMALL_BODY_BYTES: Final = 1 << 16
_SERVERS_FAULT: Final = 500
# Up to this size, to search the head again is less work than to note what was searched.
_SHORT_HEAD_BYTES: Final = 1 << 10
# The end of a head may have begun in so many bytes.
_UNSEARCHED_BYTES: Final = 3
# Requests that are begun in one turn of the loop, though they are answered at once; then others get theirs.
_TURN_REQUESTS: Final = 64


class HttpConnection(TimedConnection):
    """A client's connection; also the sink of its inference request.

    What arrives is read into a buffer that all connections share, and from there taken at once; the rest of a long
    body is read to where it stays.
    """

    __slots__ = (
        "_body",
        "_body_filled",
        "_body_read",
        "_chunked",
        "_exchange",
        "_held_bytes",
        "_line_skipped",
        "_old",
        "_paused",
        "_read_buffer",
        "_searched_bytes",
        "_target",
        "_token",
        "receive_began_ns",
        "waits_since_s",
    )

    def __init__(self, context: HttpContext) -> None:
        super().__init__(context)
        self._read_buffer = context.read_buffer
        self._body: memoryview | None = None
        self._body_filled = 0
        self._body_read = False
        self._chunked: ChunkedBody | None = None
        self._held_bytes = 0
        self._line_skipped = False
        self._old = False
        self._paused = False
        self._searched_bytes = 0
        self.waits_since_s = 0.0
        """When the client began to read too slowly."""
        self.receive_began_ns = 0
        """When the request came that is under way, 0 if all of it came at once."""
        self._target: Target | None = None
        self._token: Any = None
        self._exchange: Exchange | None = None

    # -- the transport's side -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection in, or refuse it."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it
        context = self._context
        if not context.connections.add(self, transport):
            self._closing = True
            reason = "server is shutting down" if context.connections.stopping else "too many connections"
            self.note(503, reason)
            self.write(error_response(503, reason, context.head_ends.close))
            self._transport.close()
            return
        self._deadline_s = context.loop.time() + context.limits.header_timeout_s

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what is under way."""
        self._context.connections.discard(self)
        self._context.slow_readers.discard(self)
        self._closing = True
        self._transport = None
        self._release()
        if self._target is not None and self._token is not None:
            self._target.cancel(self._token)
        self._target = self._token = None
        if self._exchange is not None:
            self._exchange.disconnect()

    def pause_writing(self) -> None:
        """The client reads slowly; take no further request of it."""
        self._paused = True
        self.waits_since_s = self._context.loop.time()
        self._context.slow_readers.note(self, self.unsent_bytes)

    def resume_writing(self) -> None:
        """Go on with what the client has sent meanwhile."""
        self._paused = False
        self._context.slow_readers.discard(self)
        self._resume()

    def eof_received(self) -> bool:
        """Take the end of what a client sends as its going away, as Triton does: what it asked for is cancelled.

        A client that dies or gives up sends no more than this.
        """
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        body = self._body
        if body is None or self._paused or self._buffer:
            self._body_read = False
            return self._read_buffer
        self._body_read = True
        return body[self._body_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that are in the buffer."""
        if self._closing:
            self._linger_bytes -= nbytes
            if self._linger_bytes < 0:
                self.abort()
            return
        if self._body_read:
            self._body_filled += nbytes
            body, head = self._body, self._head
            assert body is not None
            assert head is not None
            if not self.hold(nbytes):
                self._refuse(503, TOO_MANY_BODIES)
            elif self._body_filled == len(body):
                self._body = self._head = None
                self._dispatch(head, body, head.direct and not has_large_json(head, body))
            return
        data = bytes(self._read_buffer[:nbytes])
        if self._busy or self._paused:
            self._keep(data)
            if len(self._buffer) > self._context.limits.max_header_bytes:
                self._read_no_further()
            return
        self._advance(data)

    # -- requests -------------------------------------------------------------------------------------------------

    def _advance(self, data: bytes) -> None:
        """Work through what has arrived, one request after the other."""
        if self._buffer:
            if self._searched_bytes:
                data = self._continue_head(data)
            else:
                data, self._buffer = bytes(self._buffer) + data, b""
        left = _TURN_REQUESTS
        try:
            while data:
                if self._head is None:
                    if data[:2] == b"\r\n" and not self._line_skipped:  # as a client may send behind a body
                        self._line_skipped = True
                        data = data[2:]
                        if not data:
                            self._deadline_s = 0.0  # no head has begun
                        continue
                    end = data.find(b"\r\n\r\n")
                    if end < 0:
                        self._wait_for_head(data)
                        break
                    end += 4
                    data = self._begin(data, end)
                else:
                    data = self._fill(data)
                if self._busy or self._paused or self._closing:
                    self._buffer = data
                    break
                left -= 1
                if data and (not left or self._head is not None):
                    self._buffer = data
                    self._read_no_further()
                    self._context.loop.call_soon(self._resume)
                    return
        except BadRequest as bad:
            self._refuse(bad.status, bad.message, bad.headers)
        if self._reading_paused and len(self._buffer) <= self._context.limits.max_header_bytes:
            self._read_on()

    def _wait_for_head(self, data: bytes) -> None:
        limits = self._context.limits
        if len(data) > limits.max_header_bytes:
            raise BadRequest(431, "request header fields too large")
        if not (65 <= data[0] <= 90 or data == b"\r") or b"\n\n" in data:
            raise BadRequest(400, "malformed HTTP request")
        self._buffer = data
        self._searched_bytes = len(data) - _UNSEARCHED_BYTES if len(data) > _SHORT_HEAD_BYTES else 0
        if not self._deadline_s:
            self._deadline_s = self._context.loop.time() + limits.header_timeout_s

    def _continue_head(self, data: bytes) -> bytes:
        """Return the head that waits in the buffer and what follows it, once it ends or is refused; nothing before."""
        at, end = self._searched_bytes, self._keep(data)
        buffer = self._buffer
        if (
            end <= self._context.limits.max_header_bytes
            and buffer.find(b"\r\n\r\n", at) < 0
            and buffer.find(b"\n\n", at) < 0
        ):
            self._searched_bytes = end - _UNSEARCHED_BYTES
            return b""
        self._searched_bytes = 0
        self._buffer = b""
        return bytes(buffer)

    def _keep(self, data: bytes) -> int:
        """Add to the buffer, without a copy of what is there already; returns how much that is."""
        buffer = self._buffer
        if not buffer:
            self._buffer = data
        else:
            if not isinstance(buffer, bytearray):
                buffer = self._buffer = bytearray(buffer)
            buffer += data
        return len(self._buffer)

    def _begin(self, data: bytes, end: int) -> bytes:
        """Start the request whose head ends at `end`; returns what was not used."""
        self._line_skipped = False
        context = self._context
        raw = data[:end]
        head = context.heads.get(raw)
        if head is None:
            if end > context.limits.max_header_bytes:
                raise BadRequest(431, "request header fields too large")
            head = context.read_head(raw)
        length = head.content_length
        if length is None:
            self._check_refusal(head)
            self._head = head
            self._chunked = ChunkedBody(context.limits)
        elif length > context.limits.max_body_bytes:
            raise BadRequest(400, body_too_large(length, context.limits.max_body_bytes, raw=head.json_length == 0))
        elif len(data) - end >= length:
            stop = end + length
            self.receive_began_ns = 0
            self._dispatch(head, data[end:stop], head.direct)
            return data[stop:] if stop < len(data) else b""
        else:
            if length > _SMALL_BODY_BYTES or head.expect_continue:
                self._check_refusal(head)
                if not context.bodies.has_room(length):
                    raise BadRequest(503, TOO_MANY_BODIES)
            try:
                self._body = body_memory(length)
            except MemoryError as error:
                raise BadRequest(503, unexpected(error).message) from None
            self._head = head
            self._body_filled = 0
        if head.expect_continue and len(data) == end:
            self.write(_CONTINUE)
        self.receive_began_ns = monotonic_ns()
        self._deadline_s = context.loop.time() + context.limits.body_timeout_s
        return self._fill(data[end:])

    @staticmethod
    def _check_refusal(head: Head) -> None:
        """Refuse what will be refused anyway before its body is sent."""
        if head.refusal is not None:
            raise BadRequest(head.refusal.http_status, head.refusal.message, headers_of(head.refusal))

    def _fill(self, data: bytes) -> bytes:
        """Add to the body of the request that is being read; returns what was not used.

        That is nothing while the body is not complete, but for what has to wait until the next turn.
        """
        head = self._head
        assert head is not None
        chunked = self._chunked
        if chunked is not None:
            before = chunked.size
            done = chunked.feed(data)
            if not self.hold(chunked.size - before):
                raise BadRequest(503, TOO_MANY_BODIES)
            if done is None:
                return chunked.unread
            body, rest = memoryview(done[0]), done[1]
            self._chunked = self._head = None
            self._dispatch(head, body, head.direct and not has_large_json(head, body))
            return rest
        whole = self._body
        assert whole is not None
        taken = min(len(whole) - self._body_filled, len(data))
        if not self.hold(taken):
            raise BadRequest(503, TOO_MANY_BODIES)
        whole[self._body_filled : self._body_filled + taken] = memoryview(data)[:taken]
        self._body_filled += taken
        if self._body_filled < len(whole):
            return b""
        self._body = self._head = None
        self._dispatch(head, whole, head.direct and not has_large_json(head, whole))
        return data[taken:]

    def _dispatch(self, head: Head, body: Buffer, direct: bool) -> None:
        self._deadline_s = self._idle_since_s = 0.0
        self._busy = True
        self._keep_alive = head.keep_alive and not self._last
        self._old = head.old
        if not direct:
            self._detour(head, body)
            return
        context = self._context
        if head.generation != context.generation:
            try:
                context.target(head)
            except ServingError as error:
                self.on_error(error)
                return
        target: Target = head.target  # type: ignore[assignment]
        self._target = target
        token = target.submit((body,), head.json_length, self)
        if self._busy:
            self._token = token

    def _detour(self, head: Head, body: Buffer) -> None:
        """Handle what is not simply passed on."""
        context = self._context
        if head.refusal is not None:
            if head.method == b"HEAD":  # whose answers have no body
                self.close_after_answer()
            self.on_error(head.refusal)
            return
        exchange: Exchange
        if head.action is None:
            assert self._transport is not None
            peer = self._transport.get_extra_info("peername")
            client = peer if isinstance(peer, tuple) else None
            exchange = AsgiExchange(context.app, self, head, body, client, context.loop)
        elif head.action is INFER:
            exchange = InferExchange(head, body, self, context)
        else:
            exchange = GenerateExchange(head, body, self, context)
        self._exchange = exchange
        exchange.start()

    # -- answers --------------------------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Send bytes; those of a stream may come while the client reads slowly."""
        if self._paused:
            self._context.slow_readers.note(self, len(data))
        super().write(data)

    def on_response(self, json_length: int | None, parts: Sequence[Buffer], final: bool) -> None:
        """Write an inference response."""
        transport = self._transport
        if transport is None:
            return
        if not final:
            self._refuse_responses()
            return
        size = 0
        for part in parts:
            size += len(part)
        end = self._context.head_ends.plain if self._keep_alive and not self._old else self.head_end
        head = _JSON_HEAD % (size, end) if json_length is None else _BINARY_HEAD % (json_length, size, end)
        self._written_bytes += size + len(head)
        if size <= _JOIN_BYTES:
            transport.write(b"".join((head, *parts)))
        else:
            transport.writelines((head, *parts))
        self.finish()

    def on_error(self, error: ServingError, target: Target | None = None) -> None:
        """Write the error that ended an inference request; `target` had it, if an exchange has sent it there."""
        if self._transport is None:
            return
        self.note(error.http_status, error.message, target or self._target)
        self.write(error_response(error.http_status, error.message, self.head_end, headers_of(error)))
        self.finish()

    def _refuse_responses(self) -> None:
        """End a request whose model has become decoupled meanwhile: no other one must get the rest of its answers."""
        if self._target is not None and self._token is not None:
            self._target.cancel(self._token)
        self.on_error(Unsupported(DECOUPLED_BY_HTTP))

    def note(self, status: int, message: str, target: Target | None = None) -> None:
        """Log an error that is sent to the client, and count it if no target had the request."""
        refusals = self._context.refusals
        if target is None:
            refusals.count(HTTP, status)
        refusals.note(f"HTTP {status}", message, self._transport, target, fault=status >= _SERVERS_FAULT)

    def give_up(self, reason: str) -> None:
        """Close for lack of room for the answer that the client does not read."""
        self._context.refusals.note("HTTP close", reason, self._transport)
        self._context.loop.call_soon(self.abort)

    @property
    def head_end(self) -> bytes:
        """What the head of the answer ends with: Date, Connection where it must be said, and the empty line."""
        ends = self._context.head_ends
        if not self._keep_alive:
            return ends.close
        return ends.keep_alive if self._old else ends.plain

    def close_after_answer(self) -> None:
        """Let the answer under way be the last on this connection; before its head is written."""
        self._keep_alive = False

    def hold(self, size: int) -> bool:
        """Count bytes of the request's body into the total of all connections; False when there are too many."""
        if not self._context.bodies.take(size):
            return False
        self._held_bytes += size
        return True

    def _release(self) -> None:
        self._context.bodies.give_back(self._held_bytes)
        self._held_bytes = 0

    def finish(self) -> None:
        """The answer is complete: take the next request, or close."""
        self._busy = False
        self._target = self._token = self._exchange = None
        if self._held_bytes:
            self._release()
        transport = self._transport
        if transport is None:
            return
        if not self._keep_alive:
            if self._buffer:
                self._linger()
            else:
                self._closing = True
                transport.close()
        elif self._buffer:
            # Not from here: this may run inside `_advance`.
            self._context.loop.call_soon(self._resume)

    def _resume(self) -> None:
        if self._buffer and not self._busy and not self._paused and not self._closing:
            self._advance(b"")

    def _refuse(self, status: int, message: str, headers: Headers = ()) -> None:
        self._head = self._body = self._chunked = None
        self._release()
        self.note(status, message)
        self.write(error_response(status, message, self._context.head_ends.close, headers))
        self._linger()
