"""Memory for messages on their way in, larger than a stream's initial window; first come, first served."""

from collections import deque

from app.http2.stream import Stream


class Reservations:
    """At most `limit_bytes` at one time, or one message of any size.

    A stream gets the whole length of its message or waits, so that those that are being read always come to an end.
    """

    __slots__ = ("_held", "_limit_bytes", "_used_bytes", "_waiting", "active")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._held: dict[Stream, int] = {}
        self._waiting: deque[tuple[Stream, int]] = deque()
        self.active = False
        """Whether any stream holds or waits for something."""

    def take(self, stream: Stream, size: int) -> None:
        """Reserve for a stream; its `granted` is called now or later."""
        self.active = True
        if not self._waiting and self._fits(size):
            self._grant(stream, size)
        else:
            self._waiting.append((stream, size))

    def give_back(self, stream: Stream) -> None:
        """Free what a stream holds or waits for, if anything, and grant what fits now."""
        size = self._held.pop(stream, 0)
        if size:
            self._used_bytes -= size
        elif self._waiting:
            self._waiting = deque(entry for entry in self._waiting if entry[0] is not stream)
        while self._waiting and self._fits(self._waiting[0][1]):
            self._grant(*self._waiting.popleft())
        self.active = bool(self._held or self._waiting)

    def _fits(self, size: int) -> bool:
        return not self._used_bytes or self._used_bytes + size <= self._limit_bytes

    def _grant(self, stream: Stream, size: int) -> None:
        self._used_bytes += size
        self._held[stream] = size
        stream.granted()
