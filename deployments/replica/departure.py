"""How long a replica that Serve ends has for what it has taken."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from deployments.serve_internals import ENDING, UPDATING, application_states, application_status

logger = logging.getLogger(__name__)

_SOON_S: Final = 30.0
_LOOK_S: Final = 2.0


def _must_go(app_name: str) -> bool:
    """Whether an application ends or changes, or another has found no room for a replica for a while; blocks."""
    try:
        if application_status(app_name) in ENDING:
            return True
        applications = application_states()
        changes = any(state.status == UPDATING for state in applications.get(app_name, {}).values())
        return changes or any(state.lacks_room for states in applications.values() for state in states.values())
    except Exception as error:
        logger.debug("Serve does not say whether '%s' ends: %s", app_name, error)
        return False


class Departure:
    """Short, unless the replica was told to expect its end; then it is short once something waits for that.

    Serve takes no change of an application while replicas of it end, and others may lack the room.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        app_name: str,
        short_s: float,
        long_s: float,
        must_go: Callable[[str], bool] = _must_go,
    ) -> None:
        self._loop = loop
        self._app = app_name
        self._short_s = short_s
        self._long_s = long_s
        self._must_go = must_go
        self._expected_until_s = 0.0
        self._deadline_s = 0.0
        self._watching: asyncio.Task[None] | None = None

    def expect(self) -> None:
        """Take that Serve may end the replica within half a minute."""
        self._expected_until_s = self._loop.time() + _SOON_S

    def begin(self) -> float:
        """Return how many seconds the replica has at most from now on."""
        now_s = self._loop.time()
        long = now_s < self._expected_until_s
        self._deadline_s = now_s + (self._long_s if long else self._short_s)
        if long:
            self._watching = self._loop.create_task(self._watch(), name="whether the replica must go")
        return self.left_s()

    def left_s(self) -> float:
        """Return how many seconds are left; may become less at once."""
        return self._deadline_s - self._loop.time()

    def rest_s(self) -> float:
        """Return how many seconds are left once nobody waits for anything any more."""
        if self._watching is not None:
            self._watching.cancel()
        return min(self.left_s(), self._short_s)

    async def _watch(self) -> None:
        while not await asyncio.to_thread(self._must_go, self._app):
            await asyncio.sleep(_LOOK_S)
        self._deadline_s = min(self._deadline_s, self._loop.time() + self._short_s)
