"""Heads of inference requests that were parsed before, found by their bytes, or by those that mean something."""

import re
from collections.abc import Callable
from typing import Final

from app.http.head import Head

_MAX_HEADS: Final = 1024
_MAX_HEAD_BYTES: Final = 4096
_READ: Final = (
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "host",
    "inference-header-content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
)
# A whole line that httptools and `parse_head` take for a header, of another name; what is no header stays, and the
# head is parsed and refused.
_UNREAD: Final = re.compile(
    rb"\r\n(?!(?i:%b):)([!#$%%&'*+.^_`|~0-9A-Za-z-]++):[\t\x20-\x7e\x80-\xff]*+(?=\r\n)" % "|".join(_READ).encode()
)


class HeadCache:
    """Bounded; `get` looks a head up by its bytes, and is the dictionary's own for the sake of the hot path.

    To `find`, two heads are the same that differ only in headers which nobody reads, such as `traceparent` and
    `x-request-id`; it takes a tenth of the time of parsing.

    Args:
        max_header_count: in one head.
        is_read: whether a header of this name is read for the sake of the operator's settings; None: none is.
    """

    def __init__(self, max_header_count: int, is_read: Callable[[bytes], bool] | None) -> None:
        self.by_bytes: dict[bytes, Head] = {}
        self.get = self.by_bytes.get
        self._by_essence: dict[bytes, Head] = {}
        self._most_line_ends = max_header_count + 2
        self._is_read = is_read

    def find(self, raw: bytes) -> Head | None:
        """Return the head that means the same as these bytes, if there is one, and remember these too."""
        if len(raw) > _MAX_HEAD_BYTES or raw.count(b"\n") > self._most_line_ends:
            return None
        head = self._by_essence.get(self._essence(raw))
        if head is not None:
            self.keep(raw, head)
        return head

    def remember(self, raw: bytes, head: Head) -> None:
        """Keep a parsed head for the next request with the same bytes, or those that mean the same."""
        if len(raw) > _MAX_HEAD_BYTES:
            return
        self.keep(raw, head)
        if len(self._by_essence) >= _MAX_HEADS:
            self._by_essence.clear()
        self._by_essence[self._essence(raw)] = head

    def clear(self) -> None:
        """Forget every head."""
        self.by_bytes.clear()
        self._by_essence.clear()

    def keep(self, raw: bytes, head: Head) -> None:
        """Keep a head for the next request with the same bytes, but not for those that only mean the same."""
        if len(raw) > _MAX_HEAD_BYTES:
            return
        if len(self.by_bytes) >= _MAX_HEADS:
            self.by_bytes.clear()
        self.by_bytes[raw] = head

    def _essence(self, raw: bytes) -> bytes:
        is_read = self._is_read
        if is_read is None:
            return _UNREAD.sub(b"", raw)
        return _UNREAD.sub(lambda line: line[0] if is_read(line[1].lower()) else b"", raw)
