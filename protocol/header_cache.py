"""A bounded memory of request headers by their exact bytes, that ever-changing headers cannot wear out."""

import re
from typing import Generic, Protocol, TypeVar


class Reusable(Protocol):
    """What the cache keeps; whoever takes an entry out of it sets `used`."""

    used: bool


Entry = TypeVar("Entry", bound=Reusable)

_PAUSE = 4096
_LEADING_ID = re.compile(rb'\{[ \t\n\r]*"id"[ \t\n\r]*:[ \t\n\r]*"([^"\\\x00-\x1f\x7f-\xff]*)(?=")')


def split_leading_id(header: bytes) -> tuple[str, bytes] | None:
    """Return the id that a JSON header starts with and what follows it; None if it does not start with a plain one.

    Clients that number their requests put the number first, so that the rest is what to recognise a header by. It
    starts with a quotation mark, where a whole header starts with a brace.
    """
    leading = _LEADING_ID.match(header)
    return None if leading is None else (leading[1].decode(), header[leading.end() :])


def may_stand_without_id(rest: bytes) -> bool:
    """Return whether what follows a leading id surely holds no other one."""
    return b'"id"' not in rest and b"\\u" not in rest


class HeaderCache(Generic[Entry]):
    """Entries by header bytes.

    `entries` is read directly, because a hit must cost one look-up. When full, entries that were not used since the
    last time are dropped; if that is all of them, every header differs from the last, and nothing is put in for a
    while, so that such traffic pays a look-up and no more.
    """

    __slots__ = ("_capacity", "_key_bytes", "_pause", "entries")

    def __init__(self, capacity: int, key_bytes: int) -> None:
        self.entries: dict[bytes, Entry] = {}
        self._capacity = capacity
        self._key_bytes = key_bytes
        self._pause = 0

    def put(self, key: bytes, entry: Entry) -> None:
        """Keep the entry, unless its key is too long or keeping has not paid of late."""
        if self._pause:
            self._pause -= 1
            return
        if len(key) > self._key_bytes:
            return
        if len(self.entries) >= self._capacity:
            self._make_room()
            if self._pause:
                return
        self.entries[key] = entry

    def _make_room(self) -> None:
        used = {key: entry for key, entry in self.entries.items() if entry.used}
        self.entries.clear()
        if not used:
            self._pause = _PAUSE
        elif len(used) <= self._capacity // 2:
            for entry in used.values():
                entry.used = False
            self.entries.update(used)
