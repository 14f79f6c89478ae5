"""A large InferInputTensor, cut where its strings are, so that no parse of it keeps the interpreter for long."""

from collections.abc import Sequence
from typing import Final

from google.protobuf.descriptor import Descriptor
from tritonclient.grpc.service_pb2 import ModelInferRequest

from protocol.protobuf_wire import (
    LENGTH_DELIMITED,
    MAX_FIELDS,
    field_head,
    fields,
    malformed,
    read_varint,
    too_many_fields,
)

LARGE_BYTES: Final = 1 << 18
"""A part of a message that is smaller is parsed in a few milliseconds, whatever it holds."""

_PARAMETERS, _CONTENTS = 4, 5
_PARAMETER_KIND: Final = ModelInferRequest.InferInputTensor.DESCRIPTOR.fields_by_number[_PARAMETERS].message_type
_STRINGS: Final = 8
_STRING: Final = _STRINGS << 3 | LENGTH_DELIMITED
_CHUNK_COUNT: Final = 1 << 16


def check_fields(part: memoryview, kind: Descriptor) -> None:
    """Raise InvalidArgument if a message, or a large one in it, has more fields than one is walked over.

    Each entry of a map is one.
    """
    for number, wire_type, _, value, end in fields(part):
        if wire_type == LENGTH_DELIMITED and end - value > LARGE_BYTES:
            field = kind.fields_by_number.get(number)
            if field is not None and field.message_type is not None:
                check_fields(part[value:end], field.message_type)


def cut(tensor: bytes) -> tuple[bytes, Sequence[bytes]]:
    """Return the tensor with the first of its strings, and InferTensorContents that hold the others, in order.

    Raises:
        InvalidArgument: the bytes are no message, or have more fields, other than strings in a row, than one is walked
            over.
    """
    kept: list[bytes | memoryview] = []
    strings: list[bytes] = []
    view = memoryview(tensor)
    for number, wire_type, start, value, end in fields(tensor):
        if number == _CONTENTS and wire_type == LENGTH_DELIMITED and (strings or end - value > LARGE_BYTES):
            found, others = _apart(tensor, value, end)
            first = 0 if strings else 1  # with which the tensor still says what it holds
            strings += found[first:]
            contents: list[bytes | memoryview] = [*found[:first], *others]
            kept += [field_head(_CONTENTS, sum(map(len, contents))), *contents]
            continue
        if number == _PARAMETERS and wire_type == LENGTH_DELIMITED and end - value > LARGE_BYTES:
            check_fields(view[value:end], _PARAMETER_KIND)
        kept.append(view[start:end])
    return (b"".join(kept), strings) if strings else (tensor, ())


def _apart(tensor: bytes, at: int, end: int) -> tuple[list[bytes], list[memoryview]]:
    """Return the strings among contents, as many in a row at a time as there are, and the other fields."""
    view = memoryview(tensor)
    strings: list[bytes] = []
    others: list[memoryview] = []
    while at < end:
        if len(strings) + len(others) == MAX_FIELDS:
            raise too_many_fields()
        start = at
        at = _behind_strings(tensor, start, end)
        if at > start:
            strings.append(tensor[start:at])
            continue
        number, wire_type, _, _, size = next(fields(view[start:end]))
        at = start + size
        if number == _STRINGS and wire_type == LENGTH_DELIMITED:  # in more bytes than its number needs
            strings.append(tensor[start:at])
        else:
            others.append(view[start:at])
    return strings, others


def _behind_strings(tensor: bytes, at: int, end: int) -> int:
    """Return where the strings in a row from a position on end, or the first of very many."""
    count = 0
    try:
        while at < end and tensor[at] == _STRING and count < _CHUNK_COUNT:
            size = tensor[at + 1]
            at += 2
            if size > 127:
                size, at = read_varint(tensor, at - 1)
            at += size
            count += 1
    except IndexError:
        raise malformed() from None
    if at > end:
        raise malformed()
    return at
