"""The rules for the inputs and outputs of one configuration, with Triton's texts.

Source: core's ValidateIOShape, ValidateModelInput and ValidateModelOutput; the PyTorch backend's ValidateOutputs.
"""

from collections.abc import Iterator, Sequence
from math import prod

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelOutput

from repository_loader.backend_traits import PYTHON, traits_of
from repository_loader.findings import Fault
from repository_loader.model_files import leaves_folder

_PYTORCH = "pytorch"
_TENSORRT = "tensorrt_plan"


def check_tensors(config: ModelConfig) -> Iterator[Fault]:
    """Yield the faults of every input and output; a Python model may have none, a PyTorch model has an output."""
    backend = traits_of(config).name
    if not config.input and not config.output and backend != PYTHON:
        yield Fault("", f"model configuration must specify 'input' and 'output' for {config.name}")
    elif not config.output and backend == _PYTORCH:
        yield Fault("output", "model configuration must contain at least one output, none were specified.")
    for kind, tensors in (("input", config.input), ("output", config.output)):
        seen: set[str] = set()
        for index, tensor in enumerate(tensors):
            for fault in _check_tensor(config, kind, tensor):
                yield Fault(f"{kind}[{index}]{fault.field}", f"{fault.message} for {config.name}")
            if tensor.name and tensor.name in seen:
                yield Fault(
                    f"{kind}[{index}].name", f"model {kind} '{tensor.name}' is specified twice for {config.name}"
                )
            seen.add(tensor.name)


def dims_agree(first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether a tensor may have both shapes, in each of which -1 is any size."""
    return len(first) == len(second) and all(a == b or -1 in (a, b) for a, b in zip(first, second, strict=True))


def _check_tensor(config: ModelConfig, kind: str, tensor: ModelInput | ModelOutput) -> Iterator[Fault]:
    prefix = f"model {kind} "
    if not tensor.name:
        yield Fault("", f"{prefix}must specify 'name'")
        return
    named = f"{prefix}'{tensor.name}' "
    if tensor.data_type == DataType.TYPE_INVALID:
        yield Fault(".data_type", f"{named}must specify 'data_type'")
    if not tensor.dims:
        yield Fault(".dims", f"{named}must specify 'dims'")
    if any(dim < 1 and dim != -1 for dim in tensor.dims):
        message = f"{named}dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
        yield Fault(".dims", message)
    elif tensor.HasField("reshape"):
        yield from _check_reshape(config, named, tensor.dims, tensor.reshape.shape)
    if kind == "input":
        if tensor.format != ModelInput.FORMAT_NONE and len(tensor.dims) != 3:
            yield Fault(".format", "model input NHWC/NCHW require 3 dims")
    elif leaves_folder(tensor.label_filename):
        yield Fault(".label_filename", f"label file of {named.strip()} leaves the model's folder")
    if tensor.is_shape_tensor and config.platform != _TENSORRT:
        yield Fault(".is_shape_tensor", "shape tensors are only supported for TensorRT platform")
    if tensor.is_non_linear_format_io:
        if config.platform != _TENSORRT:
            yield Fault(".is_non_linear_format_io", "Non-linear IO format is only supported for the TensorRT platform")
        elif len(tensor.dims) != 3:
            yield Fault(".is_non_linear_format_io", "Non-linear IO format I/O requires 3 dims")


def _check_reshape(config: ModelConfig, named: str, dims: Sequence[int], shape: Sequence[int]) -> Iterator[Fault]:
    if not shape:
        if config.max_batch_size == 0:
            message = "cannot have empty reshape for non-batching model as scalar tensors are not supported"
            yield Fault(".reshape", named + message)
        elif -1 in dims or prod(dims) != 1:
            yield Fault(".reshape", f"{named}has different size for dims and reshape")
        return
    if any(dim < 1 and dim != -1 for dim in shape):
        message = "reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension"
        yield Fault(".reshape", named + message)
        return
    from_dims, from_shape = _segments(dims), _segments(shape)
    if (len(from_dims) == 1) != (len(from_shape) == 1):
        yield Fault(".reshape", f"{named}has different size for dims and reshape")
    elif len(from_dims) != len(from_shape):
        yield Fault(".reshape", f"{named}has different number of variable-size dimensions for dims and reshape")
    elif from_dims != from_shape:
        yield Fault(".reshape", f"{named}has different size for dims and reshape")


def _segments(dims: Sequence[int]) -> list[int]:
    """Return the element counts between variable-size dimensions."""
    counts = [1]
    for dim in dims:
        if dim == -1:
            counts.append(1)
        else:
            counts[-1] *= dim
    return counts
