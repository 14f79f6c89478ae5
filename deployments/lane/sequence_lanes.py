"""Which lane a sequence's requests take: always the one to the replica that holds it."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from time import monotonic
from typing import Final

from deployments.lane.client import LaneClient
from deployments.lane.frames import Buffer
from deployments.lane.wire import HTTP
from protocol.sequence_mark import SequenceMark, grpc_sequence, http_sequence

MAX_SEQUENCES: Final = 65_536
"""Sequences whose replica an ingress remembers; of others the ids alone decide."""


class SequenceLanes:
    """Chooses by rendezvous hashing over the ids of the replicas, so that all ingresses agree and none asks another.

    A new replica would take some of the sequences that others hold. An ingress therefore remembers which lane a
    sequence has taken until it ends, or is idle for as long as its model allows.
    """

    def __init__(self, idle_s: float, now_s: Callable[[], float] = monotonic) -> None:
        self.idle_s = idle_s
        self._now_s = now_s
        self._known: OrderedDict[int | str, tuple[LaneClient, float]] = OrderedDict()

    def choose(self, mark: SequenceMark, lanes: Iterable[LaneClient]) -> LaneClient | None:
        """Return the lane for a request, None without a lane."""
        now_s = self._now_s()
        known, used_s = self._known.pop(mark.sequence_id, (None, 0.0))
        if known is None or mark.starts or now_s - used_s > self.idle_s or known not in lanes:
            known = max(lanes, key=lambda lane: _weight(lane.replica_id, mark.sequence_id), default=None)
        if known is not None and not mark.ends:
            self._remember(mark, known, now_s)
        return known

    def _remember(self, mark: SequenceMark, lane: LaneClient, now_s: float) -> None:
        self._known[mark.sequence_id] = lane, now_s
        if len(self._known) > MAX_SEQUENCES:
            self._known.popitem(last=False)

    def refused(self, mark: SequenceMark, lane: LaneClient) -> None:
        """Note that a request, for which the lane was chosen, was refused: a sequence does not end by that."""
        if not mark.starts and mark.sequence_id not in self._known:
            self._remember(mark, lane, self._now_s())


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
