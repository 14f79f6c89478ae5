"""How many requests may wait for a model: as many as it answers in some seconds."""

import sys
from typing import Final

from deployments.core.statistics import ModelStatistics

ALWAYS_TAKEN: Final = 256
"""So many may wait however slow the model is."""
MEASURED_NS: Final = 1_000_000_000


class QueueBound:
    """Tells when a queue holds more than its model answers in `max_queue_s` seconds.

    It is asked only while `ALWAYS_TAKEN` and more wait, and measures the model from then on, second by second: of
    requests that come at once, those of the first second are all taken.
    """

    __slots__ = ("_answered_count", "_max_count", "_max_queue_s", "_since_ns", "_statistics")

    def __init__(self, max_queue_s: float, statistics: ModelStatistics) -> None:
        self._max_queue_s = max_queue_s
        self._statistics = statistics
        self._since_ns = -(1 << 62)
        self._answered_count = 0
        self._max_count = sys.maxsize

    def is_reached(self, waiting_count: int, now_ns: int) -> bool:
        """Whether no more may wait."""
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns >= MEASURED_NS:
            answered_count = self._statistics.counts.compute_count
            if elapsed_ns > 2 * MEASURED_NS:  # it was not asked meanwhile: the model may have had nothing to do
                self._max_count = sys.maxsize
            else:
                per_ns = (answered_count - self._answered_count) / elapsed_ns
                self._max_count = max(ALWAYS_TAKEN, int(per_ns * 1e9 * self._max_queue_s))
            self._since_ns, self._answered_count = now_ns, answered_count
        return waiting_count >= self._max_count
