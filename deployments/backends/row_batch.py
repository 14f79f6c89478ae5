"""Requests to rows of one batch and back, for frameworks that run a batch as one set of tensors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np

from protocol.errors import Internal, ServingError, Unsupported
from protocol.infer import Array, InferRequest, InferResponse
from protocol.normalise import client_shape, request_prefix
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
    arrays = arrays_of(requests, name)
    if len(arrays) > 1:
        try:
            return np.concatenate(arrays, out=out)
        except ValueError:
            raise _differ(name) from None
    if out is None:
        return arrays[0]
    np.copyto(out, arrays[0])
    return out


def arrays_of(requests: Sequence[InferRequest], name: str) -> list[Array]:
    """Return each request's array of an input. Raises Internal where one has none."""
    try:
        return [request.inputs[name] for request in requests]
    except KeyError:
        raise _differ(name) from None


def joined_shape(arrays: Sequence[Array]) -> tuple[int, ...]:
    """Return the shape of arrays one after the other; of one, which may have no rows, its own."""
    shape = arrays[0].shape
    return (sum(map(len, arrays)), *shape[1:]) if len(arrays) > 1 else shape


def _differ(name: str) -> Internal:
    return Internal(f"requests with different shapes of input '{name}' cannot run as one batch")


def row_faults(outputs: Iterable[tuple[str, Array]], requests: Sequence[InferRequest]) -> dict[int, ServingError]:
    """Return the errors, by place, of the requests of a batch that want an output, [rows, ...], without their rows.

    Raises:
        Internal: an output that one wants has more rows than the batch, or none at all.
    """
    faults: dict[int, ServingError] = {}
    row_count = sum(request.rows for request in requests)
    for name, array in outputs:
        found = array.shape[0] if array.ndim else -1
        if found == row_count:
            continue
        wanting = {place for place, each in enumerate(requests) if each.outputs is None or name in each.outputs}
        if not wanting:
            continue
        failed = f"failed to split the output tensor '{name}' in responses: expected batch size of"
        if not 0 <= found < row_count:
            raise Internal(f"{failed} {row_count} in model output, got shape {list(array.shape)}")
        for place, end in enumerate(accumulate(request.rows for request in requests)):
            if end > found and place in wanting - faults.keys():
                prefix = request_prefix(requests[place].id)
                faults[place] = Unsupported(f"{prefix}{failed} atleast {end} in model output, got {found}")
    return faults


def share_out(
    requests: Sequence[InferRequest], outputs: Mapping[str, Array], signature: Signature
) -> list[InferResponse | ServingError]:
    """Return each request's rows of the outputs it asked for, in the shape that the client sees, or `row_faults`.

    Raises:
        Internal: an output has more rows than the batch, or a shape that does not fit the configuration.
    """
    faults = row_faults(outputs.items(), requests) if signature.max_batch_size > 0 else {}
    shaped: dict[str, Array] = {}
    for name, array in outputs.items():
        spec = signature.outputs[name]
        shaped[name] = to_client_shape(array, spec, signature) if spec.reshaped else array
    if len(requests) == 1:
        return [faults[0] if faults else InferResponse(_requested(requests[0], shaped))]
    ends = accumulate(request.rows for request in requests)
    return [
        faults.get(place)
        or InferResponse({name: array[end - request.rows : end] for name, array in _requested(request, shaped).items()})
        for place, (request, end) in enumerate(zip(requests, ends, strict=True))
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
