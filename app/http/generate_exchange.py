"""`generate` and `generate_stream`: one flat JSON answer, or one server-sent event for each response of the model."""

import math
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, cast

from app.edge.body_budget import TOO_MANY_BODIES
from app.edge.slow_readers import falls_behind
from app.http.context import HttpContext
from app.http.exchange import ExchangeConnection
from app.http.generate_mapping import GenerateMapping
from app.http.head import GENERATE_STREAM, Head
from app.http.responses import RETRY_AFTER, error_body, response_head
from app.json_helper.json_helper import LARGE_JSON_BYTES, Done, Result
from deployments.lane.frames import Buffer
from deployments.lane.sink import Target
from deployments.lane.work_queue import Work
from protocol.errors import InvalidArgument, ServingError, Unavailable

# nginx, and what follows its custom, would hold events back until a buffer is full.
_STREAM_HEADERS: Final = [(b"Content-Type", b"text/event-stream; charset=utf-8"), (b"X-Accel-Buffering", b"no")]
_CHUNKED: Final = (b"Transfer-Encoding", b"chunked")
_NOT_ONE: Final = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
    "number of responses"
)


class GenerateExchange:
    """Maps the body, submits it, maps each response; the sink of its request.

    The first response decides the status of a stream. An error of the model is an event, also where it comes first;
    what is refused before the model has it is told in plain JSON, as Triton does. A client that takes nothing of what
    is sent is given up with the next response when more than `max_stream_buffer_bytes` wait for it, any other when four
    times as much does.
    """

    def __init__(self, head: Head, body: Buffer, connection: ExchangeConnection, context: HttpContext) -> None:
        self._head = head
        self._body = body
        self._connection = connection
        self._context = context
        self._streams = head.action is GENERATE_STREAM
        # An HTTP/1.0 client knows no chunks: there the end of the connection ends the stream.
        self._chunked = head.http_version != "1.0"
        self._mapping: GenerateMapping | None = None
        self._target: Target | None = None
        self._token: Any = None
        self._only: Buffer | None = None
        self._work: Work | None = None
        self._later: deque[tuple[Sequence[Buffer], bool] | ServingError] = deque()
        """What has come of the model while the helper maps a response."""
        self._later_bytes = 0
        self._sent = False
        self._under_way = False
        """Whether the model has the request."""
        self._started = False
        self._ended = False
        self._unsent_bytes: float = math.inf
        """What waited for the client after the last event."""
        self._progress_s = 0.0

    def start(self) -> None:
        """Map and submit."""
        head, body = self._head, self._body
        self._body = b""
        try:
            self._target = self._context.generate_target(head)
            mapping = self._mapping = cast(GenerateMapping, head.mapping)
            if len(body) > LARGE_JSON_BYTES:
                self._have_done("generate", (body,), self._mapped, forwarded=head.forwarded)
                return
            request = mapping.request(body, head.forwarded)
        except ServingError as error:
            self._refuse(error)
            return
        self._submit((request,), None)

    def _have_done(self, task: str, parts: Sequence[Buffer], done: Done, **more: Any) -> None:
        """Have large JSON mapped by the helper."""
        assert self._mapping is not None
        assert self._target is not None
        limit = self._context.limits.max_body_bytes
        about = {"task": task, "inputs": self._mapping.inputs, "model": self._target.model_name, "limit": limit}
        self._work = self._context.json_helper.submit(about | more, parts, done)

    def _mapped(self, result: Result | ServingError) -> None:
        self._work = None
        if self._ended:
            return
        if isinstance(result, ServingError):
            self._refuse(result)
        elif not self._connection.hold(len(result[1])):
            self._refuse(Unavailable(TOO_MANY_BODIES))
        else:
            self._submit((result[1],), result[0])

    def _submit(self, parts: Sequence[Buffer], json_length: int | None) -> None:
        """Send the request where it belongs by now: the model may have changed while the JSON was mapped."""
        try:
            self._target = self._context.generate_target(self._head)
        except ServingError as error:
            self._refuse(error)
            return
        self._sent = self._under_way = True
        token = self._target.submit(parts, json_length, self)
        if self._under_way:
            self._token = token

    @property
    def receive_began_ns(self) -> int:
        """When the request came, 0 if all of it came at once."""
        return self._connection.receive_began_ns

    def disconnect(self) -> None:
        """Cancel the request."""
        self._ended = True
        self._cancel()

    def _cancel(self) -> None:
        """Give up what is under way, once."""
        work, self._work = self._work, None
        if work is not None:
            work.withdraw()
        under_way, self._under_way = self._under_way, False
        token, self._token = self._token, None
        if under_way and token is not None:
            assert self._target is not None
            self._target.cancel(token)

    def on_response(self, json_length: int | None, parts: Sequence[Buffer], final: bool) -> None:
        """Send a response of the model, or keep it until it is known to be the only one."""
        if self._ended:
            return
        if final:
            self._under_way = False
            self._token = None  # which has the request's body, and leads back here
        if self._work is None:
            self._map(parts, final)
            return
        self._later.append((parts, final))
        self._later_bytes += sum(map(len, parts))
        if falls_behind(self._later_bytes, self._context.limits.max_stream_buffer_bytes, 0.0):
            self._fail(Unavailable("too many responses are waiting behind a large one"))

    def _map(self, parts: Sequence[Buffer], final: bool) -> None:
        assert self._mapping is not None
        if sum(map(len, parts)) > LARGE_JSON_BYTES:
            self._have_done("flatten", parts, partial(self._flattened, final))
            return
        try:
            flat = self._mapping.response(b"".join(parts), final)
        except ServingError as error:
            self._fail(error)
            return
        self._take(flat, final)

    def _flattened(self, final: bool, result: Result | ServingError) -> None:
        self._work = None
        if self._ended:
            return
        if isinstance(result, ServingError):
            self._fail(result)
        else:
            self._take(result[1], final)
        while self._later and self._work is None and not self._ended:
            later = self._later.popleft()
            if isinstance(later, ServingError):
                self.on_error(later)
            else:
                self._later_bytes -= sum(map(len, later[0]))
                self._map(*later)

    def _take(self, flat: Buffer | None, final: bool) -> None:
        if self._streams:
            self._stream(flat, final)
            return
        if flat is not None:
            if self._only is not None:
                self._fail(InvalidArgument(_NOT_ONE))
                return
            self._only = flat
        if final:
            self._send_only()

    def on_error(self, error: ServingError) -> None:
        """Send the error with which the model ended the request, or why the model has not taken it."""
        if self._ended:
            return
        self._under_way = False
        self._token = None
        if self._work is not None:
            self._later.append(error)
            return
        if not self._streams or (error.refused and not self._started):
            self._refuse(error)
            return
        if not self._started:
            self._start_stream(error.http_status)
        self._connection.note(error.http_status, error.message, self._target if self._sent else None)
        self._event(error_body(error.message))
        self._end_stream()

    def _refuse(self, error: ServingError) -> None:
        self._ended = True
        self._connection.on_error(error, self._target if self._sent else None)

    def _fail(self, error: ServingError) -> None:
        """Send an error that the model does not know of, and nothing that has come of it since."""
        self._cancel()
        self.on_error(error)

    def _send_only(self) -> None:
        if self._only is None:
            self.on_error(InvalidArgument(_NOT_ONE))
            return
        self._ended = True
        headers = [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(self._only))]
        self._write(response_head(200, headers, self._connection.head_end), self._only)
        self._connection.finish()

    # -- streams --------------------------------------------------------------------------------------------------

    def _stream(self, flat: Buffer | None, final: bool) -> None:
        if not final and self._falls_behind():
            self.disconnect()
            self._connection.give_up("the client reads its events more slowly than they come")
            return
        if not self._started:
            self._start_stream(200)
        if flat is not None:
            self._event(flat)
        self._unsent_bytes = self._connection.unsent_bytes
        if final:
            self._end_stream()

    def _falls_behind(self) -> bool:
        waiting_bytes, now_s = self._connection.unsent_bytes, self._context.loop.time()
        if not waiting_bytes or waiting_bytes < self._unsent_bytes:
            self._progress_s = now_s
        return falls_behind(waiting_bytes, self._context.limits.max_stream_buffer_bytes, now_s - self._progress_s)

    def _start_stream(self, status: int) -> None:
        self._started = True
        headers = [*_STREAM_HEADERS, _CHUNKED] if self._chunked else list(_STREAM_HEADERS)
        if status == 503:
            headers.append(RETRY_AFTER)
        if not self._chunked:
            self._connection.close_after_answer()
        self._connection.write(response_head(status, headers, self._connection.head_end))

    def _event(self, content: Buffer) -> None:
        size = b"%x\r\n" % (len(content) + 8) if self._chunked else b""
        self._write(size + b"data: ", content, b"\n\n\r\n" if self._chunked else b"\n\n")

    def _write(self, before: bytes, content: Buffer, after: bytes = b"") -> None:
        """Send what is small at once, and do not copy what is large."""
        if len(content) <= LARGE_JSON_BYTES:
            self._connection.write(b"".join((before, content, after)))
            return
        for part in (before, content, after):
            self._connection.write(part)

    def _end_stream(self) -> None:
        self._ended = True
        if self._chunked:
            self._connection.write(b"0\r\n\r\n")
        self._connection.finish()
