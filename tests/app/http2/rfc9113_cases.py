"""What a client may not do, or may do though few clients do it, by section of RFC 9113 and, from "C", of RFC 7541."""

from dataclasses import dataclass
from typing import Final

from app.http2 import frames
from app.http2.frames import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITISED,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
)
from tests.hostile.grpc_wire import block as made_block
from tests.hostile.grpc_wire import data, headers, prefixed

PATH: Final = "/inference.GRPCInferenceService/ServerLive"
GREETING: Final = frames.PREFACE + frames.settings({})


@dataclass(frozen=True)
class Rfc9113Case:
    """`expected`: "goaway CODE", "reset STREAM CODE", or "served": the connection is as good as before.

    "status STREAM": that call was answered; "ack": so were a SETTINGS or PING of the client.
    """

    section: str
    name: str
    sent: bytes
    expected: str
    greet: bool = True


def block(*more: tuple[str | bytes, str | bytes], **changed: str | None) -> bytes:
    return made_block(*more, **{"p_path": PATH, **changed})


def _open(
    stream_id: int = 1, *more: tuple[str | bytes, str | bytes], end: bool = False, **changed: str | None
) -> bytes:
    return headers(stream_id, block(*more, **changed), end)


def call(stream_id: int = 1, *more: tuple[str | bytes, str | bytes], **changed: str | None) -> bytes:
    return _open(stream_id, *more, **changed) + data(stream_id, prefixed(b""))


def _frame(kind: int, payload: bytes = b"", flags: int = 0, stream_id: int = 0) -> bytes:
    return frames.frame(kind, flags, stream_id, payload)


def _setting(name: int, value: int) -> bytes:
    return frames.settings({name: value})


def _ended(code: int) -> str:
    return f"goaway {code}"


def _reset(code: int, stream_id: int = 1) -> str:
    return f"reset {stream_id} {code}"


_PROTOCOL, _SIZE, _FLOW = _ended(PROTOCOL_ERROR), _ended(FRAME_SIZE_ERROR), _ended(FLOW_CONTROL_ERROR)
_COMPRESSION, _MALFORMED = _ended(COMPRESSION_ERROR), _reset(PROTOCOL_ERROR)
_B = block()
_PRIORITY = b"\0\0\0\0\x0f"
_END = END_HEADERS | END_STREAM
_RESET = _frame(RST_STREAM, b"\0\0\0\x08", stream_id=1)

