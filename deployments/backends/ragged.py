"""Tensors that tell a model where each request of a ragged batch begins and ends: `BatchInput` and `BatchOutput`."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from tritonclient.grpc.model_config_pb2 import BatchInput, ModelConfig

from protocol.datatypes import BY_ENUM
from protocol.infer import Array, InferRequest
from protocol.signature import Signature

Shape = tuple[int, ...]


class RaggedTensors:
    """What a configuration says of ragged batches.

    `names` are the inputs whose requests are joined flat, `targets` the inputs that are made, in order, and `sources`
    the input of each output that is cut as that was.
    """

    __slots__ = ("_batch_inputs", "names", "sources", "targets")

    def __init__(self, config: ModelConfig, signature: Signature) -> None:
        batching = signature.max_batch_size > 0
        self.names = frozenset(name for name, spec in signature.inputs.items() if spec.ragged and batching)
        self.sources = {name: entry.source_input[0] for entry in config.batch_output for name in entry.target_name}
        self._batch_inputs = [
            (name, entry.kind, entry.source_input[0], BY_ENUM[entry.data_type].numpy)
            for entry in config.batch_input
            for name in entry.target_name
        ]
        self.targets = tuple(name for name, *_ in self._batch_inputs)

    def batch_inputs(self, requests: Sequence[InferRequest]) -> Iterator[tuple[str, Array]]:
        """Yield the inputs that are made, by name."""
        for name, kind, source, dtype in self._batch_inputs:
            yield name, batch_input(kind, [request.inputs[source].shape for request in requests], dtype)

    def scatter(self, name: str, array: Array, requests: Sequence[InferRequest]) -> list[Array]:
        """Cut an output of `sources` into one part for each request."""
        source = self.sources[name]
        return scatter(array, [request.inputs[source].shape for request in requests])


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
