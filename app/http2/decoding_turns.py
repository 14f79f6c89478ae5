"""Whose large header block is decoded next: one at a time on all connections together, for half of the loop's time."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

# A rest is neither shorter, which no timer is good for, nor longer than these.
_SHORTEST_S: Final = 0.001
_LONGEST_S: Final = 0.05


class DecodingTurns:
    """Large blocks take milliseconds each, and many connections may send one at once: they queue up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._taken = False
        self._began_s = 0.0
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self) -> bool:
        """Take this turn; False when it is taken."""
        if self._taken:
            return False
        self._taken = True
        self._began_s = self._loop.time()
        self._loop.call_soon(self._rest)
        return True

    def wait(self, go_on: Callable[[], None]) -> None:
        """Have `go_on` called in a later turn, when those that wait already have had theirs; after `take` said no."""
        self._waiting.append(go_on)

    def _rest(self) -> None:
        """Leave the others the loop for as long as that turn took."""
        took_s = self._loop.time() - self._began_s
        if took_s < _SHORTEST_S:
            self._next()
        else:
            self._loop.call_later(min(took_s, _LONGEST_S), self._next)

    def _next(self) -> None:
        self._taken = False
        while self._waiting and not self._taken:
            self._waiting.popleft()()
