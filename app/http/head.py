"""The head of a request: parsed by httptools, checked for what httptools lets through."""

import re
from collections.abc import Sequence
from copy import copy
from typing import Final

import httptools

from app.http.limits import HttpLimits
from app.trace.trace_parent import TraceParent
from protocol.errors import InvalidArgument, ServingError
from protocol.http_infer import parse_json_length
from protocol.model_version import MAX_DIGITS

# Besides the forms of RFC 3986: most clients leave the zone of a link-local address in it (`[fe80::1%eth0]:8000`), and
# Envoy's health checks name the cluster (`outbound|8000||eagleray`).
_HOST: Final = re.compile(
    rb"(?:[A-Za-z0-9._~!$&'()*+,;=|%-]{1,255}|\[[0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9._~%-]{1,64})?\])?(?::\d{1,5})?"
)
_INFERENCE: Final = re.compile(
    rb"/v2/models/([^/?]+)(?:/versions/(\d+))?/(infer|generate|generate_stream)(?:\?.*)?", re.DOTALL
)

INFER: Final = "infer"
GENERATE: Final = "generate"
GENERATE_STREAM: Final = "generate_stream"
_ACTIONS: Final = {b"infer": INFER, b"generate": GENERATE, b"generate_stream": GENERATE_STREAM}

Headers = Sequence[tuple[bytes, bytes]]


class BadRequest(Exception):
    """The bytes are not a request that will be answered; the connection ends after this answer."""

    def __init__(self, status: int, message: str, headers: Headers = ()) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message
        self.headers = headers


class Head:
    """One request head.

    `old` is HTTP/1.0. `content_length` is None for a chunked body. `cacheable` says that equal bytes always mean this
    head.

    An inference request has the `action` that its URL names, one of `INFER`, `GENERATE` and `GENERATE_STREAM`, and a
    `model` as it stands there; all others have None and "". What else such a request needs is decided once, by a
    `HeadPolicy`: `refusal` is the answer when it will not be served, and `direct` says that its body goes to the
    target, and the answer to the client, as they are. `json_length` is the value of Inference-Header-Content-Length,
    None when absent; `json_length_error` is what is wrong with it. `target`, and `mapping` for the generate extension,
    are those of the front's `generation`.
    """

    __slots__ = (
        "accept_encoding",
        "action",
        "cacheable",
        "content_encoding",
        "content_length",
        "direct",
        "expect_continue",
        "forwarded",
        "generation",
        "headers",
        "http_version",
        "json_length",
        "json_length_error",
        "keep_alive",
        "mapping",
        "method",
        "model",
        "old",
        "raw_headers",
        "refusal",
        "response_coding",
        "target",
        "trace_parent",
        "url",
        "version",
    )

    def __init__(self) -> None:
        self.method = b""
        self.url = b""
        self.http_version = "1.1"
        self.raw_headers: list[tuple[bytes, bytes]] = []
        self.headers: list[tuple[bytes, bytes]] = []
        self.keep_alive = True
        self.old = False
        self.content_length: int | None = 0
        self.content_encoding = b""
        self.accept_encoding = b""
        self.expect_continue = False
        self.json_length: int | None = None
        self.json_length_error = ""
        self.action: str | None = None
        self.model = b""
        self.version = -1
        self.cacheable = False
        self.refusal: ServingError | None = None
        self.direct = False
        self.forwarded: dict[str, str] = {}
        self.response_coding = b""
        self.generation = -1
        self.target: object = None
        self.mapping: object = None
        self.trace_parent: TraceParent | None = None

    def of_trace(self, parent: TraceParent) -> "Head":
        """Return the same head for a request that is part of what its client has begun; its target is found anew."""
        head = copy(self)
        head.trace_parent = parent
        head.generation = -1
        return head


