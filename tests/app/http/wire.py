"""A connection over a transport that keeps what is written, for tests of the wire without sockets."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from app.http.connection import HttpConnection
from app.http.context import HttpContext
from app.http.head_policy import HeadPolicy
from app.http.limits import HttpLimits
from protocol.errors import NotFound, ServingError


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.aborted = False
        self.reading = True
        self.unsent_bytes = 0

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def writelines(self, parts: Any) -> None:
        self.written += b"".join(parts)

    def close(self) -> None:
        self.closed = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True  # for who reads it

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class EchoTarget:
    """Answers with the body it got; `hold` keeps the answers back."""

    model_name = "echo"
    version = 1
    ready = True
    shared = False

    def __init__(self) -> None:
        self.hold = False
        self.json_lengths: list[int | None] = []
        self.sinks: list[Any] = []
        self.bodies: list[bytes] = []
        self.cancelled: list[Any] = []
        self._held: list[Any] = []

    def submit(self, parts: Sequence[Any], json_length: int | None, sink: Any, wire: int = 0, trace: Any = None) -> int:
        body = b"".join(parts)
        self.bodies.append(body)
        self.json_lengths.append(json_length)
        self.sinks.append(sink)
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


class EchoRoutes:
    """Knows the model `echo`, whose inputs are `inputs`, and which is `decoupled` where `generate` asks."""

    def __init__(self) -> None:
        self.target = EchoTarget()
        self.inputs: list[dict[str, Any]] = []
        self.decoupled = True

    def resolve(self, quoted_name: bytes, version: int) -> EchoTarget:
        if quoted_name != b"echo":
            raise NotFound(f"Request for unknown model: '{quoted_name.decode()}' is not found")
        return self.target

    def resolve_generate(self, quoted_name: bytes, version: int) -> tuple[EchoTarget, list[dict[str, Any]], bool]:
        return self.resolve(quoted_name, version), self.inputs, self.decoupled


class Wire:
    """One connection to a front that knows the model `echo`, or what `routes` knows."""

    def __init__(
        self,
        limits: HttpLimits | None = None,
        policy: HeadPolicy | None = None,
        app: Any = hello,
        routes: Any = None,
    ) -> None:
        self.routes = routes or EchoRoutes()
        self.loop = asyncio.get_running_loop()
        self.context = HttpContext(app, self.routes, limits or HttpLimits(), self.loop, policy)
        self.transport = Transport()
        self.connection = HttpConnection(self.context)
        self.connection.connection_made(self.transport)

    def share(self, other: "Wire") -> None:
        """Become a connection of the port that the other is one of."""
        self.routes, self.context = other.routes, other.context
        self.connection, self.transport = HttpConnection(self.context), Transport()
        self.connection.connection_made(self.transport)

    @property
    def target(self) -> EchoTarget:
        return self.routes.target

    def _deliver(self, data: bytes) -> None:
        """Have the connection read bytes as a loop would; what is in the shared buffer afterwards is something else."""
        while data:
            buffer = self.connection.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self.connection.buffer_updated(size)
            data = data[size:]
            self.context.read_buffer[:] = b"\xee" * len(self.context.read_buffer)

    async def send(self, *pieces: bytes) -> bytes:
        """Deliver the pieces one by one and return what was answered."""
        before = len(self.transport.written)
        for piece in pieces:
            self._deliver(piece)
        for _ in range(5):
            await asyncio.sleep(0)
        return self.transport.written[before:]

    async def answered(self, *pieces: bytes) -> "Answer":
        """Deliver the pieces and return the answer, however many threads it takes."""
        before = len(self.transport.written)
        for piece in pieces:
            self._deliver(piece)
        async with asyncio.timeout(10):
            while self.connection._busy:
                await asyncio.sleep(0)
        return Answer(self.transport.written[before:])

    async def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> "Answer":
        """Send a request (`_` in the names of headers stands for `-`) and return its answer."""
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost:8000", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return await self.answered("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)


class Answer:
    """One response, taken apart."""

    def __init__(self, data: bytes) -> None:
        head, _, rest = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ")[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        self.body = _unchunked(rest) if self.headers.get("transfer-encoding") == "chunked" else rest

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


def _unchunked(data: bytes) -> bytes:
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        body += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return body


def infer(body: bytes = b"{}", *, model: str = "echo", extra: bytes = b"") -> bytes:
    """Return a good inference request."""
    head = b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: localhost:8000\r\n%sContent-Length: %d\r\n\r\n"
    return head % (model.encode(), extra, len(body)) + body
