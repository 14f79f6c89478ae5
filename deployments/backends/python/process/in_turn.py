"""Calls that must not be made in the middle of one another."""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import ParamSpec

P = ParamSpec("P")


class InTurn:
    """Makes calls, on any thread, with `lock` held; what one raises is raised to whoever asked for it.

    What is asked for in the middle of a call on the same thread, as by the garbage collector, is done after it.
    """

    __slots__ = ("_busy", "_put_off", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._busy = False
        self._put_off: deque[Callable[[], object]] = deque()

    def __call__(self, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Make a call, now or after the one that is under way."""
        with self.lock:
            self._put_off.append(partial(call, *args, **kwargs))
            if self._busy:
                return
            self._busy = True
            try:
                while self._put_off:
                    self._put_off.popleft()()
            finally:
                self._busy = False
