"""The headers of a gRPC request: which method, how long it may take, how its messages are compressed."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from app.grpc.compression import ENCODINGS, response_encoding
from app.grpc.context import CallContext
from app.grpc.deadline import parse_timeout
from app.grpc.method import Method
from app.grpc.options import GrpcOptions
from app.grpc.status import (
    ACCEPT_ENCODING,
    INTERNAL,
    RESOURCE_EXHAUSTED,
    RESPONSE,
    UNIMPLEMENTED,
    UNKNOWN,
    http_refusal,
    trailers,
)
from app.http2.hpack_decoder import HeaderList
from app.http2.open_connection import OpenConnection
from app.http2.stream import Stream
from app.trace.trace_parent import HEADER, TraceParent, read_parent
from protocol.errors import ServingError
from protocol.grpc_parameters import request_fields

# Behind the plus is the name of the client's codec, such as `raw` for messages that are bytes already.
_CONTENT_TYPE: Final = re.compile(rb"application/grpc(?:[+;].*)?", re.IGNORECASE)
_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_CONNECTION_HEADERS: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_BAD_NAME: Final = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9a-z]")
_BAD_VALUE: Final = re.compile(rb"[\x00\r\n]")
_OWN: Final = frozenset((b"content-type", b"te"))


_CONSEQUENTIAL: Final = _CONNECTION_HEADERS | _OWN | {b"content-length"}


def ignored(name: bytes, options: GrpcOptions) -> bool:
    """Whether a header of this name is well-formed and changes nothing about a head."""
    return not (
        not name
        or _BAD_NAME.search(name)
        or name in _CONSEQUENTIAL
        or name.startswith((b"grpc-", b"triton"))
        or options.access.is_read(name)
        or options.forwarding.is_read(name)
    )


class GrpcHead:
    """One header list, understood once; opened for every request that comes with it.

    Whoever makes a head sets `call`: what to make of such a request; None resets its stream as malformed.
    """

    __slots__ = (
        "call",
        "content_length",
        "context",
        "encoding",
        "forwarded",
        "malformed",
        "max_message_bytes",
        "metadata",
        "method",
        "refusal",
        "refused",
        "response_encoding",
        "timeout_s",
        "trace_parent",
    )

    def __init__(
        self, context: CallContext, methods: Mapping[bytes, Method], headers: HeaderList, too_large: bool
    ) -> None:
        self.context = context
        self.call: Callable[[OpenConnection, int, GrpcHead], Stream] | None = None
        self.method: Method | None = None
        self.metadata: dict[bytes, bytes] = {}
        self.content_length = -1
        self.encoding = b"identity"
        self.max_message_bytes = 0
        self.forwarded = b""
        """Fields of a ModelInferRequest: the parameters that a request gets from these headers."""
        self.response_encoding = b""
        self.timeout_s: float | None = None
        self.trace_parent: TraceParent | None = None
        self.refusal: bytes | None = None
        """The header block that answers the request at once."""
        self.refused = (INTERNAL, "")
        """The status and message in it."""
        pseudo = self._split(headers)
        self.malformed = pseudo is None
        if pseudo is not None:
            self.refusal = (
                self._refuse(RESOURCE_EXHAUSTED, "metadata is too large")
                if too_large
                else self._read(pseudo, methods, headers)
            )

    def open(self, connection: OpenConnection, stream_id: int) -> Stream | None:
        """Return a call of the method, None when the headers are malformed."""
        return None if self.call is None else self.call(connection, stream_id, self)

    def _split(self, headers: HeaderList) -> dict[bytes, bytes] | None:
        """Return the pseudo-headers and keep the others; None when malformed (RFC 9113 §8.2, §8.3)."""
        pseudo: dict[bytes, bytes] = {}
        for name, value in headers:
            if _BAD_VALUE.search(value):
                return None
            if name[:1] == b":":
                if name not in _PSEUDO or name in pseudo or self.metadata:
                    return None
                pseudo[name] = value
            elif (
                not name
                or _BAD_NAME.search(name)
                or name in _CONNECTION_HEADERS
                or (name == b"te" and value != b"trailers")
            ):
                return None
            elif name == b"content-length":
                if not value.isdigit() or len(value) > 18 or self.content_length not in (-1, int(value)):
                    return None
                self.content_length = int(value)
            else:
                self.metadata[name] = value
        if not all(pseudo.get(name) for name in (b":method", b":scheme", b":path")):
            return None
        return pseudo

    def _read(self, pseudo: dict[bytes, bytes], methods: Mapping[bytes, Method], headers: HeaderList) -> bytes | None:
        """Fill in what calls need; returns the refusal of what cannot be called."""
        metadata, options = self.metadata, self.context.options
        self.refused = (UNKNOWN, "this is no gRPC call")
        if pseudo[b":method"] != b"POST":
            return http_refusal(405)
        if not _CONTENT_TYPE.fullmatch(metadata.get(b"content-type", b"")):
            return http_refusal(415)
        self.method = methods.get(pseudo[b":path"])
        if self.method is None:
            return self._refuse(UNIMPLEMENTED, "")
        self.max_message_bytes = options.max_message_bytes
        if not (self.method.inference or self.method.large):
            self.max_message_bytes = min(options.max_management_message_bytes, options.max_message_bytes)
        try:
            options.access.check(self.method.category, self.method.name, headers)
            options.restricted.check(self.method.category, headers)
        except ServingError as error:
            return self._refuse(error.grpc_code, error.message)
        self.encoding = metadata.get(b"grpc-encoding", b"identity")
        if self.encoding not in ENCODINGS:
            message = f"Compression algorithm '{self.encoding[:64].decode('latin-1')}' is not supported."
            return self._refuse(UNIMPLEMENTED, message) + ACCEPT_ENCODING
        if self.method.inference:
            level = options.infer_response_compression_level
            self.response_encoding = response_encoding(level, metadata.get(b"grpc-accept-encoding", b""))
        timeout = metadata.get(b"grpc-timeout")
        if timeout is not None:
            self.timeout_s = parse_timeout(timeout)
            if self.timeout_s is None:
                return self._refuse(INTERNAL, "malformed grpc-timeout")
        if self.method.inference:
            if options.reads_parents and HEADER in metadata:
                self.trace_parent = read_parent(metadata[HEADER])
            return self._forward()
        return None

    def _forward(self) -> bytes | None:
        own = (item for item in self.metadata.items() if item[0] not in _OWN and not item[0].startswith(b"grpc-"))
        try:
            parameters = self.context.options.forwarding.choose(own)
        except ServingError as error:
            return self._refuse(error.grpc_code, error.message)
        self.forwarded = request_fields(parameters)
        return None

    def _refuse(self, code: int, message: str) -> bytes:
        self.refused = (code, message)
        return RESPONSE + trailers(code, message, self.context.options.max_status_message_bytes)
