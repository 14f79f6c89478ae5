"""Tensors as the folders describe them: `[datatype, shape, elements]`."""

from typing import Any

import numpy as np
from tritonclient.utils import serialize_byte_tensor, triton_to_np_dtype

Described = list[Any]


def to_array(described: Described) -> np.ndarray[Any, Any]:
    """Return the array; one element stands for all."""
    datatype, shape, elements = described
    dtype = np.dtype(triton_to_np_dtype(datatype))
    if datatype == "BYTES":
        flat = _flatten(elements)
        array = np.empty(len(flat), np.object_)
        array[:] = [each.encode() if isinstance(each, str) else each for each in flat]
    else:
        array = np.array(elements, dtype).ravel()
    if array.size == 1 and int(np.prod(shape)) > 1:
        array = np.repeat(array, int(np.prod(shape)))
    return array.reshape(shape)


def to_bytes(array: np.ndarray[Any, Any]) -> bytes:
    """Return the elements as files hold them."""
    if array.dtype == np.object_:
        return bytes(serialize_byte_tensor(array).item()) if array.size else b""
    return array.tobytes()


def _flatten(elements: Any) -> list[Any]:
    return [leaf for each in elements for leaf in _flatten(each)] if isinstance(elements, list) else [elements]
