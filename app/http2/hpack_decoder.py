"""Header blocks become fields (HPACK, RFC 7541); the dynamic table is one connection's.

Written for the speed of small blocks, of which a server gets one with every request.
"""

from collections import deque
from typing import Final

from hpack.table import HeaderTable

from app.http2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, Http2Error
from app.http2.huffman import decode_huffman

HeaderField = tuple[bytes, bytes]
HeaderList = list[HeaderField]

# RFC 7541 §4.1, RFC 9113 §6.5.2
FIELD_OVERHEAD_BYTES: Final = 32
_TABLE_BYTES: Final = 4096
_STATIC: Final[tuple[HeaderField, ...]] = HeaderTable.STATIC_TABLE
_STATIC_COUNT: Final = len(_STATIC)
# More than any length or index takes.
_MAX_INTEGER_BITS: Final = 28


class HpackDecoder:
    """Decodes the blocks of one connection, in their order.

    Args:
        max_list_bytes: of one block's fields, with 32 bytes for each; more end the connection.
        max_count: of one block's fields, table size updates included.
    """

    __slots__ = ("_bytes", "_limit_bytes", "_max_count", "_max_list_bytes", "_table", "changed")

    def __init__(self, max_list_bytes: int, max_count: int) -> None:
        self._max_list_bytes = max_list_bytes
        self._max_count = max_count
        self._table: deque[HeaderField] = deque()
        self._bytes = 0
        self._limit_bytes = _TABLE_BYTES
        self.changed = False
        """Whether the last block has changed the dynamic table, so that blocks mean something else than before."""

    def decode(self, block: bytes) -> HeaderList:
        """Return the fields of a block.

        Raises:
            Http2Error: it cannot be decoded, or is too large; the connection cannot go on.
        """
        try:
            return self._decode(block)
        except (IndexError, ValueError):
            raise Http2Error(COMPRESSION_ERROR, "header block cannot be decoded") from None

    def _decode(self, block: bytes) -> HeaderList:
        table = self._table
        self.changed = False
        headers: HeaderList = []
        at, end, list_bytes, updates = 0, len(block), 0, 0
        while at < end:
            if len(headers) + updates >= self._max_count:
                raise Http2Error(ENHANCE_YOUR_CALM, "too many header fields")
            first = block[at]
            if first & 0x80:
                index = first & 0x7F
                at += 1
                if index == 0x7F:
                    index, at = _long_integer(block, at, index)
                field = _STATIC[index - 1] if 0 < index <= _STATIC_COUNT else table[_dynamic(index)]
            elif first & 0x60 == 0x20:
                if headers:
                    raise ValueError("a table size update behind a field")
                size, at = _integer(block, at, 0x1F)
                if size > _TABLE_BYTES:
                    raise ValueError("a larger table than allowed")
                self.changed = True
                self._limit_bytes = size
                self._evict()
                updates += 1
                continue
            else:
                indexed = first & 0x40
                index, at = _integer(block, at, 0x3F if indexed else 0x0F)
                if index:
                    name = (_STATIC[index - 1] if index <= _STATIC_COUNT else table[_dynamic(index)])[0]
                else:
                    name, at = _string(block, at)
                value, at = _string(block, at)
                field = name, value
                if indexed:
                    self.changed = True
                    table.appendleft(field)
                    self._bytes += len(name) + len(value) + FIELD_OVERHEAD_BYTES
                    if self._bytes > self._limit_bytes:
                        self._evict()
            list_bytes += len(field[0]) + len(field[1]) + FIELD_OVERHEAD_BYTES
            if list_bytes > self._max_list_bytes:
                raise Http2Error(ENHANCE_YOUR_CALM, "header list too large")
            headers.append(field)
        return headers

    def _evict(self) -> None:
        """Drop the oldest entries, all of them if the newest alone is too large (RFC 7541 §4.4)."""
        while self._bytes > self._limit_bytes:
            name, value = self._table.pop()
            self._bytes -= len(name) + len(value) + FIELD_OVERHEAD_BYTES


def _dynamic(index: int) -> int:
    """Return the place in the dynamic table that an index of a field means."""
    if index <= _STATIC_COUNT:
        raise ValueError("there is no field 0")
    return index - _STATIC_COUNT - 1


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """Return a string and the position after it (RFC 7541 §5.2)."""
    first = block[at]
    size = first & 0x7F
    at += 1
    if size == 0x7F:
        size, at = _long_integer(block, at, size)
    end = at + size
    if end > len(block):
        raise ValueError("the block ends within a string")
    text = block[at:end]
    return decode_huffman(text) if first & 0x80 else text, end


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Return an integer with the prefix that `mask` shows, and the position after it (RFC 7541 §5.1)."""
    value = block[at] & mask
    return _long_integer(block, at + 1, value) if value == mask else (value, at + 1)


def _long_integer(block: bytes, at: int, value: int) -> tuple[int, int]:
    """Return an integer of which the prefix is full, and the position after it."""
    for shift in range(0, _MAX_INTEGER_BITS, 7):
        octet = block[at]
        at += 1
        value += (octet & 0x7F) << shift
        if not octet & 0x80:
            return value, at
    raise ValueError("an integer without end")
