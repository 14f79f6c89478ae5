"""The protobuf wire format, as far as messages are cut up and put together here without parsing them.

A message is a row of fields, each a varint `number << 3 | wire type` and a value. Fields may come in any order; of
fields that are not repeated the last counts. Source: the encoding page on protobuf.dev.
"""

from collections.abc import Iterator
from typing import Final, Protocol

from protocol.errors import InvalidArgument

VARINT: Final = 0
FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2
FIXED32: Final = 5

MAX_FIELDS: Final = 4096
"""Fields of a message that are walked over: a walk through the empty fields of a large message would take seconds."""

_VARINT_BYTES = 10
_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}


class TruncatedMessage(ValueError):
    """The bytes are not a message: cut off, or not protobuf."""


class Readable(Protocol):
    """What `bytes`, `memoryview` and `mmap` have in common."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> int: ...


def varint(value: int) -> bytes:
    """Return a number, not negative, as a varint: 7 bits per byte, lowest first."""
    if value < 128:
        return _SMALL[value]
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_SMALL = tuple([bytes([value]) for value in range(128)])


def field_head(number: int, size: int) -> bytes:
    """Return what stands before the `size` bytes of a length-delimited field."""
    return varint(number << 3 | LENGTH_DELIMITED) + varint(size)


def walk(buffer: Readable, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield number, wire type, start, value and end of each field between two positions.

    The value is the number of a varint, else the position of the field's bytes, which are not read: a model of many
    gigabytes behind `mmap` costs only the pages that hold its structure.

    Raises:
        TruncatedMessage: a field leaves the range, or has an illegal tag (groups, which no message here has, count as
            that).
    """
    while at < end:
        start = at
        tag, at = _varint(buffer, at, end)
        number, wire_type = tag >> 3, tag & 7
        if not number:
            raise TruncatedMessage(f"illegal field number at byte {at}")
        if wire_type == LENGTH_DELIMITED:
            size, at = _varint(buffer, at, end)
            value = at
            at += size
        elif wire_type == VARINT:
            value, at = _varint(buffer, at, end)
        elif wire_type in _FIXED_BYTES:
            value = at
            at += _FIXED_BYTES[wire_type]
        else:
            raise TruncatedMessage(f"illegal wire type {wire_type} at byte {at}")
        if at > end:
            raise TruncatedMessage(f"a field that starts at byte {start} goes past byte {end}")
        yield number, wire_type, start, value, at


def _varint(buffer: Readable, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(at, min(at + _VARINT_BYTES, end)):
        byte = buffer[position]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position + 1
        shift += 7
    raise TruncatedMessage(f"the data ends inside a number at byte {at}, or it has more than {_VARINT_BYTES} bytes")


def signed(value: int) -> int:
    """Return a varint as the int64 it stands for."""
    return value - (1 << 64) if value >= 1 << 63 else value


def read_varint(buffer: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the varint at a position of a request, and the position behind it.

    Raises:
        InvalidArgument: it does not end within the buffer, or takes more than 10 bytes.
    """
    try:
        return _varint(buffer, at, len(buffer))
    except TruncatedMessage:
        raise malformed() from None


def fields(buffer: bytes | memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield what `walk` does, for every field of a request.

    Raises:
        InvalidArgument: the message is cut short, is none, or has too many fields.
    """
    try:
        for count, field in enumerate(walk(buffer, 0, len(buffer))):
            if count == MAX_FIELDS:
                raise too_many_fields()
            yield field
    except TruncatedMessage:
        raise malformed() from None


def too_many_fields() -> InvalidArgument:
    """Return the error for a request of which more would have to be walked over."""
    return InvalidArgument(f"request has more than {MAX_FIELDS} fields")


def malformed() -> InvalidArgument:
    """Return the error for bytes that are not the message that they should be."""
    return InvalidArgument("failed to parse the request as a ModelInferRequest")
