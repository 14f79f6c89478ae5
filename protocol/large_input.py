"""A large InferInputTensor, cut where its strings are, so that no parse of it keeps the interpreter for long."""

from collections.abc import Sequence
from typing import Final

from google.protobuf.descriptor import Descriptor
from tritonclient.grpc.service_pb2 import ModelInferRequest

from protocol.protobuf_wire import LENGTH_DELIMITED, field_head, fields, malformed, read_varint

LARGE_BYTES: Final = 1 << 18
"""A part of a message that is smaller is parsed in a few milliseconds, whatever it holds."""

_PARAMETERS, _CONTENTS = 4, 5
_PARAMETER_KIND: Final = ModelInferRequest.InferInputTensor.DESCRIPTOR.fields_by_number[_PARAMETERS].message_type
_CONTENTS_KIND: Final = ModelInferRequest.InferInputTensor.DESCRIPTOR.fields_by_number[_CONTENTS].message_type
_STRING: Final = 8 << 3 | LENGTH_DELIMITED
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
    kept: list[bytes] = []
    strings: list[bytes] = []
    for number, wire_type, start, value, end in fields(tensor):
        part = tensor[start:end]
        if number == _CONTENTS and wire_type == LENGTH_DELIMITED and (strings or end - value > LARGE_BYTES):
            found, stop = _strings(tensor, value, end)
            others = tensor[stop:end]
            check_fields(memoryview(others), _CONTENTS_KIND)
            first = 0 if strings else 1  # with which the tensor still says what it holds
            strings += found[first:]
            contents = b"".join(found[:first]) + others
            part = field_head(_CONTENTS, len(contents)) + contents
        elif number == _PARAMETERS and wire_type == LENGTH_DELIMITED and end - value > LARGE_BYTES:
            check_fields(memoryview(tensor)[value:end], _PARAMETER_KIND)
        kept.append(part)
    return (b"".join(kept), strings) if strings else (tensor, ())


def _strings(tensor: bytes, at: int, end: int) -> tuple[list[bytes], int]:
    """Return the strings in a row from a position on, many at a time, and where they end."""
    found: list[bytes] = []
    try:
        while at < end and tensor[at] == _STRING:
            start, count = at, 0
            while at < end and tensor[at] == _STRING and count < _CHUNK_COUNT:
                size = tensor[at + 1]
                at += 2
                if size > 127:
                    size, at = read_varint(tensor, at - 1)
                at += size
                count += 1
            found.append(tensor[start:at])
    except IndexError:
        raise malformed() from None
    if at > end:
        raise malformed()
    return found, at
