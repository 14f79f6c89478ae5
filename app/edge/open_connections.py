"""The open connections of a port: how many there may be, which of them gives way to a new one, how all of them end."""

import asyncio
import contextlib
import logging
import math
import resource
from collections.abc import Iterator
from typing import Final, Generic, Protocol, TypeVar
from weakref import WeakSet

logger = logging.getLogger(__name__)

_MOST_S: Final = 2.0
"""How much time goes by for connections between two sweeps, of which one comes each second."""
_MOST_BEHIND_S: Final = 60.0
_LET_IN_S: Final = 1.0
"""How long a client that was accepted may take for its TLS handshake when all connections are to end."""
_POLL_S: Final = 0.01
_MOST_RESERVED: Final = 128
"""Descriptors that clients leave for lanes, files and what else an ingress needs; an eighth where it may have few."""


class OpenConnection(Protocol):
    """What is asked of a connection."""

    def sweep(self, now_s: float) -> None:
        """End the connection if something has not happened in time."""
        ...

    def give_way(self) -> bool:
        """Close in favour of a new connection; False when this one is no longer idle."""
        ...

    def shut(self) -> None:
        """Close when all that is under way has been answered, or never began."""
        ...

    def abort(self) -> None:
        """Close at once, whatever was not sent."""
        ...


C = TypeVar("C", bound=OpenConnection)


class OpenConnections(Generic[C]):
    """A bounded set; when it is full, a new connection takes the place of the one that was idle for longest.

    It is full, too, when the process has hardly any descriptors left: with as many as there were when one got one of
    the last, for as long as any has such a one.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._accepted: WeakSet[C] = WeakSet()
        """Those that are not open yet; who fails at TLS's handshake vanishes without a word."""
        self._open: set[C] = set()
        self._among_last: set[C] = set()
        """Those with the last descriptors."""
        self._most_with_last = 0
        # In the order in which they were found idle; some may have been used since.
        self._idle: dict[C, None] = {}
        self._empty = asyncio.Event()
        self._stopping = False
        self._now_s = math.inf

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[C]:
        return iter(tuple(self._open))

    @property
    def stopping(self) -> bool:
        """Whether all are to end, so that none is counted in."""
        return self._stopping

    def expect(self, connection: C) -> None:
        """Remember a connection that was accepted: a turn of the loop, or TLS's handshake, comes before it is open."""
        self._accepted.add(connection)

    def add(self, connection: C, transport: asyncio.BaseTransport | None = None) -> bool:
        """Count a connection in; False when there are too many, and none of them is idle, or when all are to end."""
        self._accepted.discard(connection)
        among_last = transport is not None and _is_among_the_last(transport)
        if among_last:
            self._most_with_last = len(self._open)
        full = len(self._open) >= (self._most_with_last if among_last or self._among_last else self._limit)
        if self._stopping or (full and not self._make_room()):
            return False
        self._open.add(connection)
        if among_last:
            self._among_last.add(connection)
        self._empty.clear()
        return True

    def _make_room(self) -> bool:
        while self._idle:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            if oldest in self._open and oldest.give_way():
                self.discard(oldest)
                return True
        return False

    def discard(self, connection: C) -> None:
        """Count a connection out."""
        self._open.discard(connection)
        self._among_last.discard(connection)
        self._idle.pop(connection, None)
        if not self._open:
            self._empty.set()

    def note_idle(self, connection: C) -> None:
        """Remember that a connection has become idle."""
        self._idle.pop(connection, None)
        self._idle[connection] = None

    def sweep(self, now_s: float) -> None:
        """Have every connection look at its time.

        When the process has stood still, that catches up at double speed, within a minute: what clients have sent
        meanwhile is yet to be read, and what they would have taken to be written. A connection that fails is closed: no
        other loses its time limits by it.
        """
        self._now_s = max(min(now_s, self._now_s + _MOST_S), now_s - _MOST_BEHIND_S)
        for connection in self:
            try:
                connection.sweep(self._now_s)
            except Exception:
                logger.exception("a connection is closed that could not look at its time")
                connection.abort()

    async def drain(self, timeout_s: float) -> None:
        """Take no more, and let those that are here end: each when its answer has left, all when the time is over.

        Those that were accepted by now are let in first.
        """
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        # Turns are counted, so that a process that has stood still reads what clients have sent meanwhile.
        for _ in range(int(min(_LET_IN_S, timeout_s) / _POLL_S)):
            if not self._accepted:
                break
            await asyncio.sleep(_POLL_S)
        self._stopping = True
        for connection in self:
            connection.shut()
        if self._open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline_s):
                    await self._empty.wait()
        for connection in self:
            connection.abort()


def _is_among_the_last(transport: asyncio.BaseTransport) -> bool:
    """Whether a connection has one of the last descriptors that the process may have: a new one is the lowest free."""
    sock = transport.get_extra_info("socket")
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if sock is None or most == resource.RLIM_INFINITY:
        return False
    return bool(sock.fileno() >= most - min(most // 8, _MOST_RESERVED))
