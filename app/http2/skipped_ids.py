"""Ids of streams that a client has passed over: not every one, but enough to tell which of two errors it made."""

from collections import deque
from typing import Final

_GAPS_KEPT: Final = 16


class SkippedIds:
    """Holds the last gaps in the ids of a connection's streams, and counts the ids of all."""

    def __init__(self) -> None:
        self._gaps: deque[range] = deque(maxlen=_GAPS_KEPT)
        self.count = 0

    def add(self, gap: range) -> None:
        """Note the ids between those of two streams."""
        self._gaps.append(gap)
        self.count += len(gap)

    def __contains__(self, stream_id: int) -> bool:
        """Whether the id was never used, as far as is known; if not, it belongs to a stream that is closed."""
        return any(stream_id in gap for gap in self._gaps)
