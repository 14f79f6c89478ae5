"""F-GRPC: frames, headers and messages of clients that are broken or mean harm."""

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from app.http2 import frames
from tests.hostile.grpc_wire import GREETING, block, data, headers, prefixed
from tests.hostile.sockets import Piece
from tests.protocol.grpc_case import message

LIMIT_BYTES = 4 << 20
GOOD = message().SerializeToString()
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


@dataclass(frozen=True, slots=True)
class WireCase:
    """`outcome` is that of the stream `stream_id`, or of the connection; see `GrpcExchange.outcome`."""

    id: str
    content: bytes | tuple[Piece, ...] | Callable[[], bytes]
    outcome: str
    text: str = ""
    stream_id: int = 1
    greet: bool = True

    @property
    def pieces(self) -> tuple[Piece, ...]:
        made = self.content() if callable(self.content) else self.content
        return made if isinstance(made, tuple) else (made,)


def _call(encoded: bytes | None = None, body: bytes | None = None, stream_id: int = 1) -> bytes:
    return headers(stream_id, encoded) + data(stream_id, prefixed(GOOD) if body is None else body)


def _frame(kind: int, payload: bytes = b"", flags: int = 0, stream_id: int = 0) -> bytes:
    return frames.frame(kind, flags, stream_id, payload)


_MORE = (("x-junk", "y"),)
_SETTINGS, _PING, _RST, _WINDOW = frames.SETTINGS, frames.PING, frames.RST_STREAM, frames.WINDOW_UPDATE
_BIN = block(("x-bin", "not base64!"))
_CALM, _PROTOCOL, _SIZE, _FLOW = "goaway 11", "goaway 1", "goaway 6", "goaway 3"
_FLOOD = 2000
_OPEN = headers(1)

