"""Ends the process when its event loop stands still: then nothing in it can answer, or say that it cannot."""

import asyncio
import faulthandler
from typing import Final

MIN_LIMIT_S: Final = 10.0
"""A machine that is short of processors may stop a loop for seconds."""
_PERIOD_S: Final = 10.0
_STDERR: Final = 2


class StallGuard:
    """Watches from a thread in C, since what stops the loop may hold the interpreter.

    A batch that does not end stops the loop where its model runs on the loop's thread, or holds the interpreter, as a
    regular expression does. The stacks of all threads are written to a file before the end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float, descriptor: int = _STDERR) -> None:
        """Watch until the process ends; `limit_s` 0 is no limit, `descriptor` the open file for the stacks."""
        self._loop = loop
        self._limit_s = max(limit_s, MIN_LIMIT_S)
        self._descriptor = descriptor
        if limit_s:
            self._beat()

    def _beat(self) -> None:
        faulthandler.dump_traceback_later(self._limit_s, exit=True, file=self._descriptor)
        self._loop.call_later(min(_PERIOD_S, self._limit_s / 4), self._beat)
