"""How many requests may wait for a model: as many as it answers in some seconds."""

import sys
from typing import Final, NamedTuple

from deployments.core.statistics import ModelStatistics

ALWAYS_TAKEN: Final = 256
"""So many may wait however slow the model is."""
MEASURED_NS: Final = 1_000_000_000
_LOOK_NS: Final = MEASURED_NS // 20
_UNASKED_NS: Final = 2 * MEASURED_NS
_BATCHES: Final = 1.5
"""Of a load that fits, as much waits as comes while a batch runs; while the next one runs more may come."""


class _Mark(NamedTuple):
    """What a model had done when the end of a batch was noticed."""

    time_ns: int
    answered_count: int
    batch_count: int
    compute_ns: int


class QueueBound:
    """Tells when a queue holds more than its model answers in `max_queue_s` seconds.

    Where batches are long, that is more than it answers while one and a half of them run, in twice `max_queue_s` at
    most. While none ends for the time of two, and for `max_queue_s`, no more than `ALWAYS_TAKEN` may wait.

    It is asked with each request that comes while that many and more wait, and measures the model from then on, for a
    second at least and from one end of a batch to another: of requests that come at once, those of the first second are
    all taken.
    """

    __slots__ = (
        "_answered_count",
        "_batch_ns",
        "_last_count",
        "_last_end_ns",
        "_look_ns",
        "_mark",
        "_max_count",
        "_max_queue_ns",
        "_measured_count",
        "_statistics",
    )

    def __init__(self, max_queue_s: float, statistics: ModelStatistics) -> None:
        self._max_queue_ns = max_queue_s * 1e9
        self._statistics = statistics
        self._look_ns = -(1 << 62)
        self._max_count = self._measured_count = sys.maxsize
        self._last_count = 0
        self._batch_ns = self._max_queue_ns
        self._answered_count = 0
        self._last_end_ns = 0
        self._mark: _Mark | None = None

    def is_reached(self, waiting_count: int, now_ns: int) -> bool:
        """Whether no more may wait."""
        if now_ns >= self._look_ns:
            self._look(waiting_count, now_ns)
        return waiting_count >= self._max_count

    def _look(self, waiting_count: int, now_ns: int) -> None:
        """See whether a batch has ended."""
        unasked_ns = now_ns - self._look_ns
        self._look_ns = now_ns + _LOOK_NS
        answered_count = self._statistics.counts.compute_count
        if unasked_ns > _UNASKED_NS and waiting_count <= ALWAYS_TAKEN:
            # Fewer waited meanwhile, or none: the model may have had nothing to do.
            self._measured_count, self._last_count = sys.maxsize, 0
            self._mark = None
        elif answered_count != self._answered_count:
            self._note_end(now_ns)
        else:
            if now_ns - self._last_end_ns > max(MEASURED_NS, self._max_queue_ns, 2 * self._batch_ns):
                self._max_count = ALWAYS_TAKEN
                self._mark = None  # so that the standstill, when it is over, does not count as time at work
            return
        self._answered_count, self._last_end_ns = answered_count, now_ns
        self._max_count = self._measured_count

    def _note_end(self, now_ns: int) -> None:
        counts, before = self._statistics.counts, self._mark
        if before is None:
            self._batch_ns = max(self._batch_ns, now_ns - self._last_end_ns)
        elif now_ns - before.time_ns < MEASURED_NS:
            return
        compute_ns = counts.compute_input_ns + counts.compute_infer_ns + counts.compute_output_ns
        mark = self._mark = _Mark(now_ns, counts.compute_count, counts.execution_count, compute_ns)
        if before is not None:
            self._measure(before, mark)

    def _measure(self, start: _Mark, end: _Mark) -> None:
        elapsed_ns = end.time_ns - start.time_ns
        answered_count = end.answered_count - start.answered_count
        # Each batch is in `compute_ns` once for every request in it. Under a rate limiter batches wait before they run.
        self._batch_ns = max(
            (end.compute_ns - start.compute_ns) / answered_count,
            elapsed_ns / (end.batch_count - start.batch_count),
        )
        horizon_ns = max(self._max_queue_ns, min(_BATCHES * self._batch_ns, 2 * self._max_queue_ns))
        last_count, self._last_count = self._last_count, int(answered_count / elapsed_ns * horizon_ns)
        # A batch that began when few waited, and the half of those that end together, say less than the model can.
        self._measured_count = max(ALWAYS_TAKEN, last_count, self._last_count)
