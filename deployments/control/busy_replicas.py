"""Asks replicas that are to end whether they have something under way."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from deployments.serve_internals import answers_by, handle_of, let_go_of, replica_counts
from repository_loader.deployment_plan import Place

logger = logging.getLogger(__name__)

_ANSWER_S: Final = 2.0
_ANSWER_AGAIN_S: Final = 0.2
"""For those of whom some have not answered the last time: commands for other models wait meanwhile."""
_THERE_S: Final = 1.0
_LOOK_S: Final = 0.1
_MAX_AT_ONCE: Final = 32
"""A first question has a router made, on the loop."""


class BusyReplicas:
    """Asks on the controller's loop, for other threads; the handle of `ingress` is for others too, and stays."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ingress: Place) -> None:
        self._loop = loop
        self._ingress = ingress
        self._turns = asyncio.Semaphore(_MAX_AT_ONCE)
        self._asked: set[Place] = set()
        self._asked_of_gone: set[Place] = set()
        self._silent: set[Place] = set()
        """Deployments of which a replica has not answered the last time."""

    def count(self, places: Mapping[Place, int]) -> dict[Place, int]:
        """Return how many replicas deployments have, of those with something under way in one of them; blocks.

        `places` says how many each should have, which is told where fewer are there. A replica that does not answer in
        2 s, as its loop stands still, is busy, and is not waited for as long again before it answers; one that has died
        is not busy. A deployment that seems idle, and not all of whose replicas are there, is told of with 0 where
        Serve has more than have answered: it may be changing the others in place just now.
        """
        busy = asyncio.run_coroutine_threadsafe(self._count(places), self._loop).result() if places else {}
        self._asked = _kept(self._asked | places.keys(), busy)
        self._silent &= self._asked | self._asked_of_gone | {self._ingress}
        return busy

    def answering(self, places: Collection[Place]) -> set[Place]:
        """Return in which deployments something that was unloaded may still answer what it has taken; blocks.

        Those are the ones that stay; of one that is to end, `count` says that it is busy.
        """
        found = asyncio.run_coroutine_threadsafe(self._answering(places), self._loop).result() if places else set()
        self._asked_of_gone = _kept(self._asked_of_gone.union(places) - {self._ingress}, found)
        self._silent &= self._asked | self._asked_of_gone | {self._ingress}
        return found

    async def _count(self, places: Mapping[Place, int]) -> dict[Place, int]:
        answers = await asyncio.gather(*(self._all_answers(*place, expected) for place, expected in places.items()))
        found = dict(zip(places, answers, strict=True))
        busy = {place: max(len(found[place]), places[place]) for place in places if _any_of(found[place])}
        fewer = [place for place in places.keys() - busy.keys() if len(found[place]) < places[place]]
        counts = await asyncio.to_thread(replica_counts) if fewer else {}
        return busy | {place: 0 for place in fewer if len(found[place]) < counts.get(place, 0)}

    async def _answering(self, places: Collection[Place]) -> set[Place]:
        async with asyncio.TaskGroup() as tasks:
            asked = {place: tasks.create_task(self._answers(*place, "is_answering")) for place in places}
        return {place for place, answers in asked.items() if _any_of(answers.result())}

    async def _all_answers(self, app: str, name: str, expected: int) -> list[Any]:
        async with self._turns:
            last_s = self._loop.time() + _THERE_S
            while len(answers := await self._answers(app, name, "is_busy")) < expected and self._loop.time() < last_s:
                await asyncio.sleep(_LOOK_S)
        return answers

    async def _answers(self, app: str, name: str, question: str) -> list[Any]:
        answer_s = _ANSWER_AGAIN_S if (app, name) in self._silent else _ANSWER_S
        try:
            answers = await answers_by(handle_of(name, app).broadcast(question), self._loop.time() + answer_s)
        except Exception as error:  # none is there, or Serve does not say which are
            logger.debug("nobody says whether %s of '%s' is busy: %s", name, app, error)
            return []
        if any(isinstance(answer, TimeoutError) for answer in answers):
            self._silent.add((app, name))
        else:
            self._silent.discard((app, name))
        return answers


def _any_of(answers: Sequence[Any]) -> bool:
    """Whether a replica says yes, or nothing as its loop stands still."""
    return any(answer is True or isinstance(answer, TimeoutError) for answer in answers)


def _kept(asked: set[Place], found: Collection[Place]) -> set[Place]:
    """Let go of the deployments that are asked no more, and return the others."""
    for place in asked.difference(found):
        let_go_of(*place)
    return asked.intersection(found)
