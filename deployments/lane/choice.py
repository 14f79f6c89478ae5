"""Which of the lanes that lead to a model version gets the next request."""

import random
from collections.abc import Callable, Sequence
from typing import Final

from deployments.lane.client import LaneClient

NEAR_ADVANTAGE: Final = 16
"""How many more requests may be under way to a replica of this node before one of another node is asked instead."""


class LaneChoice:
    """The lanes that lead to one model version, and the rule that picks one of them.

    `lanes` gives the index that the model has in each lane's table; `chance` returns numbers from 0 up to 1. Lanes to
    a spill (the CPU replicas of a model that also has GPUs) get what the others have no idle instance for. `gpus` are,
    by lane, those that lie in this node and whose memory the model takes inputs from; most models have none.
    `interfaces` are those that the version has behind the lanes: one, unless only some replicas have changed.
    """

    __slots__ = ("_capacities", "_chance", "_far", "_interfaces", "_near", "_spill", "gpus", "interfaces", "lanes")

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self.lanes: dict[LaneClient, int] = {}
        self.gpus: dict[LaneClient, frozenset[str]] = {}
        self._near: list[LaneClient] = []
        self._far: list[LaneClient] = []
        self._chance = chance
        self._capacities: dict[LaneClient, int] = {}
        self._interfaces: dict[LaneClient, str] = {}
        self.interfaces: frozenset[str] = frozenset()
        self._spill: LaneChoice | None = None

    def add(
        self,
        lane: LaneClient,
        index: int,
        *,
        capacity: int = 1,
        spill: bool = False,
        gpus: Sequence[str] = (),
        interface: str = "",
    ) -> None:
        """Use a lane, or take what is new of it; `capacity` requests keep all instances behind it busy."""
        self.remove(lane)
        self.lanes[lane], self._capacities[lane], self._interfaces[lane] = index, capacity, interface
        self.interfaces = frozenset(self._interfaces.values())
        if gpus and lane.near:
            self.gpus[lane] = frozenset(gpus)
        if spill:
            self._spill = self._spill or LaneChoice(self._chance)
            self._spill.add(lane, index, capacity=capacity)
        else:
            (self._near if lane.near else self._far).append(lane)

    def remove(self, lane: LaneClient) -> bool:
        """Use a lane no longer; returns whether it was used."""
        if self.lanes.pop(lane, None) is None:
            return False
        del self._capacities[lane], self._interfaces[lane]
        self.interfaces = frozenset(self._interfaces.values())
        self.gpus.pop(lane, None)
        if self._spill is not None and self._spill.remove(lane):
            self._spill = self._spill if self._spill.lanes else None
            return True
        (self._near if lane.near else self._far).remove(lane)
        return True

    def near(self) -> list[LaneClient]:
        """Return the lanes whose replicas share memory with this process."""
        return self._near if self._spill is None else self._near + self._spill.near()

    def next(self, *, near: bool) -> LaneClient | None:
        """Return the lane for a request, None without a lane; `near` rules out other nodes.

        A replica of this node is preferred, until it has `NEAR_ADVANTAGE` more requests under way than one elsewhere.
        """
        lane = self._preferred(near=near)
        if self._spill is None or (lane is not None and len(lane.calls) < self._capacities[lane]):
            return lane
        return self.idle(near=near) or self._spill.idle(near=near) or lane or self._spill.next(near=near)

    def idle(self, *, near: bool) -> LaneClient | None:
        """Return a lane with an idle instance behind it, None when there is none."""
        lanes = self._near if near else self._near + self._far
        return next((lane for lane in lanes if len(lane.calls) < self._capacities[lane]), None)

    def _preferred(self, *, near: bool) -> LaneClient | None:
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
