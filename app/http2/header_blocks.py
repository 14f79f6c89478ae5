"""Header blocks of one connection, decoded once each.

Clients repeat nearly the same block. A block that does not change HPACK's dynamic table means the same as long as the
table stays as it is, so it is kept by its bytes until a block comes that changes the table.
"""

from typing import Final, Generic, Protocol, TypeVar

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

from app.http2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, Http2Error
from app.http2.limits import Http2Limits

_MAX_KEPT_BLOCKS: Final = 64
_MAX_KEPT_BLOCK_BYTES: Final = 2048
# RFC 7541 §4.1
_FIELD_OVERHEAD_BYTES: Final = 32
# More than any length or index takes.
_MAX_INTEGER_BITS: Final = 28

HeaderList = list[tuple[bytes, bytes]]
T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class ReadHead(Protocol[T_co]):
    """What is made of a list of headers."""

    def __call__(self, headers: HeaderList, too_large: bool) -> T_co:
        """Return the head; `too_large`: the list is over `max_header_list_bytes`."""
        ...


class HeaderBlocks(Generic[T]):
    """Decodes the blocks of one connection, in their order, and makes a head of each."""

    def __init__(self, read_head: ReadHead[T], limits: Http2Limits) -> None:
        self._read_head = read_head
        self._max_list_bytes = limits.max_header_list_bytes
        self._max_count = limits.max_header_count
        self._decoder = Decoder(max_header_list_size=2 * limits.max_header_list_bytes)
        self.known: dict[bytes, T] = {}
        """Heads by block, right for the table as it is; look here first."""

    def decode(self, block: bytes) -> T:
        """Return the head of a block that is not known.

        Raises:
            Http2Error: the block cannot be decoded, or is too large by far; the connection cannot go on.
        """
        changes = changes_table(block, self._max_count)
        headers = self._fields(block, changes)
        size = sum(len(name) + len(value) + _FIELD_OVERHEAD_BYTES for name, value in headers)
        head = self._read_head(headers, size > self._max_list_bytes)
        if len(block) <= _MAX_KEPT_BLOCK_BYTES and not changes:
            if len(self.known) >= _MAX_KEPT_BLOCKS:
                self.known.clear()
            self.known[block] = head
        return head

    def skip(self, block: bytes) -> None:
        """Take a block that nobody reads, for what it does to the table; raises as `decode`."""
        self._fields(block, changes_table(block, self._max_count))

    def _fields(self, block: bytes, changes: bool) -> HeaderList:
        if changes:
            self.known.clear()
        try:
            headers: HeaderList = self._decoder.decode(block, raw=True)  # type: ignore[assignment]
        except OversizedHeaderListError:
            raise Http2Error(ENHANCE_YOUR_CALM, "header list too large") from None
        except (HPACKError, IndexError, ValueError):
            raise _undecodable() from None
        return headers


def changes_table(block: bytes, max_count: int) -> bool:
    """Whether a block holds a literal with incremental indexing or a table size update (RFC 7541 §6).

    Raises:
        Http2Error: it has more than `max_count` fields, or is cut short.
    """
    offset, end, count, changes = 0, len(block), 0, False
    try:
        while offset < end:
            count += 1
            first = block[offset]
            if first & 0x80:
                _, offset = _integer(block, offset, 0x7F)
            elif first & 0x60 == 0x20:
                changes = True
                _, offset = _integer(block, offset, 0x1F)
            else:
                changes = changes or first & 0x40 != 0
                index, offset = _integer(block, offset, 0x3F if first & 0x40 else 0x0F)
                for _ in range(1 if index else 2):
                    length, offset = _integer(block, offset, 0x7F)
                    offset += length
    except IndexError:
        raise _undecodable() from None
    if count > max_count:
        raise Http2Error(ENHANCE_YOUR_CALM, "too many header fields")
    return changes


def _undecodable() -> Http2Error:
    return Http2Error(COMPRESSION_ERROR, "header block cannot be decoded")


def _integer(block: bytes, offset: int, mask: int) -> tuple[int, int]:
    """Return an integer with the prefix that `mask` shows, and the offset after it (RFC 7541 §5.1)."""
    value = block[offset] & mask
    offset += 1
    if value == mask:
        for shift in range(0, _MAX_INTEGER_BITS, 7):
            octet = block[offset]
            offset += 1
            value += (octet & 0x7F) << shift
            if not octet & 0x80:
                return value, offset
        raise _undecodable()
    return value, offset
