"""How many of the requests that wait share the next batch of a GPU, so that its clients fall into two equal groups.

Clients that send one request after the other fall into two groups where the next batch starts as soon as the one before
has ended: each group comes back while the other's batch runs. Whatever their sizes happen to be, they stay. A GPU takes
hardly less time for a batch of 1 than for one of 8: groups of 1 and 15 kept an H100 a quarter longer than two of 8.
"""

from collections.abc import Callable
from typing import Final

STEADY_BATCHES: Final = 3
STEADY_PART: Final = 16
"""Rows are about as many where they differ by at most this part of them: what comes at random hardly ever does."""


class EvenBatches:
    """Divides what waits behind a batch; belongs to the loop's thread.

    `filled` is how many rows a batch of so many runs as.
    """

    def __init__(self, filled: Callable[[int], int]) -> None:
        self._filled = filled
        self._all_rows = 0
        self._steady_count = 0

    def share(self, ended_rows: int, waiting_rows: int) -> int:
        """Return how many of the rows that wait when a batch has ended are to share the next one, 0 for all.

        That is half of these and of those that have just run, where it is less than what waits, the GPU has less to do
        for it, and there were about as many rows when each of the three batches before ended: then those that have just
        run will come back.
        """
        all_rows, before = ended_rows + waiting_rows, self._all_rows
        self._all_rows = all_rows
        self._steady_count = self._steady_count + 1 if STEADY_PART * abs(all_rows - before) <= all_rows else 0
        half = -(-all_rows // 2)
        if half >= waiting_rows or self._steady_count < STEADY_BATCHES:
            return 0
        return half if self._filled(half) < self._filled(waiting_rows) else 0
