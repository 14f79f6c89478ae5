"""An inference request that is compressed or wants such a response, has headers for its model, or much JSON."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from app.edge.body_budget import TOO_MANY_BODIES
from app.http.content_coding import compress, decompress
from app.http.context import HttpContext
from app.http.exchange import ExchangeConnection
from app.http.head import Head
from app.http.request_parameters import add_parameters
from app.http.responses import response_head
from app.json_helper.json_helper import LARGE_JSON_BYTES, Result
from app.service.routing import DECOUPLED_BY_HTTP
from deployments.lane.frames import Buffer
from deployments.lane.sink import Target
from deployments.lane.work_queue import Work
from protocol.errors import ServingError, Unavailable, Unsupported, unexpected

# Up to these sizes the work takes less than handing it to a thread and back, or not much more.
_INLINE_COMPRESSED_BYTES: Final = 4 << 10
_INLINE_BYTES: Final = 32 << 10


def has_large_json(head: Head, body: Buffer) -> bool:
    """Whether parsing the body would keep the loop from its work; a header that ends behind the body is not parsed."""
    size = len(body)
    return LARGE_JSON_BYTES < (size if head.json_length is None else head.json_length) <= size


class InferExchange:
    """Unpacks the body, adds parameters, has large JSON parsed, submits, packs the response; the sink of its request.

    Large JSON is parsed by a process of its own where others would wait for who parses it: where the model is in this
    process, or shares a replica with others.
    """

    def __init__(self, head: Head, body: Buffer, connection: ExchangeConnection, context: HttpContext) -> None:
        self._head = head
        self._body = body
        self._connection = connection
        self._context = context
        self._target: Target | None = None
        self._token: Any = None
        self._work: Work | None = None
        self._sent = False
        self._gone = False

    def start(self) -> None:
        """Unpack and submit."""
        head, body = self._head, self._body
        self._body = b""
        if not head.content_encoding:
            self._submit(body)
            return
        limits = self._context.limits

        def unpack() -> bytes:
            return decompress(body, head.content_encoding, limits.max_body_bytes, limits.max_decompression_ratio)

        self._do(unpack, self._unpacked, inline=len(body) <= _INLINE_COMPRESSED_BYTES)

    @property
    def receive_began_ns(self) -> int:
        """When the request came, 0 if all of it came at once."""
        return self._connection.receive_began_ns

    def disconnect(self) -> None:
        """Cancel the request."""
        self._gone = True
        if self._work is not None:
            self._work.withdraw()
        if self._target is not None and self._token is not None:
            self._target.cancel(self._token)

    def _do(self, work: Callable[[], bytes], then: Callable[[bytes], None], inline: bool) -> None:
        """Do `work` here or in a thread, then go on with its result; a ServingError is the answer."""
        if not inline:
            self._work = self._context.packing.submit(work, lambda result, error: self._done(result, error, then))
            return
        try:
            result = work()
        except ServingError as error:
            self.on_error(error)
        else:
            then(result)

    def _done(self, result: bytes, error: BaseException | None, then: Callable[[bytes], None]) -> None:
        self._work = None
        if error is None:
            then(result)
        else:
            self.on_error(error if isinstance(error, ServingError) else unexpected(error))

    def _unpacked(self, body: bytes) -> None:
        if self._connection.hold(len(body)):
            self._submit(body)
        else:
            self.on_error(Unavailable(TOO_MANY_BODIES))

    def _submit(self, body: Buffer) -> None:
        head = self._head
        parts: Sequence[Buffer] = (body,)
        json_length = head.json_length
        try:
            target = self._context.target(head)
            if head.forwarded:
                parts, json_length = add_parameters(body, json_length, head.forwarded)
        except ServingError as error:
            self.on_error(error)
            return
        if has_large_json(head, body) and target.shared:
            task = {
                "task": "infer",
                "json_length": json_length,
                "model": target.model_name,
                "limit": self._context.limits.max_body_bytes,
            }
            self._work = self._context.json_helper.submit(task, parts, self._parsed)
        else:
            self._send_to(target, parts, json_length)

    def _parsed(self, result: Result | ServingError) -> None:
        """Send the request where it belongs by now: the model may have changed while the JSON was read."""
        self._work = None
        if isinstance(result, ServingError):
            self.on_error(result)
        elif not self._connection.hold(len(result[1])):
            self.on_error(Unavailable(TOO_MANY_BODIES))
        else:
            try:
                target = self._context.target(self._head)
            except ServingError as error:
                self.on_error(error)
            else:
                self._send_to(target, (result[1],), result[0])

    def _send_to(self, target: Target, parts: Sequence[Buffer], json_length: int | None) -> None:
        self._target = target
        self._sent = True
        token = target.submit(parts, json_length, self)
        if self._target is not None:
            self._token = token

    def on_response(self, json_length: int | None, parts: Sequence[Buffer], final: bool) -> None:
        """Send the response, compressed if the client likes that better."""
        if not final:  # the model has become decoupled meanwhile
            self._connection.on_error(Unsupported(DECOUPLED_BY_HTTP), self._target)
            self.disconnect()
            return
        self._target = self._token = None
        if self._gone:
            return
        coding = self._head.response_coding
        if not coding:
            self._connection.on_response(json_length, parts, final)
            return
        kept = list(parts)
        size = sum(map(len, kept))
        self._do(
            lambda: compress(kept, coding), lambda packed: self._send(json_length, packed), inline=size <= _INLINE_BYTES
        )

    def _send(self, json_length: int | None, packed: bytes) -> None:
        head = self._head
        headers = [(b"Content-Encoding", head.response_coding)]
        if json_length is None:
            headers.append((b"Content-Type", b"application/json"))
        else:
            headers.append((b"Content-Type", b"application/octet-stream"))
            headers.append((b"Inference-Header-Content-Length", b"%d" % json_length))
        headers.append((b"Content-Length", b"%d" % len(packed)))
        self._connection.write(response_head(200, headers, self._connection.head_end) + packed)
        self._connection.finish()

    def on_error(self, error: ServingError) -> None:
        """Send the error; it is never compressed."""
        target = self._target if self._sent else None
        self._target = self._token = None
        if not self._gone:
            self._connection.on_error(error, target)
