"""Lets the event loop have the interpreter while a thread computes."""

import time
from typing import Final

_WORK_NS: Final = 1_000_000
_PAUSE_S: Final = 5e-5


class Pauses:
    """Called often, sleeps a moment after each millisecond of work.

    A thread that only computes gives the interpreter away every 5 ms (`sys.getswitchinterval`), and each turn of a busy
    loop would wait so long for it.
    """

    def __init__(self) -> None:
        self._next_ns = time.monotonic_ns() + _WORK_NS

    def __call__(self) -> None:
        """Sleep if it is time."""
        if time.monotonic_ns() >= self._next_ns:
            time.sleep(_PAUSE_S)
            self._next_ns = time.monotonic_ns() + _WORK_NS
