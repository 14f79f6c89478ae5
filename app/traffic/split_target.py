"""The target of requests that name no version, of a model whose versions share them or get copies."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.traffic.shadow import Shadow
from deployments.core.version_choice import SequenceVersions, Turns
from deployments.lane.frames import Buffer
from deployments.lane.sequence_lanes import read_mark
from deployments.lane.sink import Sink, VersionTarget
from deployments.lane.wire import HTTP
from deployments.replica.version_meter import VersionMeter
from protocol.errors import ServingError
from protocol.sequence_mark import SequenceMark
from protocol.trace import Trace


class SplitTarget:
    """Gives each request to one version; what it remembers is the model's, and common to all its split targets.

    Args:
        targets: those of all ready versions.
        shares: as `Traffic.shares` returns them; not empty.
        sequences: None for a model without sequences.
        meters: by version.
    """

    def __init__(
        self,
        targets: Mapping[int, VersionTarget],
        shares: Mapping[int, float],
        turns: Turns,
        sequences: SequenceVersions | None,
        shadows: Sequence[Shadow],
        meters: Mapping[int, VersionMeter],
    ) -> None:
        self._targets = targets
        self._shares = shares
        self._turns = turns
        self._sequences = sequences
        self._shadows = [(shadow, targets[shadow.version]) for shadow in shadows if shadow.version in targets]
        self._meters = meters
        bounds, bound = [], 0.0
        for version, share in shares.items():
            bound += share
            bounds.append((bound, targets[version]))
        self._last = bounds.pop()[1]
        self._bounds = bounds
        self.model_name = self._last.model_name
        self.version = max(shares)

    @property
    def shared(self) -> bool:
        """Whether others wait for the loop that decodes requests of one of the versions."""
        return any(self._targets[version].shared for version in self._shares)

    @property
    def ready(self) -> bool:
        """Whether one of the versions is ready."""
        return any(self._targets[version].ready for version in self._shares)

    def submit(
        self,
        parts: Sequence[Buffer],
        json_length: int | None,
        sink: Sink,
        wire: int = HTTP,
        trace: Trace | None = None,
    ) -> Any:
        """Send a request to the version whose turn it is, or to that of its sequence."""
        mark = None if self._sequences is None else read_mark(parts, json_length, wire)
        target = self._next() if mark is None else self._of_sequence(mark)
        if mark is not None and mark.ends and not mark.starts:
            assert self._sequences is not None
            sink = _EndSink(sink, self._sequences, mark.sequence_id, target.version)
        if self._shadows:
            # A model of this process that writes to what it gets gets a copy then.
            parts = [memoryview(part).toreadonly() for part in parts]
        if target.version in self._meters:
            sink = self._meters[target.version].measured(sink)
        token = target.submit(parts, json_length, sink, wire, trace)
        if mark is not None:
            self._note_others(mark, target, token)
        for shadow, copied in self._shadows:
            if copied is not target or mark is None:  # else a sequence goes on where it was
                shadow.offer(copied, parts, json_length, wire, mark)
        return target, token

    def _note_others(self, mark: SequenceMark, target: VersionTarget, token: Any) -> None:
        """End what other versions may hold of a sequence that starts, and have them asked for one that goes on.

        It may have begun through another ingress, when the shares were others.
        """
        others = [each for each in self._targets.values() if each is not target]
        if not mark.starts:
            target.may_be_elsewhere(token, others)
            return
        for other in others:
            other.end_sequence(mark.sequence_id)

    def cancel(self, token: Any) -> None:
        """Give a request up."""
        if token is not None:
            target, given = token
            target.cancel(given)

    def _next(self) -> VersionTarget:
        point = self._turns.next()
        for bound, target in self._bounds:
            if point < bound:
                return target
        return self._last

    def _of_sequence(self, mark: SequenceMark) -> VersionTarget:
        assert self._sequences is not None
        version = self._sequences.choose(
            mark.sequence_id, self._shares, self._targets, starts=mark.starts, ends=mark.ends, holds=self._holds
        )
        return self._targets[version]

    def _holds(self, version: int, sequence_id: int | str) -> bool:
        return self._targets[version].holds(sequence_id)


class _EndSink:
    """Passes the answer to the last request of a sequence on; one that is refused does not end it."""

    __slots__ = ("_sequence_id", "_sequences", "_sink", "_version")

    def __init__(self, sink: Sink, sequences: SequenceVersions, sequence_id: int | str, version: int) -> None:
        self._sink = sink
        self._sequences = sequences
        self._sequence_id = sequence_id
        self._version = version

    def on_response(self, json_length: int | None, parts: Sequence[Buffer], final: bool) -> None:
        self._sink.on_response(json_length, parts, final)

    def on_error(self, error: ServingError) -> None:
        if error.refused:
            self._sequences.refused(self._sequence_id, self._version)
        self._sink.on_error(error)
