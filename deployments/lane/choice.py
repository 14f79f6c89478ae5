"""Which of the lanes that lead to a model version gets the next request."""

import random
from collections.abc import Callable
from typing import Final

from deployments.lane.client import LaneClient

NEAR_ADVANTAGE: Final = 16
"""How many more requests may be under way to a replica of this node before one of another node is asked instead."""


class LaneChoice:
    """The lanes that lead to one model version, and the rule that picks one of them.

    `lanes` gives the index that the model has in each lane's table; `chance` returns numbers from 0 up to 1.
    """

    __slots__ = ("_chance", "_far", "_near", "lanes")

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self.lanes: dict[LaneClient, int] = {}
        self._near: list[LaneClient] = []
        self._far: list[LaneClient] = []
        self._chance = chance

    def add(self, lane: LaneClient, index: int) -> None:
        """Use a lane, or take its new index."""
        if lane not in self.lanes:
            (self._near if lane.near else self._far).append(lane)
        self.lanes[lane] = index

    def remove(self, lane: LaneClient) -> bool:
        """Use a lane no longer; returns whether it was used."""
        if self.lanes.pop(lane, None) is None:
            return False
        (self._near if lane.near else self._far).remove(lane)
        return True

    def near(self) -> list[LaneClient]:
        """Return the lanes whose replicas share memory with this process."""
        return self._near

    def next(self, *, near: bool) -> LaneClient | None:
        """Return the lane for a request, None without a lane; `near` rules out other nodes.

        A replica of this node is preferred, until it has `NEAR_ADVANTAGE` more requests under way than one elsewhere.
        """
        here = self._less_loaded(self._near)
        if near or not self._far:
            return here
        there = self._less_loaded(self._far)
        if here is None or (there is not None and len(here.calls) >= len(there.calls) + NEAR_ADVANTAGE):
            return there
        return here

    def _less_loaded(self, lanes: list[LaneClient]) -> LaneClient | None:
        """Return, of two lanes taken at random, the one with fewer requests under way.

        Ingresses cannot see each other's requests. If each took the least loaded lane that it knows of, they would all
        take the same one.
        """
        count = len(lanes)
        if count < 2:
            return lanes[0] if count else None
        first = int(self._chance() * count)
        one, other = lanes[first], lanes[first - 1 - int(self._chance() * (count - 1))]
        return one if len(one.calls) <= len(other.calls) else other