_HEADS = (
    ("good", block(), "status 0"),
    ("unknown-method", block(p_path="/inference.GRPCInferenceService/Nothing"), "status 12"),
    ("unknown-service", block(p_path="/nothing.Here/ModelInfer"), "status 12"),
    ("path-traversal", block(p_path="/inference.GRPCInferenceService/../ModelInfer"), "status 12"),
    ("path-without-slash", block(p_path="ModelInfer"), "status 12"),
    ("path-case", block(p_path="/inference.grpcinferenceservice/ModelInfer"), "status 12"),
    ("path-with-query", block(p_path="/inference.GRPCInferenceService/ModelInfer?x"), "status 12"),
    ("path-empty", block(p_path=""), "reset 1"),
    ("no-path", block(p_path=None), "reset 1"),
    ("no-method", block(p_method=None), "reset 1"),
    ("no-scheme", block(p_scheme=None), "reset 1"),
    ("get", block(p_method="GET"), "http 405"),
    ("no-content-type", block(content_type=None), "http 415"),
    ("content-type-json", block(content_type="application/json"), "http 415"),
    ("content-type-web", block(content_type="application/grpc-web"), "http 415"),
    ("te-gzip", block(te="gzip"), "reset 1"),
    ("connection-header", block(("connection", "close")), "reset 1"),
    ("transfer-encoding", block(("transfer-encoding", "chunked")), "reset 1"),
    ("upper-case-name", block(("X-Junk", "y")), "reset 1"),
    ("empty-name", block(("", "y")), "reset 1"),
    ("nul-in-value", block(("x", b"\0")), "reset 1"),
    ("line-feed-in-value", block(("x", b"a\r\nb")), "reset 1"),
    ("unknown-pseudo", block((":junk", "y")), "reset 1"),
    ("late-pseudo", block((":path", "/x")), "reset 1"),
    ("two-lengths", block(("content-length", "1"), ("content-length", "2")), "reset 1"),
    ("length-word", block(("content-length", "x")), "reset 1"),
    ("length-lies", block(("content-length", "1")), "reset 1"),
    ("timeout-junk", block(("grpc-timeout", "x")), "status 13"),
    ("timeout-negative", block(("grpc-timeout", "-1S")), "status 13"),
    ("timeout-long", block(("grpc-timeout", "999999999S")), "status 13"),
    ("encoding-unknown", block(("grpc-encoding", "br")), "status 12"),
    ("encoding-path", block(("grpc-encoding", "../../x")), "status 12"),
    ("bad-base64", _BIN, "status 0"),
    ("not-utf-8", block(("x", b"\xff\xfe")), "status 0"),
    ("forged-timeout-header", block(("x-request-timeout-seconds", "0")), "status 0"),
    ("multiplexed-model", block(("serve_multiplexed_model_id", "x")), "status 0"),
    ("70-kib-of-metadata", block(("x", "v" * (70 << 10))), "status 8"),
    ("130-kib-of-metadata", block(("x", "v" * (130 << 10))), _CALM),
    ("1000-fields", block(*_MORE * 1000), _CALM),
    ("bad-index", b"\xff\xff\xff\xff\x7f", "goaway 9"),
    ("truncated-block", block()[:-3], "goaway 9"),
    ("hpack-bomb", b"\x40\x01x\x7f\xa1\x1e" + b"v" * 4000 + b"\xbe" * 200, _CALM),
)
_BODIES = (
    ("no-bytes", b"", "status 13", "the request has no message"),
    ("half-prefix", b"\0\0\0", "status 13", "the request ended in the middle of a message"),
    ("half-message", prefixed(GOOD, length=len(GOOD) + 1), "status 13", "the request ended in the middle"),
    ("two-messages", prefixed(GOOD) * 2, "status 13", "a unary call has one request message"),
    ("flag-2", prefixed(GOOD, 2), "status 13", "malformed message"),
    ("flag-255", prefixed(GOOD, 255), "status 13", "malformed message"),
    ("compressed-without-encoding", prefixed(gzip.compress(GOOD), 1), "status 13", "grpc-encoding does not say how"),
    ("length-over-limit", prefixed(b"", length=LIMIT_BYTES + 1), "status 8", "larger than max"),
    ("length-2^32-1", prefixed(b"", length=2**32 - 1), "status 8", "larger than max"),
    ("empty-message", prefixed(b""), "status 5", ""),
    ("junk-message", prefixed(b"\xff" * 100), "status 3", "failed to parse"),
    ("not-protobuf", prefixed(b'{"inputs":[]}'), "status 3", "failed to parse"),
    ("overlong-varint", prefixed(b"\x0a" + b"\xff" * 11), "status 3", "failed to parse"),
    ("name-not-utf-8", prefixed(b"\x0a\x02\xff\xfe"), "status 3", "failed to parse"),
    ("group-end", prefixed(b"\x0c"), "status 3", "failed to parse"),
    ("deep-groups", prefixed(b"\x7b" * 10_000), "status 3", "failed to parse"),
    ("truncated", prefixed(GOOD[:-1]), "status 3", ""),
)
_GZIP, _DEFLATE = (block(("grpc-encoding", name)) for name in ("gzip", "deflate"))
_ZIPPED = gzip.compress(GOOD)
_PACKED = (
    ("gzip", _GZIP, _ZIPPED, "status 0"),
    ("deflate", _DEFLATE, zlib.compress(GOOD), "status 0"),
    ("gzip-damaged", _GZIP, b"\x1f\x8b" + b"\xff" * 30, "status 13"),
    ("gzip-truncated", _GZIP, _ZIPPED[:-5], "status 13"),
    ("gzip-twice", _GZIP, _ZIPPED * 2, "status 13"),
    ("gzip-plain", _GZIP, GOOD, "status 13"),
    ("gzip-bomb", _GZIP, gzip.compress(bytes(64 << 20)), "status 8"),
    ("gzip-of-many-fields", _GZIP, gzip.compress(b"\x0a\x06simple" + b"\x22\x00" * (32 << 20)), "status 8"),
    ("gzip-of-a-mebibyte-of-fields", _GZIP, gzip.compress(b"\x0a\x06simple" + b"\x22\x00" * 500_000), "status 3"),
    ("deflate-bomb", _DEFLATE, zlib.compress(bytes(64 << 20)), "status 8"),
)
_FRAMES = (
    ("settings-on-stream", _frame(_SETTINGS, stream_id=1), _PROTOCOL),
    ("settings-of-5-bytes", _frame(_SETTINGS, bytes(5)), _SIZE),
    ("settings-window-2^31", _frame(_SETTINGS, b"\0\4\x80\0\0\0"), _FLOW),
    ("settings-frame-size-0", _frame(_SETTINGS, b"\0\5\0\0\0\0"), _PROTOCOL),
    ("settings-push-2", _frame(_SETTINGS, b"\0\2\0\0\0\2"), _PROTOCOL),
    ("ping-of-7-bytes", _frame(_PING, bytes(7)), _SIZE),
    ("ping-on-stream", _frame(_PING, bytes(8), stream_id=1), _PROTOCOL),
    ("rst-idle", _frame(_RST, bytes(4), stream_id=1), _PROTOCOL),
    ("rst-stream-0", _frame(_RST, bytes(4)), _PROTOCOL),
    ("window-of-nothing", _frame(_WINDOW, bytes(4)), _PROTOCOL),
    ("window-overflow", _frame(_WINDOW, b"\x7f\xff\xff\xff"), _FLOW),
    ("window-of-3-bytes", _frame(_WINDOW, bytes(3)), _SIZE),
    ("window-idle", _frame(_WINDOW, b"\0\0\0\1", stream_id=5), _PROTOCOL),
    ("stream-window-of-nothing", _OPEN + _frame(_WINDOW, bytes(4), stream_id=1), "reset 1"),
    ("stream-window-overflow", _OPEN + _frame(_WINDOW, b"\x7f\xff\xff\xff", stream_id=1), "reset 3"),
    ("data-idle", data(1, b"x"), _PROTOCOL),
    ("data-stream-0", data(0, b"x"), _PROTOCOL),
    ("data-after-end", _OPEN + data(1, b"") + data(1, b"x"), "status 13"),
    ("data-all-padding", _OPEN + data(1, b"\x09" + bytes(8), flags=frames.PADDED), _PROTOCOL),
    ("headers-even-stream", headers(2), _PROTOCOL),
    ("headers-stream-0", headers(0), _PROTOCOL),
    ("headers-twice", _OPEN + headers(1), "reset 1"),
    ("push-promise", _frame(frames.PUSH_PROMISE, bytes(4), stream_id=1), _PROTOCOL),
    ("continuation-of-nothing", _frame(frames.CONTINUATION, b"", 4, 1), _PROTOCOL),
    ("headers-not-continued", _frame(frames.HEADERS, block(), 0, 1) + _frame(_PING, bytes(8)), _PROTOCOL),
    ("goaway-on-stream", _frame(frames.GOAWAY, bytes(8), stream_id=1), _PROTOCOL),
    ("priority-of-4-bytes", _OPEN + _frame(frames.PRIORITY, bytes(4), stream_id=1), _SIZE),
    ("frame-of-16-mb", b"\xff\xff\xff\0\0\0\0\0\1", _SIZE),
    ("settings-flood", _frame(_SETTINGS) * _FLOOD, _CALM),
    ("settings-ack-flood", _frame(_SETTINGS, flags=1) * _FLOOD, _CALM),
    ("settings-of-many-windows", _OPEN + _frame(_SETTINGS, b"\0\4\0\0\xff\xff" * 2700) * 80, _CALM),
    ("window-flood", _OPEN + _frame(_WINDOW, b"\0\0\0\1") * 80_000, _CALM),
    ("stream-window-flood", _OPEN + _frame(_WINDOW, b"\0\0\0\1", stream_id=1) * 80_000, _CALM),
    (
        "single-bytes",
        _OPEN + data(1, prefixed(b"", length=60_000), end=False) + data(1, b"x", end=False) * 50_000,
        _CALM,
    ),
    ("data-after-reset", _OPEN + _frame(_RST, bytes(4), stream_id=1) + data(1, b"x", end=False) * _FLOOD, _CALM),
    ("ping-flood", _frame(_PING, bytes(8)) * _FLOOD, _CALM),
    ("priority-flood", _OPEN + _frame(frames.PRIORITY, bytes(5), stream_id=1) * _FLOOD, _CALM),
    ("unknown-frame-flood", _frame(0x77, b"x") * _FLOOD, _CALM),
    ("empty-data-flood", _OPEN + data(1, b"", end=False) * _FLOOD, _CALM),
    (
        "continuation-flood",
        _frame(frames.HEADERS, block(), 0, 1) + _frame(frames.CONTINUATION, b"", 0, 1) * _FLOOD,
        _CALM,
    ),
    ("rapid-reset", b"".join(headers(i) + _frame(_RST, bytes(4), stream_id=i) for i in range(1, 6001, 2)), _CALM),
    ("rapid-bad-windows", b"".join(headers(i) + _frame(_WINDOW, bytes(4), stream_id=i) for i in range(1, 6001, 2)), ""),
    ("rapid-malformed", b"".join(headers(i, block(te="x")) for i in range(1, 6001, 2)), ""),
)

