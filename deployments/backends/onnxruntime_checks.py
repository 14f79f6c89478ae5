"""Whether an ONNX graph is what its model configuration says, with Triton's words where it is not."""

from collections.abc import Mapping, Sequence
from typing import Any

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelOutput

from deployments.backends.backend import ModelLoadError

_CONFIG_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
    "tensor(bfloat16)": "TYPE_BF16",
}


def check_graph(config: ModelConfig, session: Any) -> None:
    """Compare counts, names, datatypes and shapes of a session with the configuration.

    Raises:
        ModelLoadError: at the first difference.
    """
    inputs = {node.name: node for node in session.get_inputs()}
    optional = {node.name: node for node in session.get_overridable_initializers()}
    outputs = {node.name: node for node in session.get_outputs()}
    extra = _extra_inputs(config)
    expected = sum(not tensor.optional for tensor in config.input) + len(extra)
    if expected != len(inputs):
        raise ModelLoadError(
            f"unable to load model '{config.name}', configuration expects {expected} inputs, "
            f"model provides {len(inputs)}"
        )
    _check_names("input", [*(tensor.name for tensor in config.input), *extra], inputs | optional)
    _check_names("output", [tensor.name for tensor in config.output], outputs)
    for tensor in config.input:
        if tensor.optional and config.max_batch_size:
            raise ModelLoadError(
                f"unable to load model '{config.name}', optional input '{tensor.name}' is not supported for models "
                "that support batching"
            )
        _check_tensor(config, "input", tensor, (inputs | optional)[tensor.name])
    for tensor in config.output:
        _check_tensor(config, "output", tensor, outputs[tensor.name])


def _extra_inputs(config: ModelConfig) -> list[str]:
    """Return the inputs that the server makes: of ragged batches, sequence controls and implicit states."""
    sequence = config.sequence_batching
    return [
        *(name for batch_input in config.batch_input for name in batch_input.target_name),
        *(control.name for control in sequence.control_input),
        *(state.input_name for state in sequence.state),
    ]


def _check_names(kind: str, names: Sequence[str], allowed: Mapping[str, Any]) -> None:
    for name in names:
        if name not in allowed:
            raise ModelLoadError(
                f"unexpected inference {kind} '{name}', allowed {kind}s are: {', '.join(sorted(allowed))}"
            )


def _check_tensor(config: ModelConfig, kind: str, tensor: ModelInput | ModelOutput, node: Any) -> None:
    provided = _CONFIG_TYPES.get(node.type)
    if provided is None:
        raise ModelLoadError(
            f"unable to load model '{config.name}', unsupported datatype '{node.type}' for {kind} '{tensor.name}'"
        )
    configured = DataType.Name(tensor.data_type)
    if configured != provided:
        raise ModelLoadError(
            f"unable to load model '{config.name}', configuration expects datatype {configured} for {kind} "
            f"'{tensor.name}', model provides {provided}"
        )
    shape = [dim if isinstance(dim, int) else -1 for dim in node.shape]
    dims = list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
    if kind == "input" and tensor.allow_ragged_batch and config.max_batch_size:
        _check_ragged(config, tensor.name, shape)
    elif not _scattered(config, tensor.name):
        _check_shape(config, tensor.name, shape, dims)


def _check_ragged(config: ModelConfig, name: str, shape: list[int]) -> None:
    if shape != [-1]:
        raise ModelLoadError(
            f"unable to load model '{config.name}', the model expects a ragged input '{name}' to have shape [-1], "
            f"but it has shape {_show(shape)}"
        )


def _scattered(config: ModelConfig, name: str) -> bool:
    return any(name in output.target_name for output in config.batch_output)


def _check_shape(config: ModelConfig, name: str, shape: list[int], dims: list[int]) -> None:
    where = f"model '{config.name}', tensor '{name}': "
    if not config.max_batch_size:
        if not _agree(shape, dims) and (shape or dims != [1]):  # a graph's scalar is configured as [1]
            raise ModelLoadError(
                f"{where}the model expects {len(shape)} dimensions (shape {_show(shape)}) but the model configuration "
                f"specifies {len(dims)} dimensions (shape {_show(dims)})"
            )
        return
    if not shape or shape[0] != -1:
        raise ModelLoadError(
            f"{where}for the model to support batching the shape should have at least 1 dimension and the first "
            f"dimension must be -1; but shape expected by the model is {_show(shape)}"
        )
    complete = [-1, *dims]
    if not _agree(shape, complete):
        raise ModelLoadError(
            f"{where}the model expects {len(shape)} dimensions (shape {_show(shape)}) but the model configuration "
            f"specifies {len(complete)} dimensions (an initial batch dimension because max_batch_size > 0 followed by "
            f"the explicit tensor shape, making complete shape {_show(complete)})"
        )


def _agree(shape: list[int], dims: list[int]) -> bool:
    return len(shape) == len(dims) and all(a == b or -1 in (a, b) for a, b in zip(shape, dims, strict=True))


def _show(dims: list[int]) -> str:
    return f"[{','.join(map(str, dims))}]"
