"""Typed contents of an input: the same bytes that it would have had in raw_input_contents."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc.service_pb2 import InferTensorContents

from protocol.bytes_tensor import encode_elements
from protocol.datatypes import BY_NAME
from protocol.errors import InvalidArgument
from protocol.infer import Array
from protocol.limits import Limits
from protocol.protobuf_wire import malformed

_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (  # field, datatypes it may hold, the last is what it is called
    ("bool_contents", ("BOOL",)),
    ("int_contents", ("INT8", "INT16", "INT32")),
    ("int64_contents", ("INT64",)),
    ("uint_contents", ("UINT8", "UINT16", "UINT32")),
    ("uint64_contents", ("UINT64",)),
    ("fp32_contents", ("FP32",)),
    ("fp64_contents", ("FP64",)),
    ("bytes_contents", ("BYTES",)),
)

_CHUNK_COUNT = 1 << 16


def typed_bytes(tensor: Any, strings: Sequence[bytes], model_name: str, limits: Limits) -> bytes:
    """Return the bytes of an InferInputTensor's `contents`; unlike Triton, numbers that do not fit are refused.

    Args:
        tensor: what describes it, and holds its contents.
        strings: InferTensorContents, not parsed yet, with more of them (`large_input.cut`).
        model_name: of the model that is asked.
        limits: how many elements there may be.

    Raises:
        InvalidArgument: with Triton's text; the contents are of another kind than the datatype, or of two kinds.
    """
    found = None
    for field, datatypes in _KINDS:
        if not getattr(tensor.contents, field):
            continue
        _check_kind(tensor, model_name, datatypes, found is not None)
        found = field
    if found is None:
        return b""
    elements = getattr(tensor.contents, found)
    _check_count(len(elements), tensor.name, limits)
    if found == "bytes_contents":
        return _encoded(elements, strings, tensor.name, limits)
    datatype = BY_NAME[tensor.datatype]
    if datatype.name in ("BOOL", "FP32", "FP64"):  # packed on the wire as they are in memory
        tensor.contents.DiscardUnknownFields()
        packed: bytes = tensor.contents.SerializeToString()
        return packed[len(packed) - len(elements) * datatype.byte_size :]
    return _integers(elements, datatype.name, tensor.name).tobytes()


def _check_count(count: int, name: str, limits: Limits) -> None:
    if count > limits.json_max_elements:
        raise InvalidArgument(f"contents of input '{name}' have more than {limits.json_max_elements} elements")


def _encoded(elements: Sequence[bytes], strings: Sequence[bytes], name: str, limits: Limits) -> bytes:
    encoded, count = [encode_elements(elements)], len(elements)
    for part in strings:
        more = _parsed(part)
        count += len(more)
        _check_count(count, name, limits)
        encoded.append(encode_elements(more))
    return b"".join(encoded) if strings else encoded[0]


def _parsed(strings: bytes) -> Sequence[bytes]:
    try:
        parsed: Sequence[bytes] = InferTensorContents.FromString(strings).bytes_contents
    except DecodeError:
        raise malformed() from None
    return parsed


def _check_kind(tensor: Any, model_name: str, datatypes: tuple[str, ...], second: bool) -> None:
    problem = f"unexpected explicit tensor data for input tensor '{tensor.name}' for model '{model_name}'"
    if second:
        raise InvalidArgument(f"{problem}, binary data was already supplied.")
    if tensor.datatype not in datatypes:
        raise InvalidArgument(f"{problem} of type '{datatypes[-1]}', expected datatype '{tensor.datatype}'")


def _integers(elements: Any, datatype: str, name: str) -> Array:
    target = BY_NAME[datatype].numpy
    if target.itemsize >= 4:
        return _array(elements, target)
    wide = _array(elements, np.dtype(np.int64))
    narrow = wide.astype(target)
    if not np.array_equal(wide, narrow):
        raise InvalidArgument(f"Unable to parse 'contents': value out of range of {datatype} for input '{name}'")
    return narrow


def _array(elements: Any, dtype: np.dtype[np.generic]) -> Array:
    """Return numbers as an array; a thread that does this gives the interpreter away between the chunks."""
    array = np.empty(len(elements), dtype)
    for at in range(0, len(elements), _CHUNK_COUNT):
        array[at : at + _CHUNK_COUNT] = elements[at : at + _CHUNK_COUNT]
    return array
