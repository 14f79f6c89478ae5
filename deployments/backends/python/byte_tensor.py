"""String tensors: their elements as `bytes`, and the length-prefixed form in which they travel."""

import struct
from typing import Any

import numpy as np

from deployments.backends.python.errors import TritonModelException
from protocol.infer import Array

_LENGTH = struct.Struct("<I")


def to_bytes_elements(array: Array) -> Array:
    """Return an object array of `bytes` in the same shape; the array itself when it is one already.

    Elements that are no `bytes` become the UTF-8 of their `str`, as in Triton.
    """
    elements = array.ravel().tolist()
    if array.dtype.kind == "O" and all(type(element) is bytes for element in elements):
        return array
    converted = np.empty(len(elements), np.object_)
    converted[:] = [element if type(element) is bytes else str(element).encode() for element in elements]
    return converted.reshape(array.shape)


def host_bytes(array: Array) -> int:
    """Return how much memory an array takes, with the strings that it refers to."""
    if array.dtype.kind != "O":
        return array.nbytes
    return array.nbytes + sum([len(element) for element in array.ravel().tolist()])


def serialize_byte_tensor(input_tensor: Array) -> bytes:
    """Return each element as a little-endian uint32 length and its bytes, in row-major order.

    Raises:
        TritonModelException: the array holds neither objects nor strings.
    """
    if input_tensor.dtype.kind not in "OSU":
        raise TritonModelException("cannot serialize bytes tensor: invalid datatype")
    parts: list[bytes] = []
    for element in to_bytes_elements(input_tensor).ravel().tolist():
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> Array:
    """Return the elements of a serialized tensor as a one-dimensional object array of `bytes`.

    Raises:
        struct.error: The bytes end within an element, or within its length.
    """
    elements: list[Any] = []
    view = memoryview(encoded_tensor).cast("B")
    offset = 0
    while offset < len(view):
        (length,) = _LENGTH.unpack_from(view, offset)
        offset += _LENGTH.size
        if length > len(view) - offset:
            raise struct.error(f"an element of {length} bytes has {len(view) - offset} in the serialized tensor")
        elements.append(bytes(view[offset : offset + length]))
        offset += length
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array
