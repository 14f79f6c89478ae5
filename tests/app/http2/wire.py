"""A client's side of HTTP/2 in raw frames, over a transport that keeps what is written: no sockets, no clock."""

import asyncio
from collections.abc import Iterator
from typing import Any

from hpack import Decoder, Encoder

from app.edge.body_budget import BodyBudget
from app.edge.open_connections import OpenConnections
from app.edge.slow_readers import SlowReaders
from app.http2 import frames
from app.http2.connection import Http2Connection
from app.http2.decoding_turns import DecodingTurns
from app.http2.frames import Http2Error
from app.http2.hpack_decoder import HeaderList
from app.http2.limits import Http2Limits
from app.http2.open_connection import OpenConnection
from app.http2.sender import headers_frame
from app.http2.stream import Stream
from tests.app.http import wire as http_wire

HEADERS = [(":method", "POST"), (":scheme", "http"), (":path", "/echo"), (":authority", "localhost")]


class Transport(http_wire.Transport):
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class FakeLoop:
    """The clock and the callbacks of an event loop, both moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._ready: list[tuple[Any, tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Any, *arguments: Any) -> None:
        self._ready.append((callback, arguments))

    def turn(self) -> None:
        while self._ready:
            self.one_turn()

    def one_turn(self) -> None:
        ready, self._ready = self._ready, []
        for callback, arguments in ready:
            callback(*arguments)


class EchoStream(Stream):
    """Sends back what it gets when the client has ended; `hold` keeps it."""

    def __init__(self, connection: OpenConnection, stream_id: int, application: "EchoApplication") -> None:
        super().__init__(connection, stream_id)
        self.application = application
        self.body = b""
        self.gone = False
        self.granted_count = 0
        application.streams.append(self)

    def receive(self, data: Any, end: bool) -> None:
        if not self.spend(len(data)):
            return
        self.body += data
        if end:
            self.peer_ended = True
            if not self.application.hold:
                self.answer(self.body)

    def answer(self, body: bytes) -> None:
        self.connection.sender.write(headers_frame(self.stream_id, b"\x88", 0))
        self.send_data((body,))
        self.connection.sender.end(self, headers_frame(self.stream_id, b"\x88", frames.END_STREAM))
        if self.sent_end:
            self.connection.close_stream(self)

    def aborted(self) -> None:
        self.gone = True

    def expired(self) -> None:
        self.connection.reset(self, frames.CANCEL)

    def granted(self) -> None:
        self.granted_count += 1


class EchoHead:
    def __init__(self, application: "EchoApplication", headers: HeaderList, too_large: bool) -> None:
        self.application = application
        self.headers = headers
        self.too_large = too_large

    def open(self, connection: OpenConnection, stream_id: int) -> Stream | None:
        self.application.opened.append(self)
        if (b"x-malformed", b"1") in self.headers:
            return None
        return EchoStream(connection, stream_id, self.application)


class EchoApplication:
    def __init__(self, limits: Http2Limits) -> None:
        self.loop: asyncio.AbstractEventLoop = FakeLoop()  # type: ignore[assignment]
        self.http2 = limits
        self.connections: OpenConnections[OpenConnection] = OpenConnections(limits.max_connections)
        self.bodies = BodyBudget(1 << 30)
        self.slow_readers = SlowReaders(1 << 30)
        self.decoding_turns = DecodingTurns(self.loop)
        self.read_buffer = memoryview(bytearray(1 << 18))
        self.streams: list[EchoStream] = []
        self.opened: list[EchoHead] = []
        self.reads = 0
        self.hold = False
        self.refusals: list[str] = []

    def refused(self, error: Http2Error, transport: asyncio.BaseTransport) -> None:
        self.refusals.append(error.message)

    def ignores(self, name: bytes) -> bool:
        return name.startswith(b"trace")

    watched = b"traceparent"

    def heeds(self, value: bytes) -> bool:
        return value.endswith(b"-heeded")

    def read_head(self, headers: HeaderList, too_large: bool) -> EchoHead:
        self.reads += 1
        return EchoHead(self, headers, too_large)


class Frame:
    def __init__(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        self.kind = kind
        self.flags = flags
        self.stream_id = stream_id
        self.payload = payload

    def __repr__(self) -> str:
        return f"Frame({self.kind}, {self.flags}, {self.stream_id}, {self.payload[:40]!r})"


def split(data: bytes) -> Iterator[Frame]:
    offset = 0
    while offset < len(data):
        high, low, kind, flags, stream_id = frames.FRAME.unpack_from(data, offset)
        length = high << 16 | low
        offset += 9
        assert len(data) - offset >= length
        yield Frame(kind, flags, stream_id, data[offset : offset + length])
        offset += length


def deliver(connection: Http2Connection, data: bytes) -> None:
    """Have a connection read bytes as a loop would; what is in its buffer afterwards is something else."""
    for start in range(0, len(data), 1 << 18):
        piece = data[start : start + (1 << 18)]
        buffer = connection.get_buffer(-1)
        buffer[: len(piece)] = piece
        connection.buffer_updated(len(piece))
        buffer[: len(piece)] = b"\xee" * len(piece)


class Wire:
    """A connection, greeted unless told otherwise; `send` returns the frames that came back."""

    def __init__(
        self, limits: Http2Limits | None = None, *, greet: bool = True, settings: dict[int, int] | None = None
    ):
        self.application = EchoApplication(limits or Http2Limits())
        self.loop: FakeLoop = self.application.loop  # type: ignore[assignment]
        self.transport = Transport()
        self.encoder = Encoder()
        self.decoder = Decoder()
        self.connection = Http2Connection(self.application)
        self.connection.connection_made(self.transport)
        if greet:
            self.greeting = self.send(frames.PREFACE, frames.settings(settings or {}))

    def send(self, *pieces: bytes) -> list[Frame]:
        for piece in pieces:
            if not self.transport.closed:
                deliver(self.connection, piece)
        self.loop.turn()
        answered, self.transport.written = self.transport.written, b""
        return list(split(answered))

    def headers(self, stream_id: int, *extra: tuple[str, str], end: bool = False, flags: int = 4) -> bytes:
        block = self.encoder.encode([*HEADERS, *extra])
        return frames.frame(frames.HEADERS, flags | end, stream_id, block)

    def request(self, stream_id: int, body: bytes = b"body") -> bytes:
        return self.headers(stream_id) + data(stream_id, body, end=True)

    def sweep(self, seconds: float) -> list[Frame]:
        self.loop.now_s += seconds
        self.connection.sweep(self.loop.now_s)
        return self.send()


def data(stream_id: int, body: bytes, end: bool = False, flags: int = 0) -> bytes:
    return frames.frame(frames.DATA, flags | end, stream_id, body)


def goaway_code(answer: list[Frame]) -> int | None:
    """The code of the GOAWAY among the frames, None without one."""
    return next((int.from_bytes(f.payload[4:8], "big") for f in answer if f.kind == frames.GOAWAY), None)


def reset_codes(answer: list[Frame]) -> dict[int, int]:
    return {f.stream_id: int.from_bytes(f.payload, "big") for f in answer if f.kind == frames.RST_STREAM}


def bodies(answer: list[Frame]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for f in answer:
        if f.kind == frames.DATA:
            found[f.stream_id] = found.get(f.stream_id, b"") + f.payload
    return found
