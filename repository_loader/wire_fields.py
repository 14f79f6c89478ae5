"""The fields of a serialised protobuf message, read in place.

Works on any buffer of any size: length-delimited fields are skipped, not read, so that a model of many gigabytes behind
`mmap` costs only the pages that hold its structure.
Source: the encoding page on protobuf.dev.
"""

from collections.abc import Iterator
from typing import Protocol

VARINT = 0
LENGTH = 2
_FIXED = {1: 8, 5: 4}


class TruncatedMessage(Exception):
    """The bytes are not a message: cut off, or not protobuf."""


class Buffer(Protocol):
    """What `bytes` and `mmap` have in common."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> int: ...


def walk(buffer: Buffer, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield `(field number, wire type, value, field end)` for each field between two offsets.

    `value` is the number of a varint, else the offset where the field's bytes start.

    Raises:
        TruncatedMessage: a field leaves the range, or has an illegal tag.
    """
    offset = start
    while offset < end:
        tag, offset = _varint(buffer, offset, end)
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise TruncatedMessage(f"illegal field number at byte {offset}")
        if wire_type == VARINT:
            value, offset = _varint(buffer, offset, end)
            yield number, VARINT, value, offset
            continue
        if wire_type == LENGTH:
            size, offset = _varint(buffer, offset, end)
        elif wire_type in _FIXED:
            size = _FIXED[wire_type]
        else:
            raise TruncatedMessage(f"illegal wire type {wire_type} at byte {offset}")
        if size > end - offset:
            raise TruncatedMessage(f"a field of {size} bytes at byte {offset} goes past byte {end}")
        yield number, wire_type, offset, offset + size
        offset += size


def _varint(buffer: Buffer, offset: int, end: int) -> tuple[int, int]:
    result = 0
    for shift in range(0, 70, 7):
        if offset >= end:
            raise TruncatedMessage(f"the data ends inside a number at byte {offset}")
        byte = buffer[offset]
        offset += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, offset
    raise TruncatedMessage(f"a number at byte {offset} has more than 10 bytes")


def signed(value: int) -> int:
    """Return a varint as the int64 it stands for."""
    return value - (1 << 64) if value >= 1 << 63 else value
