"""Connections whose clients take their answers more slowly than these come, and what that costs altogether."""

from typing import Final, Protocol

TOO_MANY_ANSWERS: Final = "too many bytes of answers wait for clients that read slowly"
# How long a client may take nothing while more waits for it than it should.
_PATIENCE_S: Final = 5.0
# How much more may wait for one that takes some.
_BURST: Final = 4


def falls_behind(waiting_bytes: int, limit_bytes: int, idle_s: float) -> bool:
    """Whether a client is given up when there is another answer for it, while `waiting_bytes` of others wait.

    More than `limit_bytes` may not wait for a client that has taken nothing for `idle_s` of 5 s or more, and for no
    client more than four times as much. So an answer of any size passes, and as many at once as fit that.
    """
    return waiting_bytes > (limit_bytes if idle_s >= _PATIENCE_S else _BURST * limit_bytes)


class SlowReader(Protocol):
    """What is asked of a connection."""

    @property
    def unsent_bytes(self) -> int:
        """How much waits for its client."""
        ...

    @property
    def waits_since_s(self) -> float:
        """When its client last took something."""
        ...

    def give_up(self, reason: str) -> None:
        """End without sending the rest."""
        ...


class SlowReaders:
    """Bounds what waits on all connections of a port together; who has read nothing for longest goes first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        # It may be exceeded by as much before all connections are asked again, which takes time when they are many.
        self._slack_bytes = limit_bytes // 8
        self._readers: set[SlowReader] = set()
        self._most_bytes = 0
        """No more than this waits, unless it was taken meanwhile."""

    def note(self, reader: SlowReader, size: int) -> None:
        """Hear that a connection has got `size` bytes more that wait."""
        self._readers.add(reader)
        self._most_bytes += size
        if self._most_bytes > self._limit_bytes:
            self._count()

    def discard(self, reader: SlowReader) -> None:
        """Forget a connection for which nothing waits any more."""
        self._readers.discard(reader)

    def _count(self) -> None:
        unsent = {reader: size for reader in self._readers if (size := reader.unsent_bytes)}
        self._readers = set(unsent)
        total = sum(unsent.values())
        if total > self._limit_bytes:
            for reader in sorted(unsent, key=lambda reader: reader.waits_since_s):
                self._readers.discard(reader)
                reader.give_up(TOO_MANY_ANSWERS)
                total -= unsent[reader]
                if total <= self._limit_bytes:
                    break
        self._most_bytes = min(total, self._limit_bytes - self._slack_bytes)
