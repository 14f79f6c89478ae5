"""Has a process give back what it has counted of versions that nobody is told of any more."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import Final

from deployments.control.directory import Directory
from deployments.core.counts import IsGone

logger = logging.getLogger(__name__)

_PERIOD_S: Final = 300.0
_ABSENT_S: Final = 3600.0


class CounterSweep:
    """Looks now and then. Who counts on the loop's thread is told first to `let_go`; `give_back` is a thread's work.

    A version is gone when the directory says that it is long gone, or has not had it for an hour: models that clients
    load by ever new names, and versions whose folders were removed, leave it one day.
    """

    def __init__(
        self,
        directory: Directory,
        give_back: Callable[[IsGone], None],
        let_go: Collection[Callable[[IsGone], None]] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._give_back = give_back
        self._let_go = let_go
        self._clock = clock
        self._absent_s: dict[tuple[str, int], float] = {}
        """Since when versions are not in the directory that are counted of."""
        self._absent_before_s: dict[tuple[str, int], float] = {}

    async def run(self) -> None:
        """Sweep for ever."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            await self.sweep()

    async def sweep(self) -> None:
        """Have what was counted of versions that are gone be given back."""
        if not self._directory.known:
            return
        self._absent_before_s, self._absent_s = self._absent_s, {}
        for let_go in self._let_go:
            let_go(self._is_gone)
        try:
            await asyncio.to_thread(self._give_back, self._is_gone)
        except (OSError, RuntimeError) as error:  # the latter: a thread cannot be started
            logger.warning("what was counted of versions that are gone is kept for now: %s", error)

    def _is_gone(self, name: str, version: int) -> bool:
        entry = self._directory.models.get(name)
        if not name or (entry is not None and not entry.versions):
            return False
        state = None if entry is None else entry.versions.get(version)
        if state is not None:
            return state.long_gone
        key, now_s = (name, version), self._clock()
        since_s = self._absent_s.setdefault(key, self._absent_before_s.get(key, now_s))
        return now_s - since_s >= _ABSENT_S
