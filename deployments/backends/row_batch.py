"""Requests to rows of one batch and back, for frameworks that run a batch as one set of tensors."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np

from protocol.errors import Internal
from protocol.infer import Array, InferRequest, InferResponse
from protocol.normalise import client_shape
from protocol.signature import Signature, TensorSpec


def runs(requests: Sequence[InferRequest], signature: Signature) -> Iterator[Sequence[InferRequest]]:
    """Yield the requests that run together: all of them if the model batches, otherwise one by one."""
    if signature.max_batch_size > 0 or len(requests) == 1:
        yield requests
    else:
        for request in requests:
            yield (request,)


def concatenate(requests: Sequence[InferRequest], name: str, out: Array | None = None) -> Array:
    """Return the rows of an input of all requests, the only request's array itself when `out` is not given.

    Raises:
        Internal: the rows have different shapes.
    """
    if len(requests) == 1 and out is None:
        return requests[0].inputs[name]
    try:
        return np.concatenate([request.inputs[name] for request in requests], out=out)
    except (ValueError, KeyError):
        raise Internal(f"requests with different shapes of input '{name}' cannot run as one batch") from None


def share_out(
    requests: Sequence[InferRequest], outputs: Mapping[str, Array], signature: Signature
) -> list[InferResponse]:
    """Return each request's rows of the outputs it asked for, in the shape that the client sees.

    Raises:
        Internal: the first dimension of an output is not the number of rows.
    """
    batched = signature.max_batch_size > 0
    shaped: dict[str, Array] = {}
    row_count = sum(request.rows for request in requests)
    for name, array in outputs.items():
        spec = signature.outputs[name]
        if batched and (not array.ndim or array.shape[0] != row_count):
            raise Internal(
                f"model '{signature.model_name}' returned output '{name}' with shape {list(array.shape)} for a batch "
                f"of {row_count}"
            )
        shaped[name] = to_client_shape(array, spec, signature) if spec.reshaped else array
    if len(requests) == 1:
        return [InferResponse(_requested(requests[0], shaped))]
    ends = accumulate(request.rows for request in requests)
    return [
        InferResponse({name: array[end - request.rows : end] for name, array in _requested(request, shaped).items()})
        for request, end in zip(requests, ends, strict=True)
    ]


def to_client_shape(array: Array, spec: TensorSpec, signature: Signature) -> Array:
    """Return an output as the client sees it: the configured `reshape` undone.

    Raises:
        Internal: the model's shape does not fit the configuration.
    """
    try:
        return array.reshape(client_shape(spec, signature.max_batch_size > 0, array.shape))
    except (ValueError, StopIteration):
        raise Internal(
            f"model '{signature.model_name}' returned output '{spec.name}' with shape {list(array.shape)}, which "
            f"cannot be reshaped to {list(spec.dims)}"
        ) from None


def _requested(request: InferRequest, outputs: dict[str, Array]) -> dict[str, Array]:
    requested = request.outputs
    return outputs if requested is None else {name: outputs[name] for name in outputs if name in requested}
