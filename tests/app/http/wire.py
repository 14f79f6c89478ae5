"""A connection over a transport that keeps what is written, for tests of the wire without sockets."""

import asyncio
from collections.abc import Sequence
from typing import Any

from app.http.connection import HttpConnection
from app.http.front import HttpFront
from app.http.limits import HttpLimits
from protocol.errors import NotFound, ServingError


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.reading = True

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def writelines(self, parts: Any) -> None:
        self.written += b"".join(parts)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class EchoTarget:
    """Answers with the body it got; `hold` keeps the answers back."""

    model_name = "echo"
    version = 1
    ready = True

    def __init__(self) -> None:
        self.hold = False
        self.bodies: list[bytes] = []
        self.cancelled: list[Any] = []
        self._held: list[Any] = []

    def submit(self, parts: Sequence[Any], json_length: int | None, sink: Any) -> int:
        body = b"".join(parts)
        self.bodies.append(body)
        if self.hold:
            self._held.append((json_length, body, sink))
        else:
            sink.on_response(json_length, (body,), True)
        return len(self.bodies)

    def release(self) -> None:
        held, self._held = self._held, []
        for json_length, body, sink in held:
            sink.on_response(json_length, (body,), True)

    def fail(self, error: ServingError) -> None:
        held, self._held = self._held, []
        for _, _, sink in held:
            sink.on_error(error)

    def cancel(self, token: Any) -> None:
        self.cancelled.append(token)


async def hello(scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    body = scope["method"].encode() + b" " + scope["path"].encode("utf-8", "replace") + b" " + message["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


class Wire:
    """One connection to a front that knows the model `echo`."""

    def __init__(self, limits: HttpLimits | None = None) -> None:
        self.target = EchoTarget()
        self.front = HttpFront(hello, self._resolve, limits or HttpLimits(), asyncio.get_running_loop())
        self.transport = Transport()
        self.connection = HttpConnection(self.front)
        self.connection.connection_made(self.transport)

    def _resolve(self, name: bytes, version: int) -> Any:
        if name != b"echo":
            raise NotFound(f"Request for unknown model: '{name.decode()}' is not found")
        return self.target

    async def send(self, *pieces: bytes) -> bytes:
        """Deliver the pieces one by one and return what was answered."""
        before = len(self.transport.written)
        for piece in pieces:
            self.connection.data_received(piece)
        for _ in range(5):
            await asyncio.sleep(0)
        return self.transport.written[before:]


def infer(body: bytes = b"{}", *, model: str = "echo", extra: bytes = b"") -> bytes:
    """Return a good inference request."""
    head = b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: localhost:8000\r\n%sContent-Length: %d\r\n\r\n"
    return head % (model.encode(), extra, len(body)) + body