_TABLE: Final[tuple[tuple[str, str, bytes, str], ...]] = (
    # Starting
    ("3.4", "settings follow the preface", b"", "ack"),
    ("3.4", "a call in the same packet", call(), "status 1"),
    # Frames
    ("4.1", "unknown frame type", _frame(0x16, b"????????"), "served"),
    ("4.1", "unknown frame type on a stream", _open() + _frame(0x16, b"?", 0xFF, 1) + data(1, prefixed(b"")), "status 1"),
    ("4.1", "undefined flags of PING", _frame(PING, bytes(8), 0x16), "ack"),
    ("4.1", "undefined flags of HEADERS", _frame(HEADERS, _B, END_HEADERS | 0x90, 1) + data(1, prefixed(b"")), "status 1"),
    ("4.1", "reserved bit of the stream identifier", b"\0\0\x08\x06\0\x80\0\0\0" + bytes(8), "ack"),
    ("4.2", "DATA of 2^14 bytes", _open() + data(1, prefixed(b"", 0, 1 << 14)[:5] + bytes((1 << 14) - 5), False), "served"),
    ("4.2", "DATA over SETTINGS_MAX_FRAME_SIZE", _open() + b"\x10\0\x01\0\0\0\0\0\1", _SIZE),
    ("4.2", "HEADERS over SETTINGS_MAX_FRAME_SIZE", b"\x10\0\x01\x01\x04\0\0\0\1", _SIZE),
    ("4.3", "header block that cannot be decoded", headers(1, b"\xff\xff\xff\xff\xff\xff"), _COMPRESSION),
    ("4.3", "the same in trailers", _open() + headers(1, b"\x3f", True), _COMPRESSION),
    ("4.3", "PRIORITY within a header block", _frame(HEADERS, _B, 0, 1) + _frame(PRIORITY, _PRIORITY, 0, 1), _PROTOCOL),
    ("4.3", "HEADERS of another stream within a header block", _frame(HEADERS, _B, 0, 1) + _open(3), _PROTOCOL),
    ("4.3", "DATA within a header block", _frame(HEADERS, _B, 0, 1) + data(1, b"x"), _PROTOCOL),
    ("4.3", "unknown frame within a header block", _frame(HEADERS, _B, 0, 1) + _frame(0x16, b"", 0, 1), _PROTOCOL),
    # Stream states
    ("5.1", "idle: DATA", data(1, b"test"), _PROTOCOL),
    ("5.1", "idle: RST_STREAM", _RESET, _PROTOCOL),
    ("5.1", "idle: WINDOW_UPDATE", frames.window_update(1, 100), _PROTOCOL),
    ("5.1", "idle: CONTINUATION", _frame(CONTINUATION, _B, END_HEADERS, 1), _PROTOCOL),
    ("5.1", "idle: PRIORITY", _frame(PRIORITY, _PRIORITY, 0, 1) + call(), "status 1"),
    ("5.1", "half-closed (remote): DATA", _open(p_path=None, end=True) + data(1, b"test"), _MALFORMED),
    ("5.1", "half-closed (remote): CONTINUATION", _open(end=True) + _frame(CONTINUATION, _B, END_HEADERS, 1), _PROTOCOL),
    ("5.1", "closed by RST_STREAM: DATA", _open() + _RESET + data(1, b"test"), _reset(STREAM_CLOSED)),
    ("5.1", "closed by RST_STREAM: HEADERS", _open() + _RESET + _open(end=True), _ended(STREAM_CLOSED)),
    ("5.1", "closed by RST_STREAM: CONTINUATION", _open() + _RESET + _frame(CONTINUATION, _B, 4, 1), _PROTOCOL),
    ("5.1", "closed by RST_STREAM: WINDOW_UPDATE", _open() + _RESET + frames.window_update(1, 1), "served"),
    ("5.1", "closed by RST_STREAM: RST_STREAM", _open() + _RESET * 2, "served"),
    ("5.1", "closed: DATA", call() + data(1, b"test"), _reset(STREAM_CLOSED)),
    ("5.1", "closed: HEADERS", call() + _open(end=True), _ended(STREAM_CLOSED)),
    ("5.1", "closed: CONTINUATION", call() + _frame(CONTINUATION, _B, END_HEADERS, 1), _PROTOCOL),
    ("5.1", "closed: WINDOW_UPDATE", call() + frames.window_update(1, 1), "served"),
    ("5.1", "closed: RST_STREAM", call() + _RESET, "served"),
    ("5.1", "closed: PRIORITY", call() + _frame(PRIORITY, _PRIORITY, 0, 1), "served"),
    ("5.1", "reset from here: DATA and HEADERS sent before that was known",
     _open(te="x") + data(1, b"x", False) + _open(end=True), "served"),
    ("5.1.1", "even identifier", _open(2), _PROTOCOL),
    ("5.1.1", "identifier 0", _open(0), _PROTOCOL),
    ("5.1.1", "smaller identifier than the last", call(5) + call(3), _PROTOCOL),
    ("5.1.1", "identifiers left out", call(5) + call(11), "status 11"),
    ("5.1.2", "more streams than SETTINGS_MAX_CONCURRENT_STREAMS",
     _frame(SETTINGS, b"", ACK) + b"".join(_open(i) for i in range(1, 515, 2)) + _RESET, _reset(REFUSED_STREAM, 513)),
    ("5.3.1", "PRIORITY of a stream that depends on itself", _frame(PRIORITY, b"\0\0\0\1\x0f", 0, 1) + call(), "status 1"),
    ("5.5", "extension frame", _frame(0x77, bytes(100)) + call(), "status 1"),
    # DATA
    ("6.1", "DATA on stream 0", data(0, b"test"), _PROTOCOL),
    ("6.1", "padding as long as the payload", _open() + data(1, b"\x05test", flags=PADDED), _PROTOCOL),
    ("6.1", "padding longer than the payload", _open() + data(1, b"\xfftest", flags=PADDED), _PROTOCOL),
    ("6.1", "padded DATA without a length", _open() + data(1, b"", flags=PADDED), _PROTOCOL),
    ("6.1", "padded DATA", _open() + data(1, b"\x03" + prefixed(b"") + bytes(3), flags=PADDED), "status 1"),
    ("6.1", "several frames of DATA", _open() + data(1, b"\0\0", False) + data(1, b"\0\0\0"), "status 1"),
    ("6.1", "empty DATA that ends the stream", _open() + data(1, prefixed(b""), False) + data(1, b""), "status 1"),
    # HEADERS
    ("6.2", "HEADERS on stream 0", _open(0), _PROTOCOL),
    ("6.2", "padding longer than the payload", _frame(HEADERS, b"\xff" + _B[:100], _END | PADDED, 1), _PROTOCOL),
    ("6.2", "padded HEADERS", _frame(HEADERS, b"\4" + _B + bytes(4), 4 | PADDED, 1) + data(1, prefixed(b"")), "status 1"),
    ("6.2", "HEADERS with priority",
     _frame(HEADERS, _PRIORITY + _B, END_HEADERS | PRIORITISED, 1) + data(1, prefixed(b"")), "status 1"),
    ("6.2", "priority cut off", _frame(HEADERS, b"\0\0", END_HEADERS | PRIORITISED, 1), _SIZE),
    # PRIORITY
    ("6.3", "PRIORITY of 4 bytes", _frame(PRIORITY, bytes(4), 0, 1), _SIZE),
    ("6.3", "PRIORITY of 6 bytes", _frame(PRIORITY, bytes(6), 0, 1), _SIZE),
    ("6.3", "PRIORITY of a later stream", _frame(PRIORITY, _PRIORITY, 0, 9) + call(), "status 1"),
    # RST_STREAM
    ("6.4", "RST_STREAM on stream 0", _frame(RST_STREAM, bytes(4)), _PROTOCOL),
    ("6.4", "RST_STREAM of 3 bytes", _open() + _frame(RST_STREAM, bytes(3), 0, 1), _SIZE),
    ("6.4", "RST_STREAM of 5 bytes", _open() + _frame(RST_STREAM, bytes(5), 0, 1), _SIZE),
    ("6.4", "RST_STREAM with an unknown code", _open() + _frame(RST_STREAM, b"\0\0\0\xff", 0, 1), "served"),
    # SETTINGS
    ("6.5", "ACK with a payload", _frame(SETTINGS, bytes(6), ACK), _SIZE),
    ("6.5", "SETTINGS on a stream", _frame(SETTINGS, b"", 0, 1), _PROTOCOL),
    ("6.5", "SETTINGS of 3 bytes", _frame(SETTINGS, bytes(3)), _SIZE),
    ("6.5", "ACK", _frame(SETTINGS, b"", ACK), "served"),
    ("6.5.2", "ENABLE_PUSH of 2", _setting(2, 2), _PROTOCOL),
    ("6.5.2", "ENABLE_PUSH of 1", _setting(2, 1), "ack"),
    ("6.5.2", "INITIAL_WINDOW_SIZE of 2^31", _setting(4, 1 << 31), _FLOW),
    ("6.5.2", "INITIAL_WINDOW_SIZE of 2^31-1", _setting(4, (1 << 31) - 1), "ack"),
    ("6.5.2", "MAX_FRAME_SIZE under 2^14", _setting(5, (1 << 14) - 1), _PROTOCOL),
    ("6.5.2", "MAX_FRAME_SIZE of 2^14", _setting(5, 1 << 14), "ack"),
    ("6.5.2", "MAX_FRAME_SIZE over 2^24-1", _setting(5, 1 << 24), _PROTOCOL),
    ("6.5.2", "MAX_FRAME_SIZE of 2^24-1", _setting(5, (1 << 24) - 1), "ack"),
    ("6.5.2", "unknown setting", _setting(0xFF, 7), "ack"),
    ("6.5.2", "HEADER_TABLE_SIZE of 0", _setting(1, 0) + call(), "status 1"),
    ("6.5.2", "the same setting several times", _frame(SETTINGS, b"\0\4\0\0\0\0" + b"\0\4\0\1\0\0") + call(), "status 1"),
    ("6.5.3", "settings are acknowledged", _setting(4, 100_000), "ack"),
    # PUSH_PROMISE
    ("6.6", "PUSH_PROMISE from a client", _frame(PUSH_PROMISE, b"\0\0\0\2" + _B, 4, 1), _PROTOCOL),
    # PING
    ("6.7", "PING", _frame(PING, b"testping"), "ack"),
    ("6.7", "PING with ACK", _frame(PING, b"testping", ACK), "served"),
    ("6.7", "PING on a stream", _frame(PING, bytes(8), 0, 1), _PROTOCOL),
    ("6.7", "PING of 6 bytes", _frame(PING, bytes(6)), _SIZE),
    ("6.7", "PING of 9 bytes", _frame(PING, bytes(9)), _SIZE),
    # GOAWAY
    ("6.8", "GOAWAY on a stream", _frame(GOAWAY, bytes(8), 0, 1), _PROTOCOL),
    ("6.8", "GOAWAY", _frame(GOAWAY, bytes(8)) + call(), "status 1"),
    # WINDOW_UPDATE
    ("6.9", "increment 0 of the connection", _frame(WINDOW_UPDATE, bytes(4)), _PROTOCOL),
    ("6.9", "increment 0 of a stream", _open() + _frame(WINDOW_UPDATE, bytes(4), 0, 1), _MALFORMED),
    ("6.9", "WINDOW_UPDATE of 3 bytes", _frame(WINDOW_UPDATE, bytes(3)), _SIZE),
    ("6.9", "WINDOW_UPDATE of 5 bytes on a stream", _open() + _frame(WINDOW_UPDATE, bytes(5), 0, 1), _SIZE),
    ("6.9", "reserved bit of the increment", _frame(WINDOW_UPDATE, b"\x80\0\0\1"), "served"),
    ("6.9.1", "connection window over 2^31-1", frames.window_update(0, 2**31 - 1) * 2, _FLOW),
    ("6.9.1", "stream window over 2^31-1", _open() + frames.window_update(1, 2**31 - 1) * 2, _reset(FLOW_CONTROL_ERROR)),
    ("6.9.2", "window that the initial size makes negative",
     _setting(4, 0) + call() + _setting(4, 1000), "status 1"),
    ("6.9.2", "initial size that makes a window overflow", _open() + frames.window_update(1, 2**30) + _setting(4, 2**31 - 1),
     _FLOW),
    # CONTINUATION
    ("6.10", "several CONTINUATION frames",
     _frame(HEADERS, _B[:5], 0, 1) + _frame(CONTINUATION, _B[5:9], 0, 1) + _frame(CONTINUATION, _B[9:], 4, 1)
     + data(1, prefixed(b"")), "status 1"),
    ("6.10", "CONTINUATION followed by another frame",
     _frame(HEADERS, _B[:5], 0, 1) + _frame(CONTINUATION, _B[5:9], 0, 1) + data(1, b"x"), _PROTOCOL),
    ("6.10", "CONTINUATION on stream 0", _frame(HEADERS, _B[:5], 0, 1) + _frame(CONTINUATION, _B[5:], 4, 0), _PROTOCOL),
    ("6.10", "CONTINUATION of another stream", _frame(HEADERS, _B[:5], 0, 1) + _frame(CONTINUATION, _B[5:], 4, 3), _PROTOCOL),
    ("6.10", "CONTINUATION after END_HEADERS", _open() + _frame(CONTINUATION, _B, 4, 1), _PROTOCOL),
    ("6.10", "CONTINUATION after CONTINUATION with END_HEADERS",
     _frame(HEADERS, _B[:5], 0, 1) + _frame(CONTINUATION, _B[5:], 4, 1) + _frame(CONTINUATION, _B, 4, 1), _PROTOCOL),
    ("6.10", "CONTINUATION after DATA", _open() + data(1, b"\0", False) + _frame(CONTINUATION, _B, 4, 1), _PROTOCOL),
    ("7", "GOAWAY with an unknown code", _frame(GOAWAY, b"\0\0\0\0\0\0\0\xff") + call(), "status 1"),
    # Messages
    ("8.1", "trailers without END_STREAM", _open() + headers(1, b"\0\1a\1b"), _MALFORMED),
    ("8.1", "trailers", _open() + data(1, prefixed(b""), False) + headers(1, b"\0\1a\1b", True), "status 1"),
    ("8.1.1", "content-length larger than the DATA", call(1, ("content-length", "6")), _MALFORMED),
    ("8.1.1", "content-length smaller than the DATA", call(1, ("content-length", "4")), _MALFORMED),
    ("8.1.1", "content-length of several frames",
     _open(1, ("content-length", "9")) + data(1, b"\0\0", False) + data(1, b"\0\0\0"), _MALFORMED),
    ("8.2.1", "upper-case name", call(1, ("X-TEST", "ok")), _MALFORMED),
    ("8.2.1", "line feed in a value", call(1, ("x", "a\nb")), _MALFORMED),
    ("8.2.1", "NUL in a value", call(1, ("x", b"a\0b")), _MALFORMED),
    ("8.2.1", "space in a name", call(1, ("a b", "c")), _MALFORMED),
    ("8.2.2", "connection", call(1, ("connection", "keep-alive")), _MALFORMED),
    ("8.2.2", "keep-alive", call(1, ("keep-alive", "1")), _MALFORMED),
    ("8.2.2", "upgrade", call(1, ("upgrade", "h2c")), _MALFORMED),
    ("8.2.2", "te other than trailers", call(1, te="trailers, deflate"), _MALFORMED),
    ("8.3", "unknown pseudo-header", call(1, (":test", "ok")), _MALFORMED),
    ("8.3", "pseudo-header of responses", call(1, (":status", "200")), _MALFORMED),
    ("8.3", "pseudo-header behind a field", call(1, ("x", "y"), (":path", PATH), p_path=None), _MALFORMED),
    ("8.3.1", "empty :path", call(1, p_path=""), _MALFORMED),
    ("8.3.1", "no :method", call(1, p_method=None), _MALFORMED),
    ("8.3.1", "no :scheme", call(1, p_scheme=None), _MALFORMED),
    ("8.3.1", "no :path", call(1, p_path=None), _MALFORMED),
    ("8.3.1", "two of :method", headers(1, b"\x83" + _B), _MALFORMED),
    # HPACK
    ("C 2.3.3", "index 0", headers(1, b"\x80"), _COMPRESSION),
    ("C 2.3.3", "index beyond both tables", headers(1, _B + b"\xfe"), _COMPRESSION),
    ("C 2.3.3", "name's index beyond both tables", headers(1, _B + b"\x7e\1x"), _COMPRESSION),
    ("C 4.2", "table size update behind a field", headers(1, _B + b"\x20"), _COMPRESSION),
    ("C 5.1", "integer without end", headers(1, _B + b"\xff" + b"\xff" * 10), _COMPRESSION),
    ("C 5.2", "string beyond the block", headers(1, _B + b"\0\1a\x7f\x01x"), _COMPRESSION),
    ("C 5.2", "Huffman padding of a byte and more", headers(1, _B + b"\0\1a\x84\x49\x50\x9f\xff"), _COMPRESSION),
    ("C 5.2", "Huffman padding of zeros", headers(1, _B + b"\0\1a\x83\x49\x50\x90"), _COMPRESSION),
    ("C 5.2", "Huffman string with EOS", headers(1, _B + b"\0\1a\x87\xff\xff\xff\xfd\x25\x42\x7f"), _COMPRESSION),
    ("C 6.1", "field 62 of an empty dynamic table", headers(1, _B + b"\xbe"), _COMPRESSION),
    ("C 6.2", "each kind of literal",
     headers(1, _B + b"\x40\1a\1b" + b"\x00\1c\1d" + b"\x10\1e\1f" + b"\xbe") + data(1, prefixed(b"")), "status 1"),
    ("C 6.2.1", "entry larger than the table empties it",
     headers(1, b"\x40\1a\1b" + b"\x40\1a\x7f\xa1\x1f" + bytes([118]) * 4128 + b"\xbe"), _COMPRESSION),
    ("C 6.3", "table size update over the limit", headers(1, b"\x3f\xe2\x1f" + _B), _COMPRESSION),
    ("C 6.3", "table size update to 0 and back",
     headers(1, b"\x20\x3f\xe1\x1f" + _B) + data(1, prefixed(b"")), "status 1"),
)  # fmt: skip

CASES: Final = (
    *(Rfc9113Case(*row) for row in _TABLE),
    Rfc9113Case("3.4", "a preface that is none", b"INVALID CONNECTION PREFACE\r\n\r\n", _PROTOCOL, False),
    Rfc9113Case("3.4", "a frame other than SETTINGS first", frames.PREFACE + _frame(PING, bytes(8)), _PROTOCOL, False),
    Rfc9113Case("3.4", "HTTP/1.1", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", _PROTOCOL, False),
    Rfc9113Case(
        "3.4", "SETTINGS with values first", frames.PREFACE + frames.settings({3: 100, 4: 1 << 20}), "ack", False
    ),
)
