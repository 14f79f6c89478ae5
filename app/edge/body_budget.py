"""Bytes of request bodies that all connections of a port may hold together."""

from typing import Final

TOO_MANY_BODIES: Final = "too many bytes of request bodies are under way; send the request again later"


class BodyBudget:
    """Counts what has arrived, not what was announced: an announcement costs nothing, and must block nobody."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0

    def has_room(self, size: int) -> bool:
        """Return whether a body of this size would fit now."""
        return self.used_bytes + size <= self._limit_bytes

    def take(self, size: int) -> bool:
        """Count bytes in; False, and nothing is counted, when they are too many."""
        if self.used_bytes + size > self._limit_bytes:
            return False
        self.used_bytes += size
        return True

    def give_back(self, size: int) -> None:
        """Count bytes out."""
        self.used_bytes -= size
