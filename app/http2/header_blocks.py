"""Header blocks of one connection, understood once each.

Clients repeat nearly the same block. A block that does not change HPACK's dynamic table means the same as long as the
table stays as it is, so it is kept by its bytes until a block comes that changes the table. Fields that the application
ignores, such as the identity of a trace, are cut off the end of a block before it is looked up, and left out of what a
list of fields is recognised by.
"""

import re
from typing import Final, Generic, Protocol, TypeVar

from app.http2.hpack_decoder import FIELD_OVERHEAD_BYTES, HeaderField, HeaderList, HpackDecoder
from app.http2.huffman import check_value, decode_huffman
from app.http2.limits import Http2Limits

_MAX_KEPT: Final = 64
_MAX_KEPT_BLOCK_BYTES: Final = 2048
_MAX_NAMES: Final = 1024
# Indexed fields of one byte each.
_INDEXED: Final = re.compile(rb"[\x80-\xfe]+")
# No symbol of the Huffman code takes less than 5 bits.
_MAX_EXPANSION: Final = 2
_WATCHED: Final = 2
_BAD_VALUE: Final = re.compile(rb"[\x00\r\n]")

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class HeadReader(Protocol[T_co]):
    """What makes something of a list of headers."""

    def read_head(self, headers: HeaderList, too_large: bool) -> T_co:
        """Return the head; `too_large`: the list is over `max_header_list_bytes`."""
        ...

    def ignores(self, name: bytes) -> bool:
        """Whether a field of this name is well-formed, and changes nothing about a head."""
        ...

    @property
    def watched(self) -> bytes:
        """The name of a field that is ignored but for such values as `heeds` says; empty: there is none."""
        ...

    def heeds(self, value: bytes) -> bool:
        """Whether the watched field changes something about a head with this value."""
        ...


