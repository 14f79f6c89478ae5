"""Which batches may run on the event loop's thread: those whose size has been quick, and has not stalled the loop."""

from typing import Final

INLINE_LIMIT_US: Final = 1000
STALL_LIMIT_US: Final = 10_000
FIRST_PENALTY: Final = 64
LAST_PENALTY: Final = 4096
_INLINE_LIMIT_NS: Final = INLINE_LIMIT_US * 1000
_STALL_LIMIT_NS: Final = STALL_LIMIT_US * 1000
_SIZES: Final = 32
_UNMEASURED: Final = 1 << 62


class InlineGate:
    """Follows how long batches of each size take, a size being a power of two of rows.

    A size may run inline when its runs take less than `INLINE_LIMIT_US` on average; its first run is in the thread. A
    mean says nothing of the one slow run in twenty: an inline run of more than `STALL_LIMIT_US` sends its size back to
    the thread until 64 runs in a row there were quick, after the next such run 128, up to 4,096. So inputs that are
    slow now and then stall the loop a few times, not once in twenty.
    """

    __slots__ = ("_estimates_ns", "_owed", "_penalties")

    def __init__(self) -> None:
        self._estimates_ns = [_UNMEASURED] * _SIZES
        self._owed = [0] * _SIZES
        self._penalties = [FIRST_PENALTY] * _SIZES

    def allows(self, rows: int) -> bool:
        """Whether a batch of so many rows may run inline."""
        size = (rows - 1).bit_length()
        return self._estimates_ns[size] < _INLINE_LIMIT_NS and not self._owed[size]

    def ran_inline(self, rows: int, duration_ns: int) -> None:
        """Take how long a batch took on the loop's thread."""
        size = (rows - 1).bit_length()
        estimate_ns = self._estimates_ns[size]
        self._estimates_ns[size] = estimate_ns + ((duration_ns - estimate_ns) >> 3)
        if duration_ns > _STALL_LIMIT_NS:
            self._owed[size] = self._penalties[size]
            self._penalties[size] = min(LAST_PENALTY, 2 * self._penalties[size])

    def ran_in_thread(self, rows: int, duration_ns: int) -> None:
        """Follow quickly downwards and slowly upwards: a thread's time also holds its waits for the interpreter."""
        size = (rows - 1).bit_length()
        estimate_ns = self._estimates_ns[size]
        if estimate_ns == _UNMEASURED:
            self._estimates_ns[size] = duration_ns
        else:
            self._estimates_ns[size] += (duration_ns - estimate_ns) >> (1 if duration_ns < estimate_ns else 4)
        if self._owed[size]:
            quick = duration_ns <= _STALL_LIMIT_NS
            self._owed[size] = self._owed[size] - 1 if quick else self._penalties[size]
