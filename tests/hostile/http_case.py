"""One exchange over HTTP with what must come of it, and short ways to write one down."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.hostile.sockets import Piece
from tests.protocol.cases.case import with_data

LIMIT_BYTES = 4 << 20
HEADER_TIMEOUT_S = 2.0
BODY_TIMEOUT_S = 4.0
FLAGS = (
    *("--http-header-timeout-s", str(HEADER_TIMEOUT_S), "--http-body-timeout-s", str(BODY_TIMEOUT_S)),
    *("--http-max-input-size", str(LIMIT_BYTES), "--grpc-max-message-size", str(LIMIT_BYTES)),
    *("--model-control-mode", "explicit", "--load-model", "*", "--console", "false"),
)
"""The server on which the cases hold; all other limits are the defaults."""

HOST = b"Host: localhost\r\n"
PATH = b"/v2/models/floats/infer"
BODY = with_data("[1]").encode()


@dataclass(frozen=True, slots=True)
class HttpCase:
    """`statuses` are those of the answers on the connection, in order; `text` is found in the last of them.

    `closes` says whether the server then ends the connection, within `within_s` of the first byte sent; None leaves it
    open. `bodiless` answers are those to HEAD; with `linger` the client ends its side after what it has sent.
    """

    id: str
    cls: str
    content: tuple[Piece, ...] | Callable[[], tuple[Piece, ...]]
    statuses: tuple[int, ...]
    text: str = ""
    closes: bool | None = None
    within_s: float = 5.0
    bodiless: bool = False
    linger: bool = False

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return self.content() if callable(self.content) else self.content


class Table:
    """The cases of one class."""

    def __init__(self, cls: str) -> None:
        self.cls = cls
        self.cases: list[HttpCase] = []

    def add(
        self,
        id: str,
        content: bytes | tuple[Piece, ...] | Callable[[], tuple[Piece, ...]],
        *statuses: int,
        text: str = "",
        closes: bool | None = None,
        within_s: float = 5.0,
        bodiless: bool = False,
        linger: bool = False,
    ) -> None:
        made = (content,) if isinstance(content, bytes) else content
        name = f"{self.cls}-{id}"
        self.cases.append(HttpCase(name, self.cls, made, statuses, text, closes, within_s, bodiless, linger))


def post(body: bytes = BODY, *headers: bytes, path: bytes = PATH, host: bytes = HOST) -> bytes:
    """A POST with this body and its length."""
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"POST %s HTTP/1.1\r\n%s%sContent-Length: %d\r\n\r\n%s" % (path, host, lines, len(body), body)


def head(*headers: bytes, path: bytes = PATH) -> bytes:
    """The head of a POST with nothing but these headers."""
    return b"POST %s HTTP/1.1\r\n%s%s\r\n" % (path, HOST, b"".join(header + b"\r\n" for header in headers))


def get(path: bytes = b"/v2/health/live", *headers: bytes, host: bytes = HOST) -> bytes:
    return b"GET %s HTTP/1.1\r\n%s%s\r\n" % (path, host, b"".join(header + b"\r\n" for header in headers))


def chunked(chunks: Iterable[bytes], end: bytes = b"0\r\n\r\n", *headers: bytes) -> bytes:
    """A POST with a body in these chunks."""
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head(b"Transfer-Encoding: chunked", *headers) + body + end
