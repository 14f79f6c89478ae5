"""gRPC on the level of HTTP/2 frames: what a client may send, whole or broken, and what came of it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote

from hpack import Decoder

from app.grpc.status import literal
from app.http2 import frames
from tests.hostile.sockets import Piece, Wire, exchange
from tests.hostile.watch import INFER

GREETING = frames.PREFACE + frames.settings({})
HEADERS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", INFER),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)


def block(*more: tuple[str | bytes, str | bytes], **changed: str | None) -> bytes:
    """A header block of literals; `changed` replaces or, being None, leaves out, `_` standing for `-`, `p_` for `:`."""
    fields: list[tuple[str | bytes, str | bytes]] = []
    renamed = {(":" + k[2:] if k.startswith("p_") else k.replace("_", "-")): v for k, v in changed.items()}
    for name, value in HEADERS:
        kept = renamed.get(name, value)
        if kept is not None:
            fields.append((name, kept))
    return b"".join(literal(_bytes(name), _bytes(value)) for name, value in [*fields, *more])


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def headers(stream_id: int, encoded: bytes | None = None, end: bool = False) -> bytes:
    """A HEADERS frame, by default of a good call of ModelInfer."""
    flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
    return frames.frame(frames.HEADERS, flags, stream_id, block() if encoded is None else encoded)


def data(stream_id: int, payload: bytes, end: bool = True, flags: int = 0) -> bytes:
    return frames.frame(frames.DATA, flags | (frames.END_STREAM if end else 0), stream_id, payload)


def prefixed(message: bytes, flag: int = 0, length: int | None = None) -> bytes:
    """A length-prefixed message, or one that lies about its length."""
    return bytes([flag]) + (len(message) if length is None else length).to_bytes(4, "big") + message


@dataclass(slots=True)
class GrpcExchange:
    """What came back: statuses and resets by stream, the code of GOAWAY, None without one."""

    statuses: dict[int, tuple[int, str]] = field(default_factory=dict)
    http: dict[int, str] = field(default_factory=dict)
    resets: dict[int, int] = field(default_factory=dict)
    goaway: int | None = None
    closed: bool = False
    size: int = 0
    text: bytes = b""

    @property
    def outcome(self) -> str:
        """One word for it: `goaway <code>`, or `status <code>`, `http <code>` or `reset <code>` of the last stream."""
        if self.goaway is not None:
            return f"goaway {self.goaway}"
        last = max({*self.statuses, *self.resets, *self.http}, default=None)
        if last is None:
            return "closed" if self.closed else "nothing"
        if self.http.get(last, "200") != "200":
            return f"http {self.http[last]}"
        if last in self.statuses:
            return f"status {self.statuses[last][0]}"
        return f"reset {self.resets[last]}"


def read(wire: Wire) -> GrpcExchange:
    """Understand the frames of a server; an incomplete one at the end is left."""
    got = GrpcExchange(closed=wire.closed)
    decoder = Decoder()
    offset, received = 0, wire.received
    while len(received) - offset >= frames.FRAME_SIZE:
        high, low, kind, _, stream_id = frames.FRAME.unpack_from(received, offset)
        start = offset + frames.FRAME_SIZE
        offset = start + (high << 16 | low)
        if offset > len(received):
            break
        payload = received[start:offset]
        if kind == frames.HEADERS:
            fields = dict(decoder.decode(payload))
            got.size += len(payload)
            got.text += payload
            if ":status" in fields:
                got.http[stream_id] = fields[":status"]
            if "grpc-status" in fields:
                got.statuses[stream_id] = int(fields["grpc-status"]), unquote(fields.get("grpc-message", ""))
        elif kind == frames.RST_STREAM and stream_id not in got.statuses:
            got.resets[stream_id] = int.from_bytes(payload, "big")
        elif kind == frames.GOAWAY:
            got.goaway = int.from_bytes(payload[4:8], "big")
            got.text += payload[8:]
    return got


def talk(address: str, pieces: Iterable[Piece], stream_id: int, wait_s: float, greet: bool = True) -> GrpcExchange:
    """Greet, send the pieces; returns when the stream or the connection has ended, or the time is over."""

    def complete(wire: Wire) -> bool:
        got = read(wire)
        return stream_id in got.statuses or stream_id in got.resets or got.goaway is not None

    return read(exchange(address, [GREETING, *pieces] if greet else pieces, complete, wait_s))
