"""Requests that were in several replicas that died: which of them it was shows when each has a replica to itself."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, Protocol

from deployments.lane.frames import Kind

MAX_ALONE_S: Final = 0.25
MAX_PATIENCE_S: Final = 10.0
"""For a request that was in two deaths."""
_LOOK_S: Final = 0.002


class LoneLane(Protocol):
    """The replica's end of a lane."""

    inflight: dict[int, Any]

    def pause(self) -> None:
        """Read nothing."""
        ...

    def resume(self) -> None:
        """Read again."""
        ...

    def send(self, kind: int, call: int, *, size: int, number: int) -> None:
        """Queue a frame without a body."""
        ...

    def flush(self) -> None:
        """Write what is queued."""
        ...


class LoneRequests:
    """Runs such requests one after the other, each with nothing else from any lane beside it.

    Nothing is read from the lanes until what is under way has been answered, and then the lone request, for
    `MAX_ALONE_S` each, or `MAX_PATIENCE_S`. All lanes hear when it begins, ahead of it, and when it is not alone any
    more: who has a request here when the replica dies in between knows which one it died of. One that has waited
    enough begins beside others, and nobody is told.
    """

    def __init__(self, lanes: Collection[LoneLane], loop: asyncio.AbstractEventLoop) -> None:
        self._lanes = lanes
        self._loop = loop
        self._waiting: deque[_Lone] = deque()
        self._busy = False
        self._told = False

    def add(self, lane: LoneLane, call: int, start: Callable[[], None], *, patient: bool = False) -> None:
        """Call `start`, which puts the call into the lane's `inflight`, when it can be alone or has waited enough."""
        self._waiting.append(_Lone(lane, call, start, MAX_PATIENCE_S if patient else MAX_ALONE_S))
        self._next()

    def lane_added(self, lane: LoneLane) -> None:
        """Treat a new lane as the others."""
        if self._busy:
            lane.pause()
        if self._told:
            lane.send(Kind.ALONE, 0, size=0, number=1)

    def _next(self) -> None:
        if self._busy or not self._waiting:
            return
        self._busy = True
        for lane in self._lanes:
            lane.pause()
        lone = self._waiting.popleft()
        self._clear(lone, self._loop.time() + lone.patience_s)

    def _clear(self, lone: "_Lone", ends_s: float) -> None:
        """Wait until nothing is under way."""
        alone = not any(lane.inflight for lane in self._lanes)
        if not alone and self._loop.time() < ends_s:
            self._loop.call_later(_LOOK_S, self._clear, lone, ends_s)
            return
        if alone:
            self._tell(lone, begins=True)
        # What was written leaves before the request begins.
        self._loop.call_later(_LOOK_S, self._begin, lone, alone)

    def _begin(self, lone: "_Lone", alone: bool) -> None:
        try:
            if lone.lane in self._lanes:
                lone.start()
        finally:  # else all lanes would stay paused
            self._watch(lone, self._loop.time() + (lone.patience_s if alone else 0.0))

    def _watch(self, lone: "_Lone", ends_s: float) -> None:
        """Wait until the request is answered."""
        if lone.call in lone.lane.inflight and self._loop.time() < ends_s:
            self._loop.call_later(_LOOK_S, self._watch, lone, ends_s)
            return
        self._tell(lone, begins=False)
        for lane in self._lanes:
            lane.resume()
        self._busy = False
        # Others have a turn.
        self._loop.call_later(_LOOK_S, self._next)

    def _tell(self, lone: "_Lone", *, begins: bool) -> None:
        self._told = begins
        for lane in self._lanes:
            lane.send(Kind.ALONE, lone.call if lane is lone.lane else 0, size=0, number=int(begins))
            lane.flush()


@dataclass(frozen=True, slots=True)
class _Lone:
    """A request, and for how long others wait for it."""

    lane: LoneLane
    call: int
    start: Callable[[], None]
    patience_s: float
