"""Whose large header block is decoded next: one in each turn of the loop, on all connections together."""

import asyncio
from collections import deque
from collections.abc import Callable


class DecodingTurns:
    """Large blocks take milliseconds each, and many connections may send one at once: they queue up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._taken = False
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self) -> bool:
        """Take this turn; False when it is taken."""
        if self._taken:
            return False
        self._taken = True
        self._loop.call_soon(self._next)
        return True

    def wait(self, go_on: Callable[[], None]) -> None:
        """Have `go_on` called in a later turn, when those that wait already have had theirs; after `take` said no."""
        self._waiting.append(go_on)

    def _next(self) -> None:
        self._taken = False
        while self._waiting and not self._taken:
            self._waiting.popleft()()