class _Collector:
    """What httptools calls back."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value.strip(b" \t")))  # as httptools does it before a value (RFC 9110 §5.5)

    def on_headers_complete(self) -> None:
        self.complete = True


def parse_head(data: bytes, limits: HttpLimits) -> Head:
    """Parse the bytes up to and including the empty line.

    Raises:
        BadRequest: with the status and text to answer before the connection is closed.
    """
    if data.count(b"\n") != data.count(b"\r\n") or b"\0" in data:
        raise BadRequest(400, "malformed HTTP request")
    collector = _Collector()
    parser = httptools.HttpRequestParser(collector)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError as error:
        raise BadRequest(400, "malformed HTTP request") from error
    if not collector.complete:
        raise BadRequest(400, "malformed HTTP request")
    version = parser.get_http_version()
    if version not in ("1.0", "1.1"):
        raise BadRequest(505, "HTTP version not supported")
    head = Head()
    head.method = parser.get_method()
    head.url = collector.url
    head.raw_headers = collector.headers
    head.headers = [(name.lower(), value) for name, value in collector.headers]
    head.http_version = version
    head.old = version == "1.0"
    _check(head, limits)
    _read_connection(head)
    _read_framing(head)
    _read_route(head)
    return head


def _check(head: Head, limits: HttpLimits) -> None:
    if len(head.url) > limits.max_url_bytes:
        raise BadRequest(414, "URI too long")
    if len(head.headers) > limits.max_header_count:
        raise BadRequest(431, "too many header fields")
    if not head.url.startswith(b"/") and not (head.url == b"*" and head.method == b"OPTIONS"):
        raise BadRequest(400, "the request target must be a path")
    hosts = [value for name, value in head.headers if name == b"host"]
    if len(hosts) > 1 or (not hosts and head.http_version == "1.1"):
        raise BadRequest(400, "exactly one Host header is required")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise BadRequest(400, "malformed Host header")


def _read_connection(head: Head) -> None:
    fields = b",".join([value for name, value in head.headers if name == b"connection"]).lower()
    options = {option.strip() for option in fields.split(b",")}
    head.keep_alive = b"close" not in options and (not head.old or b"keep-alive" in options)


def _read_framing(head: Head) -> None:
    lengths = [value for name, value in head.headers if name == b"content-length"]
    codings = [value for name, value in head.headers if name == b"transfer-encoding"]
    if codings:
        if lengths:
            raise BadRequest(400, "Content-Length and Transfer-Encoding exclude each other")
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            raise BadRequest(501, "only the transfer coding 'chunked' is supported")
        if head.http_version == "1.0":
            raise BadRequest(400, "HTTP/1.0 has no transfer codings")
        head.content_length = None
    elif lengths:
        if len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > 18:
            raise BadRequest(400, "malformed Content-Length")
        head.content_length = int(lengths[0])
    codings = [value.lower() for name, value in head.headers if name == b"content-encoding"]
    head.content_encoding = b", ".join(codings)
    head.accept_encoding = b",".join([value for name, value in head.headers if name == b"accept-encoding"])
    for name, value in head.headers:
        if name == b"expect":
            if value.lower() != b"100-continue":
                raise BadRequest(417, "expectation failed")
            head.expect_continue = head.http_version == "1.1"


def _read_route(head: Head) -> None:
    match = _INFERENCE.fullmatch(head.url) if head.method == b"POST" else None
    if match is None:
        return
    head.model = match[1]
    if match[2] is not None:
        head.version = int(match[2][:MAX_DIGITS])  # which may be too large for a version: the model's routes refuse it
    head.action = _ACTIONS[match[3]]
    lengths = [value for name, value in head.headers if name == b"inference-header-content-length"]
    if len(lengths) > 1:
        raise BadRequest(400, "more than one Inference-Header-Content-Length header")
    if lengths:
        _read_json_length(head, lengths[0])
    head.cacheable = head.content_length is not None and not head.expect_continue


def _read_json_length(head: Head, value: bytes) -> None:
    try:
        number = parse_json_length(value)
    except InvalidArgument as error:
        head.json_length_error = error.message
        return
    if number < 0:
        head.json_length_error = (
            f"inference header size should be in range (0, {head.content_length or 0}), got: {number}"
        )
    else:
        head.json_length = number
