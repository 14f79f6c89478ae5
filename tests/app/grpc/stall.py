"""How long a loop stood still: the most CPU time that its thread took between two turns, whatever else ran meanwhile."""

import asyncio
import gc
import time


class Stall:
    """Measures from `begin` on; both methods run on the loop's thread.

    What the process held before is spared from garbage collections meanwhile, as an ingress spares what it holds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._last_s = 0.0
        self._handle: asyncio.Handle | None = None
        self.worst_s = 0.0

    def begin(self) -> None:
        gc.collect()
        gc.freeze()
        self.worst_s = 0.0
        self._last_s = time.thread_time()
        self._handle = self._loop.call_soon(self._turn)

    def end(self) -> float:
        """Return the longest turn in seconds."""
        assert self._handle is not None
        self._handle.cancel()
        gc.unfreeze()
        return self.worst_s

    def _turn(self) -> None:
        now_s = time.thread_time()
        self.worst_s = max(self.worst_s, now_s - self._last_s)
        self._last_s = now_s
        self._handle = self._loop.call_soon(self._turn)