CASES = (
    *(WireCase(f"F-GRPC-head-{id}", _call(encoded), outcome) for id, encoded, outcome in _HEADS),
    *(WireCase(f"F-GRPC-body-{id}", _call(body=body), outcome, text) for id, body, outcome, text in _BODIES),
    *(WireCase(f"F-GRPC-{id}", _call(head, prefixed(body, 1)), outcome) for id, head, body, outcome in _PACKED),
    *(
        WireCase(f"F-GRPC-frame-{id}", sent, outcome or _CALM, "", 5999 if "rapid" in id else 1)
        for id, sent, outcome in _FRAMES
    ),
    WireCase("F-GRPC-timeout-0", _call(block(("grpc-timeout", "0n"))), "status 4"),
    WireCase("F-GRPC-end-without-data", headers(1, end=True), "status 13", "the request has no message"),
    WireCase(
        "F-GRPC-trailers-after-refusal",
        headers(1, block(te="x")) + headers(1, end=True) + _call(stream_id=3),
        "status 0",
        stream_id=3,
    ),
    WireCase("F-GRPC-http-1.1", b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n", _PROTOCOL, greet=False),
    WireCase("F-GRPC-tls-hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", _PROTOCOL, greet=False),
    WireCase("F-GRPC-no-settings", GREETING[:24] + _frame(_PING, bytes(8)), _PROTOCOL, greet=False),
    *(
        WireCase(f"F-GRPC-stream-{id}", _call(block(p_path=STREAM), body), outcome)
        for id, body, outcome in (
            ("no-message", b"", "status 0"),
            ("bad-first", prefixed(b"\xff" * 9), "status 0"),
            ("bad-next", prefixed(GOOD) + prefixed(b"\xff" * 9), "status 0"),
            ("bad-then-good", prefixed(b"") + prefixed(GOOD), "status 0"),
            ("half-message", prefixed(GOOD) + prefixed(GOOD)[:-1], "status 13"),
            ("flag-7", prefixed(GOOD) + prefixed(GOOD, 7), "status 13"),
            ("length-2^32-1", prefixed(GOOD) + prefixed(b"", length=2**32 - 1), "status 8"),
        )
    ),
)
"""The small messages of `tests.protocol.grpc_cases` are cases as well: see `test_hostile_grpc`."""
