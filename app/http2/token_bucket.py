"""How much of something a peer may do: a burst at once, a rate in the long run."""


class TokenBucket:
    """Holds `burst` tokens at first and gains `per_s`; times are those of the event loop."""

    __slots__ = ("_burst", "_filled_at_s", "_per_s", "_tokens")

    def __init__(self, burst: int, per_s: float, now_s: float) -> None:
        self._burst = float(burst)
        self._per_s = per_s
        self._tokens = float(burst)
        self._filled_at_s = now_s

    def give(self, count: int) -> None:
        """Put tokens in, as far as there is room for them."""
        self._tokens = min(self._burst, self._tokens + count)

    def take(self, now_s: float, count: int = 1) -> bool:
        """Take tokens; False when there are not as many."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._filled_at_s) * self._per_s)
        self._filled_at_s = now_s
        if self._tokens < count:
            return False
        self._tokens -= count
        return True
