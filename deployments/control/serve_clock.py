"""Serve's controller goes by the wall clock; while that has been set back, it notices no replica that dies."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

_LOOK_S: Final = 10.0
_TOLERATED_S: Final = 10.0
"""As long as Serve takes between two health checks of a replica."""


class ServeClock:
    """Starts Serve's controller anew when its wall clock has been set back: it makes a replica's next health check so
    long after the last one by that clock, which a jump of an hour puts off by an hour.

    It comes back with what it knew, and no request fails. The clock is that of its node, which may be another one.

    Args:
        ask: returns the wall clock of Serve's controller, in seconds; blocks.
        restart: starts that controller anew; blocks.
    """

    def __init__(
        self, ask: Callable[[], float], restart: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._restart = restart
        self._clock = clock
        self._least_ahead_s = float("-inf")

    async def run(self) -> None:
        """Watch for ever."""
        while True:
            try:
                await asyncio.to_thread(self.look)
            except Exception as error:
                logger.debug("the clock of Serve's controller could not be read: %s", error)
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        """Compare the clocks; by how much one is ahead is known but for the time that the answer took."""
        asked_s = self._clock()
        told_s = self._ask()
        back_s = self._least_ahead_s - (told_s - asked_s)
        self._least_ahead_s = told_s - self._clock()
        if back_s > _TOLERATED_S:
            logger.warning("the wall clock was set back by %.0f s: Serve's controller starts anew", back_s)
            self._restart()
