"""How long an idle instance waits for the clients that it has just answered, so that their requests share a batch.

Clients that send one request after the other fall into two halves when a batch starts as soon as the one before it has
ended: one half waits while the other runs, and batches are half as large as they could be.
"""

from collections.abc import Callable
from typing import Final

from deployments.core.clock import Clock, Timer

SLOW_BATCH_NS: Final = 8_000_000
"""Shorter batches are not worth a wait: clients take about a millisecond to come back."""
SHARE: Final = 12
"""The wait is at most this part of the last batch's time."""
LONGEST_WAIT_NS: Final = 25_000_000
MOST_SKIPPED: Final = 256


class ReturningClients:
    """Says whether the next batch is to wait; belongs to the loop's thread.

    After a slow batch of several requests the next one waits until as many have come as were answered, or for a
    twelfth of the batch's time. When fewer than half have come by then, the clients do not wait for their answers:
    the next batch is not held back, nor, if that happens again, the next two, four and so on up to 256.
    """

    def __init__(self, clock: Clock, wait_is_over: Callable[[], None]) -> None:
        self._call_later = clock.call_later
        self._wait_is_over = wait_is_over
        self._timer: Timer | None = None
        self._complete_count = 0
        self._half_count = 0
        self._skipped = 0
        self._to_skip = 0

    @property
    def are_awaited(self) -> bool:
        """Whether the next batch waits."""
        return self._timer is not None

    def answered(self, request_count: int, waiting_count: int, elapsed_ns: int) -> None:
        """Await the clients of a slow batch, which took `elapsed_ns`; `waiting_count` other requests wait already."""
        if request_count < 2:
            return
        if self._skipped < self._to_skip:
            self._skipped += 1
            return
        self._complete_count = waiting_count + request_count
        self._half_count = waiting_count + request_count // 2
        self._timer = self._call_later(min(elapsed_ns // SHARE, LONGEST_WAIT_NS) / 1e9, self._wait_is_over)

    def are_back(self, waiting_count: int) -> bool:
        """Whether all have come, with these requests."""
        return waiting_count >= self._complete_count

    def end(self, waiting_count: int) -> None:
        """Await nobody any more; with fewer than half of them among these requests, nor after the next batches."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        if waiting_count >= self._half_count:
            self._to_skip = 0
        else:
            self._skipped, self._to_skip = 0, min(max(1, 2 * self._to_skip), MOST_SKIPPED)
