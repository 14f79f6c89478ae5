"""How many streams a client may have reset: each may have cost the server more than the client."""

from typing import Final

from app.http2.limits import Http2Limits
from app.http2.token_bucket import TokenBucket

LASTING_S: Final = 0.1
"""What was open for so long, of the streams that may be open at a time, was given up by a client that had waited."""


class ResetBudget:
    """The budget of one connection, to which each stream that is not reset adds one; times are those of the loop."""

    __slots__ = ("_bucket", "_other_count", "_reset_count")

    def __init__(self, limits: Http2Limits, now_s: float) -> None:
        self._bucket = TokenBucket(limits.max_resets_burst, limits.max_resets_per_s, now_s)
        self._reset_count = 0
        self._other_count = 0

    def take(self, now_s: float) -> bool:
        """Pay for a stream that the server has to reset; False when the client has spent its budget."""
        return self._bucket.take(now_s)

    def take_early(self, now_s: float, stream_count: int) -> bool:
        """Pay for a stream that the client resets soon after it has opened it, of so many until now."""
        self._reset_count += 1
        before, self._other_count = self._other_count, stream_count - self._reset_count
        self._bucket.give(self._other_count - before)
        return self._bucket.take(now_s)
