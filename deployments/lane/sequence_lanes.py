"""Which lane a sequence's requests take: always the one to the replica that holds it."""

from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Sequence
from hashlib import blake2b
from time import monotonic
from typing import Final

from deployments.lane.client import LaneClient
from deployments.lane.frames import Buffer
from deployments.lane.sink import Sink
from deployments.lane.wire import HTTP
from protocol.errors import ServingError
from protocol.sequence_mark import SequenceMark, grpc_sequence, http_sequence

MAX_SEQUENCES: Final = 65_536
"""Sequences whose replica an ingress remembers; of others the ids alone decide."""


class SequenceLanes:
    """Chooses by rendezvous hashing over the ids of the replicas, so that all ingresses agree and none asks another.

    A new replica would take some of the sequences that others hold. An ingress therefore remembers which lane a
    sequence has taken until it ends, or is idle for as long as its model allows. It is not while a request of it is
    under way, however long that takes. One that has seen nothing of the sequence may choose the new replica, which
    refuses what does not start one; the others are asked then (`LaneTarget.seek_sequence`).
    """

    def __init__(self, idle_s: float, now_s: Callable[[], float] = monotonic) -> None:
        self.idle_s = idle_s
        self._now_s = now_s
        self._known: OrderedDict[int | str, tuple[LaneClient, float]] = OrderedDict()
        self._under_way: dict[tuple[LaneClient, int | str], deque[int]] = {}
        """The calls of each sequence on each lane, of which the first still is on it when it was looked at last."""

    def choose(self, mark: SequenceMark, lanes: Iterable[LaneClient]) -> LaneClient | None:
        """Return the lane for a request, None without a lane."""
        now_s = self._now_s()
        known = self._lane_of(mark.sequence_id, now_s)
        self._known.pop(mark.sequence_id, None)
        if known is None or mark.starts or known not in lanes:
            known = self.preferred(mark.sequence_id, lanes)
        if known is not None and not mark.ends:
            self._remember(mark, known, now_s)
        return known

    @staticmethod
    def preferred(sequence_id: int | str, lanes: Iterable[LaneClient]) -> LaneClient | None:
        """Return the one of these lanes that a new sequence would take, None without a lane."""
        return max(lanes, key=lambda lane: _weight(lane.replica_id, sequence_id), default=None)

    def holds(self, sequence_id: int | str, lanes: Container[LaneClient]) -> bool:
        """Whether a sequence that may go on has taken one of the lanes."""
        return self._lane_of(sequence_id, self._now_s()) in lanes

    def _lane_of(self, sequence_id: int | str, now_s: float) -> LaneClient | None:
        """Return the lane of a sequence that is not idle for too long."""
        lane, used_s = self._known.get(sequence_id, (None, 0.0))
        is_over = lane is not None and now_s - used_s > self.idle_s and not self._is_under_way(sequence_id, lane)
        return None if is_over else lane

    def _remember(self, mark: SequenceMark, lane: LaneClient, now_s: float) -> None:
        self._known[mark.sequence_id] = lane, now_s
        if len(self._known) > MAX_SEQUENCES:
            self._known.popitem(last=False)

    def _is_under_way(self, sequence_id: int | str, lane: LaneClient) -> bool:
        """Whether a request of a sequence is on a lane; forgets those that are not, as far as they were sent first."""
        calls = self._under_way.get((lane, sequence_id))
        if calls is None:
            return False
        while calls and calls[0] not in lane.calls:
            calls.popleft()
        if not calls:
            del self._under_way[lane, sequence_id]
        return bool(calls)

    def sent(self, mark: SequenceMark, lane: LaneClient, call_id: int) -> None:
        """Note that a request is on the lane that was chosen for it."""
        calls = self._under_way.setdefault((lane, mark.sequence_id), deque())
        calls.append(call_id)
        if len(calls) > 2 * len(lane.calls):  # most were given up behind one that still runs
            self._under_way[lane, mark.sequence_id] = deque(filter(lane.calls.__contains__, calls))

    def left(self, mark: SequenceMark, lane: LaneClient) -> None:
        """Note that a request was taken off its lane, and gets no answer there."""
        self._is_under_way(mark.sequence_id, lane)

    def answered(self, mark: SequenceMark, lane: LaneClient) -> None:
        """Note that a request, for which the lane was chosen, has got an answer: from now on its sequence is idle."""
        self._is_under_way(mark.sequence_id, lane)
        if self._known.get(mark.sequence_id, (None,))[0] is lane:
            self._known[mark.sequence_id] = lane, self._now_s()

    def refused(self, mark: SequenceMark, lane: LaneClient) -> None:
        """Note that a request, for which the lane was chosen, was refused: a sequence does not end by that."""
        if not mark.starts and mark.sequence_id not in self._known:
            self._remember(mark, lane, self._now_s())


class SequenceSink:
    """Passes the answer to a request within a sequence on, and notes that it came."""

    __slots__ = ("_lane", "_lanes", "_mark", "_sink")

    def __init__(self, sink: Sink, lanes: SequenceLanes, mark: SequenceMark, lane: LaneClient) -> None:
        self._sink = sink
        self._lanes = lanes
        self._mark = mark
        self._lane = lane

    def on_response(self, json_length: int | None, parts: Sequence[Buffer], final: bool) -> None:
        """Pass a response on."""
        self._lanes.answered(self._mark, self._lane)
        self._sink.on_response(json_length, parts, final)

    def on_error(self, error: ServingError) -> None:
        """Pass the error on."""
        if error.refused and self._lane.open:
            self._lanes.refused(self._mark, self._lane)
        self._lanes.answered(self._mark, self._lane)
        self._sink.on_error(error)


def read_mark(parts: Sequence[Buffer], json_length: int | None, wire: int) -> SequenceMark | None:
    """Return the sequence that a request in its wire form belongs to, None when it names none."""
    whole = len(parts) == 1 or (json_length is not None and len(parts[0]) >= json_length)
    body = parts[0] if whole else b"".join(parts)
    if wire != HTTP:
        return grpc_sequence(body)
    return http_sequence(body if json_length is None else memoryview(body)[:json_length])


def _weight(replica_id: str, sequence_id: int | str) -> bytes:
    kind = "text" if isinstance(sequence_id, str) else "number"
    return blake2b(f"{replica_id}\0{kind}\0{sequence_id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
