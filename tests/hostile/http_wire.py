"""HTTP/1.1 answers, cut out of what a connection received."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tests.hostile.sockets import Piece, Wire, exchange

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """One answer; interim ones are left out."""

    status: int
    head: bytes
    body: bytes

    @property
    def error(self) -> str:
        """The sentence of an error body, which has nothing else in it."""
        document = json.loads(self.body)
        assert list(document) == ["error"] and isinstance(document["error"], str), self.body[:200]
        return str(document["error"])


@dataclass(frozen=True, slots=True)
class HttpExchange:
    """All answers on one connection, what followed them, and whether the server closed it."""

    answers: tuple[HttpAnswer, ...]
    rest: bytes
    closed: bool

    @property
    def statuses(self) -> tuple[int, ...]:
        return tuple(answer.status for answer in self.answers)


def split(received: bytes, bodiless: bool = False) -> tuple[tuple[HttpAnswer, ...], bytes]:
    """Return the whole answers and what is left; `bodiless` are those to HEAD."""
    answers = []
    while received.startswith(b"HTTP/1.1 "):
        end = received.find(b"\r\n\r\n")
        if end < 0:
            break
        head = received[: end + 4]
        length = _LENGTH.search(head)
        size = int(length[1]) if length and not bodiless else 0
        body = received[end + 4 : end + 4 + size]
        if len(body) < size:
            break
        received = received[end + 4 + size :]
        status = int(head[9:12])
        if status >= 200:
            answers.append(HttpAnswer(status, head, body))
    return tuple(answers), received


def talk(
    address: str, pieces: Iterable[Piece], count: int, wait_s: float, bodiless: bool = False, linger: bool = False
) -> HttpExchange:
    """Send the pieces; returns when `count` answers have come, the server has closed, or the time is over."""

    def complete(wire: Wire) -> bool:
        return bool(count) and len(split(wire.received, bodiless)[0]) >= count

    wire = exchange(address, pieces, complete, wait_s, linger)
    answers, rest = split(wire.received, bodiless)
    return HttpExchange(answers, rest, wire.closed)
