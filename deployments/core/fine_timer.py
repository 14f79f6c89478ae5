"""Timers finer than the event loop's, which round to a millisecond: those of a queue delay of 200 µs, say."""

import asyncio
import ctypes
import heapq
import logging
import os
import time
from collections.abc import Callable
from itertools import count
from typing import Final

log = logging.getLogger(__name__)

_CLOCK_MONOTONIC: Final = 1
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC
_NS: Final = 1_000_000_000


class _TimerSpec(ctypes.Structure):
    """`struct itimerspec`."""

    _fields_ = [
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    ]


class FineTimer:
    """One call that was put off."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Make sure that the call is not made."""
        self.call = None


class FineTimers:
    """The fine timers of one loop, which share one `timerfd`; all methods belong to the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = self._libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._due: list[tuple[int, int, FineTimer]] = []
        self._numbers = count()
        loop.add_reader(self._file, self._expired)

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def call_at(self, when_ns: int, call: Callable[[], None]) -> FineTimer:
        """Make a call at a time of `time.monotonic_ns`."""
        timer = FineTimer(call)
        heapq.heappush(self._due, (when_ns, next(self._numbers), timer))
        if self._due[0][2] is timer:
            self._set(when_ns)
        return timer

    def _expired(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:
            return
        now_ns = time.monotonic_ns()
        while self._due and self._due[0][0] <= now_ns:
            call = heapq.heappop(self._due)[2].call
            if call is not None:
                try:
                    call()
                except Exception:
                    log.exception("a timer's call failed")
        if self._due:
            self._set(self._due[0][0])

    def _set(self, when_ns: int) -> None:
        spec = _TimerSpec(0, 0, when_ns // _NS, when_ns % _NS)
        if self._libc.timerfd_settime(self._file, 1, ctypes.byref(spec), None):  # 1: an absolute time
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")
