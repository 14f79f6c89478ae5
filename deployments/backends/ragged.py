"""Tensors that tell a model where each request of a ragged batch begins and ends: `BatchInput` and `BatchOutput`."""

import math
from collections.abc import Sequence

import numpy as np
from tritonclient.grpc.model_config_pb2 import BatchInput

from protocol.infer import Array

Shape = tuple[int, ...]


def batch_input(kind: int, shapes: Sequence[Shape], dtype: np.dtype[np.generic]) -> Array:
    """Return the values of a batch input; `shapes` are those of its source input in each request, batch included."""
    counts = [math.prod(shape) for shape in shapes]
    match kind:
        case BatchInput.BATCH_ELEMENT_COUNT:
            return np.array(counts, dtype)
        case BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT:
            return np.cumsum(counts).astype(dtype)
        case BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO:
            return np.cumsum([0, *counts]).astype(dtype)
        case BatchInput.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE:
            return np.zeros(max(counts), dtype)
        case BatchInput.BATCH_ITEM_SHAPE:
            return np.array([shape[1:] for shape in shapes for _ in range(shape[0])], dtype)
        case BatchInput.BATCH_ITEM_SHAPE_FLATTEN:
            return np.array([size for shape in shapes for _ in range(shape[0]) for size in shape[1:]], dtype)
    raise ValueError(f"unknown kind of batch input: {kind}")


def scatter(array: Array, shapes: Sequence[Shape]) -> list[Array]:
    """Cut a flat output into one part for each request, shaped as the request's source input."""
    flat = array.reshape(-1)
    parts = []
    start = 0
    for shape in shapes:
        end = start + math.prod(shape)
        parts.append(flat[start:end].reshape(shape))
        start = end
    return parts
