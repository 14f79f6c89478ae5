"""How much of a lane one model may take whose replica has others too."""

from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from deployments.lane.client import CallTarget, LaneClient

_SHARE: Final = 0.75
_COUNTS_PER_LANE: Final = 16


class LaneShare:
    """Three quarters, so that one whose queue has no bound, as that of sequences, leaves some to the others.

    Nothing counts the requests of each model as they come and go. They are counted where a lane has `size` of any
    model under way, and then again when a sixteenth of what may be has come or gone: a model may be so much above its
    share, or below.
    """

    def __init__(self, max_inflight: int) -> None:
        self.size = min(max_inflight, max(1, int(max_inflight * _SHARE)))
        self._max_inflight = max_inflight
        self._good_for = max(1, max_inflight // _COUNTS_PER_LANE)
        self._counted: WeakKeyDictionary[LaneClient, _Count] = WeakKeyDictionary()

    def is_taken(self, target: CallTarget, lane: LaneClient) -> bool:
        """Whether a lane with `size` requests under way takes none more of a model."""
        on_lane = len(lane.calls)
        if on_lane >= self._max_inflight:
            return True
        if lane.model_count <= 1:
            return False
        count = self._counted.get(lane)
        if count is None or not 0 <= count.moved(lane.last_id, on_lane) < self._good_for:
            own = sum(call.target is target for call in lane.calls.values())
            count = self._counted[lane] = _Count(own, lane.last_id, on_lane)
        return count.own >= self.size


class _Count(NamedTuple):
    """A model's requests on a lane; the lane's last id, and all requests on it, then."""

    own: int
    last_id: int
    on_lane: int

    def moved(self, last_id: int, on_lane: int) -> int:
        """How many requests of any model have come or gone since; negative where the ids have begun anew."""
        return 2 * (last_id - self.last_id) - (on_lane - self.on_lane)
