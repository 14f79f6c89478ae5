"""Gives replicas that Serve is about to end, as fewer will do, the time to answer what they have taken."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from deployments.serve_internals import (
    DeploymentState,
    answers_by,
    application_states,
    handle_of,
    let_go_of,
    waits_for_ends_s,
)
from repository_loader.deployment_plan import Place

logger = logging.getLogger(__name__)

_TAKES_S: Final = 5.0
_LOOK_S: Final = 0.2
_ANSWER_S: Final = 2.0
_ENDS_S: Final = 15.0
"""Longer than Serve takes to tell replicas to end once it has heard that fewer will do."""
_LOOK_AGAIN_S: Final = 2.0
_PREPARED: Final = float("inf")
_SCALED: Final = "HEALTHY"


class ScaleDown:
    """Asked before each; the deployment is as it was when those that end have ended: Serve takes no change before.

    Serve kills what has not ended `graceful_shutdown_timeout_s` after it was told to. It also ends replicas on a node
    that drains so long before the node goes, whether others are there or not: so that time is short, but for now.

    Args:
        give_time: has Serve wait for replicas of these deployments as long as a batch may take, and of no others;
            returns how long that is, in seconds; blocks.
        waits_s: returns how long it waits for those of one, None as long as it has not taken a change; blocks.
        states: returns the states of all deployments, by application and name; blocks.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        give_time: Callable[[Collection[Place]], float],
        waits_s: Callable[[str, str], float | None] = waits_for_ends_s,
        states: Callable[[], Mapping[str, Mapping[str, DeploymentState]]] = application_states,
    ) -> None:
        self._loop = loop
        self._give_time = give_time
        self._waits_s = waits_s
        self._states = states
        self._given: dict[Place, float] = {}
        """Until when each has time at least."""
        self._turn = asyncio.Lock()

    async def prepare(self, key: Place) -> None:
        """Return when replicas of a deployment may be told to end."""
        app, name = key
        self._given[key] = _PREPARED
        try:
            async with self._turn:
                time_s = await asyncio.to_thread(self._give_time, tuple(self._given))
            last_s = self._loop.time() + _TAKES_S
            while await asyncio.to_thread(self._waits_s, app, name) != time_s and self._loop.time() < last_s:
                await asyncio.sleep(_LOOK_S)
            await answers_by(handle_of(name, app).broadcast("expect_end"), self._loop.time() + _ANSWER_S)
        except Exception as error:  # Serve's controller may be away
            logger.warning("replicas of '%s' that end have less time for what they have taken: %s", app, error)
        finally:
            self._given[key] = self._loop.time() + _ENDS_S

    async def end_due(self) -> bool:
        """Have deployments be as before whose replicas have ended; returns whether there are any."""
        if not self._due():
            return False
        states = await asyncio.to_thread(self._states)
        async with self._turn:
            due = self._due()  # not what has been prepared anew meanwhile
            self._given |= dict.fromkeys(due, self._loop.time() + _LOOK_AGAIN_S)
            ended = {key for key in due if _has_ended(states.get(key[0], {}).get(key[1]))}
            if ended:
                await asyncio.to_thread(self._give_time, tuple(self._given.keys() - ended))
            for key in ended:
                if self._given[key] != _PREPARED:
                    del self._given[key]
                    await asyncio.to_thread(let_go_of, *key)
        return bool(ended)

    def _due(self) -> list[Place]:
        return [key for key, until_s in self._given.items() if until_s <= self._loop.time()]


def _has_ended(state: DeploymentState | None) -> bool:
    return state is None or state.status == _SCALED
