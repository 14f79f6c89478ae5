"""The checks of a request against a model's signature that come before any scheduler, in Triton's order and words."""

import math
from collections.abc import Collection, Sequence

from protocol.errors import InvalidArgument
from protocol.limits import Limits
from protocol.signature import Signature, TensorSpec

Shape = tuple[int, ...]

_BATCHING_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try "
    "setting max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def request_prefix(request_id: str) -> str:
    """Return what stands before the messages of the core, so that a client can tell its requests apart."""
    return f"[request id: {request_id or '<id_unknown>'}] "


def dims_text(dims: Sequence[int]) -> str:
    """Return dims as Triton prints them: `[-1,16]`."""
    return f"[{','.join(map(str, dims))}]"


def check_outputs(signature: Signature, requested: Collection[str]) -> None:
    """Raise `InvalidArgument` if an output is requested that the model has not."""
    unknown = set(requested) - signature.outputs.keys()
    if unknown:
        raise InvalidArgument(f"unexpected inference output '{min(unknown)}' for model '{signature.model_name}'")


def check_bounds(name: str, shape: Sequence[int], limits: Limits) -> None:
    """Raise `InvalidArgument` if a shape, possibly negative, is beyond the limits, before anything is allocated.

    A 0 does not make up for the other dimensions: NumPy multiplies them, and refuses a shape where that overflows.
    """
    if len(shape) > limits.max_tensor_rank:
        raise InvalidArgument(f"input '{name}' has {len(shape)} dimensions, more than {limits.max_tensor_rank}")
    for dim in shape:
        if dim > limits.max_dim:
            raise InvalidArgument(f"input '{name}' has a dimension of {dim}, more than {limits.max_dim}")
    if (count := math.prod([dim for dim in shape if dim])) > limits.max_element_count:
        besides = " beside its dimension of 0" if 0 in shape else ""
        raise InvalidArgument(f"input '{name}' has {count} elements{besides}, more than {limits.max_element_count}")


def normalise(
    signature: Signature, inputs: Sequence[tuple[str, str, Shape]], request_id: str = ""
) -> tuple[int, list[Shape]]:
    """Check names, batch size, datatypes and shapes, and return the rows and each input's shape as the model sees it.

    Of several wrong inputs the last is named, as Triton does for most names.

    Args:
        signature: the model's.
        inputs: name, datatype and shape of each, names distinct, in the order sent.
        request_id: for the messages.

    Raises:
        InvalidArgument: with Triton's text.
    """
    prefix = request_prefix(request_id)
    _check_names(signature, [name for name, _, _ in inputs], prefix)
    rows = _batch_size(signature, inputs, prefix) if signature.max_batch_size > 0 else 1
    shapes = [check_tensor(signature, name, datatype, shape, prefix) for name, datatype, shape in reversed(inputs)]
    shapes.reverse()
    return rows, shapes


def check_byte_size(signature: Signature, spec: TensorSpec, shape: Shape, byte_size: int, request_id: str = "") -> None:
    """Raise `InvalidArgument` if a tensor of fixed-size elements does not come with exactly its bytes."""
    expected = math.prod(shape) * spec.datatype.byte_size
    if byte_size != expected:
        raise InvalidArgument(
            f"{request_prefix(request_id)}input byte size mismatch for input '{spec.name}' for model "
            f"'{signature.model_name}'. Expected {expected}, got {byte_size}"
        )


def model_shape(spec: TensorSpec, batched: bool, shape: Shape) -> Shape:
    """Return the shape that the model sees for one that the client sent and that fits the spec."""
    return _substitute(spec.dims, spec.model_dims, batched, shape) if spec.reshaped else shape


def client_shape(spec: TensorSpec, batched: bool, shape: Shape) -> Shape:
    """Return the shape that a client would send for one that the model sees: `model_shape` undone."""
    return _substitute(spec.model_dims, spec.dims, batched, shape) if spec.reshaped else shape


def effective_priority(signature: Signature, priority: int) -> int:
    """Return the priority level to queue with; 0 and levels that the model has not become its default."""
    return priority if 0 < priority <= signature.priority_levels else signature.default_priority_level


def _check_names(signature: Signature, names: list[str], prefix: str) -> None:
    configured = signature.inputs
    if names == list(configured):
        return
    required = [name for name, spec in configured.items() if not spec.optional]
    sent = set(names)
    missing = [name for name in required if name not in sent]
    if not len(required) <= len(names) <= len(configured) or (missing and sent <= configured.keys()):
        expected = (
            f"expected {len(configured)} inputs"
            if len(required) == len(configured)
            else f"expected number of inputs between {len(required)} and {len(configured)}"
        )
        raise InvalidArgument(
            f"{prefix}{expected} but got {len(names)} inputs for model '{signature.model_name}'. Got input(s) "
            f"{_quoted(names)}, but missing required input(s) {_quoted(missing) if missing else ']'}. "
            "Please provide all required input(s)."
        )
    for name in reversed(names):
        if name not in configured:
            raise InvalidArgument(f"unexpected inference input '{name}' for model '{signature.model_name}'")


def _quoted(names: list[str]) -> str:
    return "[" + ",".join([f"'{name}'" for name in names]) + "]"


def _batch_size(signature: Signature, inputs: Sequence[tuple[str, str, Shape]], prefix: str) -> int:
    rows = -1
    for name, _, shape in reversed(inputs):
        if not shape:
            raise InvalidArgument(
                f"{prefix}input '{name}' has no shape but model requires batch dimension for '{signature.model_name}'"
            )
        if rows not in (-1, shape[0]):
            raise InvalidArgument(
                f"{prefix}input '{name}' batch size does not match other inputs for '{signature.model_name}'"
            )
        rows = shape[0]
    if rows > signature.max_batch_size:
        raise InvalidArgument(
            f"{prefix}inference request batch-size must be <= {signature.max_batch_size} for '{signature.model_name}'"
        )
    return 1 if not inputs else rows


def check_tensor(signature: Signature, name: str, datatype: str, shape: Shape, prefix: str) -> Shape:
    """Return the shape that the model sees for an input; raise `InvalidArgument` unless the model takes the input."""
    spec = signature.inputs[name]
    model = signature.model_name
    if datatype != spec.datatype.name:
        raise InvalidArgument(
            f"{prefix}inference input '{name}' data-type is '{datatype}', but model '{model}' expects "
            f"'{spec.datatype.name}'"
        )
    batched = signature.max_batch_size > 0
    expected = (-1, *spec.dims) if batched else spec.dims
    if min(shape, default=0) < 0:
        raise InvalidArgument(
            f"{prefix}All input dimensions should be specified for input '{name}' for model '{model}', "
            f"got {dims_text(shape)}"
        )
    if not _fits(shape, expected):
        raise InvalidArgument(
            f"{prefix}unexpected shape for input '{name}' for model '{model}'. Expected {dims_text(expected)}, "
            f"got {dims_text(shape)}. {_BATCHING_NOTE if batched else ''}"
        )
    return model_shape(spec, batched, shape)


def _fits(shape: Shape, expected: Shape) -> bool:
    return len(shape) == len(expected) and all([want in (-1, dim) for want, dim in zip(expected, shape, strict=True)])


def _substitute(before: Shape, after: Shape, batched: bool, shape: Shape) -> Shape:
    """Fill the variable dimensions of `after`, in order, with those that `shape` has for `before`."""
    batch, own = (shape[:1], shape[1:]) if batched else ((), shape)
    variable = iter([dim for want, dim in zip(before, own, strict=True) if want == -1])
    return (*batch, *[next(variable) if want == -1 else want for want in after])
