"""When a process that has died is started again."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from deployments.core.clock import Clock

FIRST_DELAY_S: Final = 0.5
LAST_DELAY_S: Final = 30.0
LASTING_S: Final = 30.0
"""A process that has lived for so long is started again at once."""


class Restart:
    """Calls `start` at once for the first death, and after 0.5 to 30 s when the process does not last."""

    def __init__(self, clock: "Clock", start: Callable[[], None]) -> None:
        self._clock = clock
        self._start = start
        self._delay_s = 0.0
        self._started_ns: int | None = clock.now_ns()

    def started(self) -> None:
        """Note that the process runs."""
        self._started_ns = self._clock.now_ns()

    def begin(self) -> None:
        """Call `start` when it is time; the process has died, or could not be started."""
        if self._started_ns is not None and self._clock.now_ns() - self._started_ns > LASTING_S * 1e9:
            self._delay_s = 0.0
        self._started_ns = None
        delay_s, self._delay_s = self._delay_s, min(LAST_DELAY_S, max(FIRST_DELAY_S, 2 * self._delay_s))
        self._clock.call_later(delay_s, self._start)
