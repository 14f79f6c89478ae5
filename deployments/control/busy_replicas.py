"""Asks replicas that are to end whether they have something under way."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from deployments.serve_internals import answers_by, handle_of, let_go_of

logger = logging.getLogger(__name__)

Place = tuple[str, str]
"""A Serve application and a deployment of it."""

_ANSWER_S: Final = 2.0
_THERE_S: Final = 1.0
_LOOK_S: Final = 0.1
_MAX_AT_ONCE: Final = 32
"""A first question has a router made, on the loop."""


class BusyReplicas:
    """Asks on the controller's loop, for other threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turns = asyncio.Semaphore(_MAX_AT_ONCE)
        self._asked: set[Place] = set()

    def count(self, places: Mapping[Place, int]) -> dict[Place, int]:
        """Return how many replicas deployments have, of those with something under way in one of them; blocks.

        `places` says how many each should have, which is told where fewer are there. A replica that does not answer in
        2 s, as its loop stands still, is busy; one that has died is not. A deployment that seems idle, and not all of
        whose replicas are there, is told of with 0: Serve may be changing the others in place just now.
        """
        self._asked.update(places)
        busy = asyncio.run_coroutine_threadsafe(self._count(places), self._loop).result() if places else {}
        for place in self._asked - busy.keys():
            let_go_of(*place)
        self._asked.intersection_update(busy)
        return busy

    async def _count(self, places: Mapping[Place, int]) -> dict[Place, int]:
        counts = await asyncio.gather(*(self._count_of(*place, expected) for place, expected in places.items()))
        return {place: count for place, count in zip(places, counts, strict=True) if count is not None}

    async def _count_of(self, app: str, name: str, expected: int) -> int | None:
        async with self._turns:
            last_s = self._loop.time() + _THERE_S
            while len(answers := await self._answers(app, name)) < expected and self._loop.time() < last_s:
                await asyncio.sleep(_LOOK_S)
        if any(answer is True or isinstance(answer, TimeoutError) for answer in answers):
            return max(len(answers), expected)
        return None if len(answers) >= expected else 0

    async def _answers(self, app: str, name: str) -> list[Any]:
        try:
            return await answers_by(handle_of(name, app).broadcast("is_busy"), self._loop.time() + _ANSWER_S)
        except Exception as error:  # none is there, or Serve does not say which are
            logger.debug("nobody says whether %s of '%s' is busy: %s", name, app, error)
            return []
