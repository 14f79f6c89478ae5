"""Tensors that tell a model where each request of a ragged batch begins and ends: `BatchInput` and `BatchOutput`."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from tritonclient.grpc.model_config_pb2 import BatchInput, ModelConfig

from protocol.datatypes import BY_ENUM
from protocol.errors import Internal
from protocol.infer import Array, InferRequest
from protocol.normalise import client_shape
from protocol.signature import Signature

Shape = tuple[int, ...]


class RaggedTensors:
    """What a configuration says of ragged batches.

    `names` are the inputs whose requests are joined flat, `targets` the inputs that are made, in order, and `sources`
    the input of each output that is cut as that was.
    """

    __slots__ = ("_batch_inputs", "_batching", "_outputs", "names", "sources", "targets")

    def __init__(self, config: ModelConfig, signature: Signature) -> None:
        self._batching = signature.max_batch_size > 0
        self._outputs = signature.outputs
        self.names = frozenset(name for name, spec in signature.inputs.items() if spec.ragged and self._batching)
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
        """Cut an output of `sources` into one part for each request, as the client sees it.

        A part has the output's own dims; what is variable there, and the batch, is as large as in the source input.

        Raises:
            Internal: there are too few elements.
        """
        source, spec = self.sources[name], self._outputs[name]
        dims = (-1,) * self._batching + spec.model_dims
        flat, parts, start = array.reshape(-1), [], 0
        for request in requests:
            sizes = request.inputs[source].shape
            try:
                shape = tuple(sizes[place] if dim == -1 else dim for place, dim in enumerate(dims))
                end = start + math.prod(shape)
                part = flat[start:end].reshape(shape)
            except (IndexError, ValueError):
                message = f"output '{name}' has {flat.size} elements, too few to cut it as input '{source}' says"
                raise Internal(message) from None
            parts.append(part.reshape(client_shape(spec, self._batching, shape)))
            start = end
        return parts


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
