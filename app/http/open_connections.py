"""The open connections of a port: how many there may be, who is closed when time is up, how all of them end."""

import asyncio
from collections.abc import Iterator
from typing import Protocol


class OpenConnection(Protocol):
    """What is asked of a connection."""

    @property
    def inflight_count(self) -> int:
        """How many requests are under way: one or none."""
        ...

    def sweep(self, now_s: float) -> None:
        """End the connection if something has not happened in time."""
        ...

    def shut(self) -> None:
        """Close at once if nothing is under way, else after the answer."""
        ...


class OpenConnections:
    """A bounded set."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: set[OpenConnection] = set()
        self.stopping = False

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenConnection]:
        return iter(tuple(self._open))

    def add(self, connection: OpenConnection) -> bool:
        """Count a connection in; returns False when there are too many."""
        if len(self._open) >= self._limit:
            return False
        self._open.add(connection)
        return True

    def discard(self, connection: OpenConnection) -> None:
        """Count a connection out."""
        self._open.discard(connection)

    def sweep(self, now_s: float) -> None:
        """Have every connection look at its time."""
        for connection in self:
            connection.sweep(now_s)

    async def drain(self, timeout_s: float) -> None:
        """Let every answer under way leave, and close."""
        self.stopping = True
        for connection in self:
            connection.shut()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while any(connection.inflight_count for connection in self._open) and loop.time() < deadline_s:
            await asyncio.sleep(0.02)
        for connection in self:
            connection.shut()
