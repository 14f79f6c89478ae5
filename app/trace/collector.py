"""The thread that writes or exports the traces of this process."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from app.trace.sampler import Sampler
from protocol.trace import Trace

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 4096
"""Traces that wait for the thread; what comes beyond is dropped, and counted."""
PAUSE_S: Final = 0.05
"""How long the thread gathers what comes before it works."""

Item = tuple[Trace | None, Sampler]
"""A trace and whose turn it was; without a trace, nothing more comes of that sampler."""


class Collector:
    """Hands traces to `consume` on a thread of its own, which starts with the first of them.

    Args:
        consume: takes some; an exception of its is logged, and what it was given is lost.
        finish: is called on the thread after the last of them.
    """

    def __init__(self, consume: Callable[[Sequence[Item]], None], finish: Callable[[], None]) -> None:
        self.dropped_count = 0
        self._consume = consume
        self._finish = finish
        self._waiting: deque[Item] = deque()
        self._come = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, trace: Trace | None, sampler: Sampler) -> None:
        """Take a trace whose request has ended; on the loop's thread, and never blocks."""
        if len(self._waiting) >= MAX_WAITING:
            self.dropped_count += 1
            return
        if self._thread is None and trace is None:
            return
        self._waiting.append((trace, sampler))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
            self._thread.start()
        self._come.set()

    def close(self, timeout_s: float) -> None:
        """Hand over what is left; blocks, for so long at most."""
        self._closing.set()
        self._come.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        told_count = 0
        while not self._closing.is_set():
            self._come.wait()
            self._closing.wait(PAUSE_S)
            self._come.clear()
            self._work()
            if self.dropped_count > told_count:
                logger.warning("%d traces were dropped: they come faster than they go", self.dropped_count - told_count)
                told_count = self.dropped_count
        self._work()
        self._safely(self._finish)

    def _work(self) -> None:
        items = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if items:
            self._safely(lambda: self._consume(items))

    @staticmethod
    def _safely(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            logger.exception("traces could not be written")
