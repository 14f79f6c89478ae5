"""Time and turns of the event loop, as schedulers see them; tests bring their own."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from deployments.core.fine_timer import FineTimers

NEVER_NS: Final = 1 << 62
_FINE_S: Final = 0.01


class Timer(Protocol):
    """A call that was put off."""

    def cancel(self) -> None:
        """Make sure that the call is not made."""
        ...


class Clock(Protocol):
    """What a scheduler needs of an event loop."""

    def now_ns(self) -> int:
        """Return monotonic nanoseconds."""
        ...

    def call_soon(self, call: Callable[[], None], /) -> object:
        """Make the call in the loop's next turn, after whatever has already arrived was read."""
        ...

    def call_later(self, delay_s: float, call: Callable[[], None], /) -> Timer:
        """Make the call after a delay."""
        ...

    def call_soon_threadsafe(self, call: Callable[[], None], /) -> object:
        """Make the call on the loop's thread; may be called on any thread."""
        ...

    def watch(self, descriptor: int, call: Callable[[], None], /) -> object:
        """Make the call whenever there is something to read."""
        ...

    def unwatch(self, descriptor: int, /) -> object:
        """Make it no more."""
        ...


class LoopClock:
    """The clock of a running asyncio loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._fine: FineTimers | None = None
        self.call_soon = loop.call_soon
        self.call_soon_threadsafe = loop.call_soon_threadsafe
        self.watch = loop.add_reader
        self.unwatch = loop.remove_reader
        self.now_ns = time.monotonic_ns

    def call_later(self, delay_s: float, call: Callable[[], None], /) -> Timer:
        """Make the call after a delay; one of less than 10 ms is kept to some 0.1 ms."""
        if delay_s >= _FINE_S:
            return self._loop.call_later(delay_s, call)
        if self._fine is None:
            self._fine = FineTimers(self._loop)
        return self._fine.call_at(time.monotonic_ns() + int(delay_s * 1e9), call)
