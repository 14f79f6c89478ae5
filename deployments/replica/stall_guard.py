"""Ends the process when its event loop stands still: then nothing in it can answer, or say that it cannot."""

import asyncio
import faulthandler
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

MIN_LIMIT_S: Final = 10.0
"""A machine that is short of processors may stop a loop for seconds."""
_LOAD_LIMIT_S: Final = 600.0
"""Code of a model that loads may hold the interpreter for long."""
_PERIOD_S: Final = 10.0
_STDERR: Final = 2


class StallGuard:
    """Watches from a thread in C, since what stops the loop may hold the interpreter.

    A batch that does not end stops the loop where its model runs on the loop's thread, or holds the interpreter, as a
    regular expression does. The stacks of all threads are written to a file before the end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float, descriptor: int = _STDERR) -> None:
        """Watch until told to stop; `limit_s` 0 is no limit, `descriptor` the open file for the stacks."""
        self._loop = loop
        self._given_s = limit_s
        self._limit_s = max(limit_s, MIN_LIMIT_S)
        self._descriptor = descriptor
        self._patient_count = 0
        self._timer: asyncio.TimerHandle | None = None
        if limit_s:
            self._beat()

    def _beat(self) -> None:
        faulthandler.dump_traceback_later(self._limit_s, exit=True, file=self._descriptor)
        self._timer = self._loop.call_later(min(_PERIOD_S, self._limit_s / 4), self._beat)

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Allow ten minutes at least, for as long as models load."""
        self._patient_count += 1
        self._set_limit(max(self._limit_s, _LOAD_LIMIT_S))
        try:
            yield
        finally:
            self._patient_count -= 1
            if not self._patient_count:
                self._set_limit(max(self._given_s, MIN_LIMIT_S))

    def _set_limit(self, limit_s: float) -> None:
        self._limit_s = limit_s
        if self._timer is not None:
            self._timer.cancel()
            self._beat()

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            faulthandler.cancel_dump_traceback_later()
