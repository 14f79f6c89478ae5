"""The protobuf wire format, as far as messages are cut up and put together here without parsing them.

A message is a row of fields, each a varint `number << 3 | wire type` and a value. Fields may come in any order; of
fields that are not repeated the last counts.
"""

from collections.abc import Iterator
from typing import Final

from protocol.errors import InvalidArgument

VARINT: Final = 0
FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2
FIXED32: Final = 5

MAX_FIELDS: Final = 1 << 14
"""Fields of a message that are walked over: a walk through the empty fields of a large message would take seconds."""

_VARINT_BYTES = 10


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


def read_varint(buffer: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the varint at a position, and the position behind it.

    Raises:
        InvalidArgument: it does not end within the buffer, or takes more than 10 bytes.
    """
    value = shift = 0
    for position in range(at, min(at + _VARINT_BYTES, len(buffer))):
        byte = buffer[position]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position + 1
        shift += 7
    raise malformed()


def fields(buffer: bytes | memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield number, wire type, and the positions of start, value and end of every field of a message.

    Raises:
        InvalidArgument: the message is cut short, is none (groups, which no message here has, count as that), or has
            too many fields.
    """
    at, end = 0, len(buffer)
    count = 0
    while at < end:
        start = at
        count += 1
        if count > MAX_FIELDS:
            raise InvalidArgument(f"request has more than {MAX_FIELDS} fields")
        tag, at = read_varint(buffer, at)
        wire_type = tag & 7
        value = at
        if wire_type == LENGTH_DELIMITED:
            size, value = read_varint(buffer, at)
            at = value + size
        elif wire_type == VARINT:
            _, at = read_varint(buffer, at)
        elif wire_type == FIXED64:
            at += 8
        elif wire_type == FIXED32:
            at += 4
        else:
            raise malformed()
        if at > end or tag < 8:
            raise malformed()
        yield tag >> 3, wire_type, start, value, at


def malformed() -> InvalidArgument:
    """Return the error for bytes that are not the message that they should be."""
    return InvalidArgument("failed to parse the request as a ModelInferRequest")
