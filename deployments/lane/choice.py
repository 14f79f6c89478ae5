"""Which of the lanes that lead to a model version gets the next request."""

from deployments.lane.client import LaneClient


class LaneChoice:
    """The lanes that lead to one model version, and the rule that picks one of them.

    `lanes` gives the index that the model has in each lane's table.
    """

    __slots__ = ("lanes",)

    def __init__(self) -> None:
        self.lanes: dict[LaneClient, int] = {}

    def add(self, lane: LaneClient, index: int) -> None:
        """Use a lane, or take its new index."""
        self.lanes[lane] = index

    def remove(self, lane: LaneClient) -> bool:
        """Use a lane no longer; returns whether it was used."""
        return self.lanes.pop(lane, None) is not None

    def near(self) -> list[LaneClient]:
        """Return the lanes whose replicas share memory with this process."""
        return [lane for lane in self.lanes if lane.near]

    def next(self, *, near: bool) -> LaneClient | None:
        """Return the lane with the fewest requests under way, None without a lane; `near` rules out other nodes."""
        lanes = self.near() if near else self.lanes
        if len(lanes) == 1:
            (lane,) = lanes
            return lane
        return min(lanes, key=_load) if lanes else None


def _load(lane: LaneClient) -> int:
    return len(lane.calls)
