"""The thread that writes or exports the traces of this process."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from app.trace.sampler import Sampler
from protocol.trace import MAX_TENSORS_BYTES, Trace

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 4096
"""Traces that wait for the thread; what comes beyond is dropped, and counted."""
MAX_WAITING_BYTES: Final = 64 << 20
"""Of the tensors of traces that wait, or are at work; what comes beyond is dropped, and counted."""
PAUSE_S: Final = 0.05
"""How long the thread gathers what comes before it works."""
_TELL_S: Final = 60.0
"""How often the log says why traces cannot be written: a full disk may be the log's too."""

Item = tuple[Trace, Sampler]
"""A trace and whose turn it was."""


class Collector:
    """Hands traces to `consume` on a thread of its own, which starts with the first of them.

    Args:
        consume: takes some, or none after `wake`; an exception of its is logged, and what it was given is lost.
        finish: is called on the thread after the last of them.
        clock: seconds.
    """

    def __init__(
        self,
        consume: Callable[[Sequence[Item]], None],
        finish: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.dropped_count = 0
        self._consume = consume
        self._finish = finish
        self._clock = clock
        self._lost_count = 0
        self._tell_at_s = -math.inf
        self._waiting: deque[tuple[Item, int]] = deque()
        self._come_bytes = 0  # which only the loop's thread changes, as only the collector's changes the next
        self._gone_bytes = 0
        self._come = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, trace: Trace, sampler: Sampler) -> None:
        """Take a trace whose request has ended; on the loop's thread, and never blocks."""
        size = MAX_TENSORS_BYTES - trace.room.tensor_bytes
        come_bytes = self._come_bytes + size
        if len(self._waiting) >= MAX_WAITING or come_bytes - self._gone_bytes > MAX_WAITING_BYTES:
            self.dropped_count += 1
            return
        self._come_bytes = come_bytes
        self._waiting.append(((trace, sampler), size))
        if self._thread is None:
            self._start()
        self._come.set()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="traces", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the next trace tries again
            logger.warning("traces wait for a thread: %s", error)
        else:
            self._thread = thread

    def wake(self) -> None:
        """Have `consume` called soon, if anything has ever come; what has changed is nothing that waits here."""
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
        taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
        self._safely(lambda: self._consume([item for item, _ in taken]), len(taken))
        self._gone_bytes += sum(size for _, size in taken)

    def _safely(self, work: Callable[[], None], count: int = 0) -> None:
        try:
            work()
        except OSError as error:
            self._lost_count += count
            if self._clock() >= self._tell_at_s:
                self._tell_at_s = self._clock() + _TELL_S
                logger.error("traces could not be written, %d so far: %s", self._lost_count, error)
        except Exception:
            logger.exception("traces could not be written")