class HeaderBlocks(Generic[T]):
    """Decodes the blocks of one connection, in their order, and makes a head of each."""

    def __init__(self, reader: HeadReader[T], limits: Http2Limits) -> None:
        self._reader = reader
        self._max_list_bytes = limits.max_header_list_bytes
        self._max_count = limits.max_header_count
        self._decoder = HpackDecoder(2 * limits.max_header_list_bytes, limits.max_header_count)
        self._by_fields: dict[tuple[HeaderField, ...], T] = {}
        self._by_rest: dict[bytes, tuple[T, int]] = {}
        """By what is left of a block without the ignored fields: the head, and how much may be cut out."""
        self._ignored: dict[bytes, bool] = {}
        self._ignored_strings: dict[bytes, int] = {}
        """The same by names as they travel; `_WATCHED` for the one whose value may count."""
        self.known: dict[bytes, T] = {}
        """Heads by block, right for the table as it is; look here first."""

    def decode(self, block: bytes) -> T:
        """Return the head of a block that is not known.

        Raises:
            Http2Error: the block cannot be decoded, or is too large by far; the connection cannot go on.
        """
        if len(block) > _MAX_KEPT_BLOCK_BYTES:
            return self._read(self.skip(block))
        rest, cut_bytes = self._cut(block)
        if not cut_bytes:
            head = self._recognise(self.skip(block))
            if not self._decoder.changed:
                _keep(self.known, block, head)
            return head
        found = self._by_rest.get(rest)
        if found is not None and cut_bytes <= found[1]:
            return found[0]
        headers = self.skip(block)
        head = self._recognise(headers)
        spare_bytes = self._max_list_bytes - _list_bytes(headers)
        spare_count = (self._max_count - len(headers)) * FIELD_OVERHEAD_BYTES
        # What is cut off later must fit in as well.
        if spare_bytes >= 0:
            _keep(self._by_rest, rest, (head, min(spare_bytes, spare_count)))
        return head

    def forget(self) -> None:
        """Make a new head of every list of fields that comes."""
        self.known.clear()
        self._by_rest.clear()
        self._by_fields.clear()

    def skip(self, block: bytes) -> HeaderList:
        """Take a block for what it does to the table; raises as `decode`."""
        headers = self._decoder.decode(block)
        if self._decoder.changed:
            self.known.clear()
            self._by_rest.clear()
        return headers

    def _recognise(self, headers: HeaderList) -> T:
        """Return the head of a list of fields, one made earlier if all that matters is the same."""
        relevant = tuple([field for field in headers if not self._is_ignored(field)])
        head = self._by_fields.get(relevant)
        if head is not None and _list_bytes(headers) <= self._max_list_bytes and _in_order(headers, relevant):
            return head
        head = self._read(headers)
        if _list_bytes(headers) <= self._max_list_bytes and _in_order(headers, relevant):
            _keep(self._by_fields, relevant, head)
        return head

    def _read(self, headers: HeaderList) -> T:
        return self._reader.read_head(headers, _list_bytes(headers) > self._max_list_bytes)

    def _is_ignored(self, field: HeaderField) -> bool:
        name, value = field
        ignored = self._ignored.get(name)
        if ignored is None:
            if len(self._ignored) >= _MAX_NAMES:
                self._ignored.clear()
            ignored = self._ignored[name] = self._reader.ignores(name)
        if name == self._reader.watched and self._reader.heeds(value):
            return False
        return ignored and not _BAD_VALUE.search(value)

    def _cut(self, block: bytes) -> tuple[bytes, int]:
        """Return a block without the ignored literals at its end, and an upper bound of what those count in a list.

        A block that has none, or that only the decoder can judge, comes back whole.
        """
        at, end, first_cut, cut_bytes = 0, len(block), 0, 0
        strings = self._ignored_strings
        while at < end:
            first = block[at]
            if first & 0x80:
                run = _INDEXED.match(block, at)
                if run is None or first_cut:
                    return block, 0
                at = run.end()
                continue
            # A literal that changes no table, with a name of its own; longer ones than one byte can tell are rare.
            if first & 0xEF or at + 2 > end or block[at + 1] & 0x7F == 0x7F:
                return block, 0
            value_at = at + 2 + (block[at + 1] & 0x7F)
            if value_at >= end:
                return block, 0
            name = block[at + 1 : value_at]
            size = block[value_at]
            stop = value_at + 1 + (size & 0x7F)
            if stop > end or size & 0x7F == 0x7F:
                return block, 0
            ignored = strings.get(name)
            if ignored is None:
                ignored = self._learn(name)
            if ignored:
                value = block[value_at + 1 : stop]
                if size & 0x80:
                    try:
                        check_value(value)
                    except ValueError:
                        return block, 0
                elif _BAD_VALUE.search(value):
                    return block, 0
                if ignored == _WATCHED and self._reader.heeds(decode_huffman(value) if size & 0x80 else value):
                    return block, 0
                first_cut = first_cut or at
                cut_bytes += _MAX_EXPANSION * (stop - at) + FIELD_OVERHEAD_BYTES
            elif first_cut:
                return block, 0
            at = stop
        return (block[:first_cut], cut_bytes) if first_cut else (block, 0)

    def _learn(self, name: bytes) -> int:
        """Find out whether a name, as it travels, is one to ignore, if only for some values."""
        try:
            text = decode_huffman(name[1:]) if name[0] & 0x80 else name[1:]
        except ValueError:
            return False
        if len(self._ignored_strings) >= _MAX_NAMES:
            self._ignored_strings.clear()
        ignored = int(self._reader.ignores(text))
        if ignored and text == self._reader.watched:
            ignored = _WATCHED
        self._ignored_strings[name] = ignored
        return ignored


def _in_order(headers: HeaderList, relevant: tuple[HeaderField, ...]) -> bool:
    """Whether no pseudo-header follows an ignored field (RFC 9113 §8.3)."""
    count = 0
    for name, _ in relevant:
        if name[:1] != b":":
            break
        count += 1
    return tuple(headers[:count]) == relevant[:count]


def _list_bytes(headers: HeaderList) -> int:
    return sum([len(name) + len(value) for name, value in headers]) + FIELD_OVERHEAD_BYTES * len(headers)


_K = TypeVar("_K")
_V = TypeVar("_V")


def _keep(entries: dict[_K, _V], key: _K, value: _V) -> None:
    if len(entries) >= _MAX_KEPT:
        entries.clear()
    entries[key] = value
