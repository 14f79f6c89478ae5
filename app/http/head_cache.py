"""Heads that were parsed before, found by their bytes."""

from typing import Final

from app.http.head import Head

_MAX_HEADS: Final = 1024
_MAX_HEAD_BYTES: Final = 4096


class HeadCache:
    """Bounded; `get` is the look-up itself, for the sake of the hot path."""

    def __init__(self) -> None:
        self.by_bytes: dict[bytes, Head] = {}
        self.get = self.by_bytes.get

    def remember(self, raw: bytes, head: Head) -> None:
        """Keep a parsed head for the next request with the same bytes."""
        if len(raw) <= _MAX_HEAD_BYTES:
            if len(self.by_bytes) >= _MAX_HEADS:
                self.by_bytes.clear()
            self.by_bytes[raw] = head
