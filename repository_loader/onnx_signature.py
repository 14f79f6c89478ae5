"""Whether an ONNX graph is what its model configuration says, with Triton's words where it is not.

The graph is what the file says, or what a session of ONNX Runtime does, which has also worked out shapes that the file
leaves open.
"""

from collections.abc import Iterator, Mapping, Sequence

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelOutput

from protocol.normalise import dims_text
from protocol.signature import Signature
from repository_loader.findings import Fault
from repository_loader.onnx_graph import GraphTensor, OnnxGraph
from repository_loader.tensor_validation import dims_agree

_ONNX_NAMES = {"FP16": "FLOAT16", "FP32": "FLOAT", "FP64": "DOUBLE", "BF16": "BFLOAT16"}


def check_signature(config: ModelConfig, graph: OnnxGraph) -> Iterator[Fault]:
    """Compare counts, names, datatypes and shapes, of what the server makes too; yields the differences."""
    allowed = {tensor.name: tensor for tensor in (*graph.inputs, *graph.optional_inputs)}
    outputs = {tensor.name: tensor for tensor in graph.outputs}
    extra = _extra_inputs(config)
    expected = sum(not tensor.optional for tensor in config.input) + len(extra)
    if expected != len(graph.inputs):
        yield Fault(
            "input",
            f"unable to load model '{config.name}', configuration expects {expected} inputs, "
            f"model provides {len(graph.inputs)}",
        )
        return
    for name in extra:
        if name not in allowed:
            yield _missing(config, name, sorted(allowed))
            return
    backend = Signature.for_backend(config)
    yield from _check_controls(config, backend, allowed)
    yield from _check_states(config, backend, allowed, outputs)
    yield from _check_mixture(config, backend)
    yield from _check_batch_inputs(config, allowed)
    for index, tensor in enumerate(config.input):
        path = f"input[{index}]"
        if tensor.name not in allowed:
            yield _unexpected(f"{path}.name", "input", tensor.name, sorted(allowed))
        elif tensor.optional and config.max_batch_size:
            yield Fault(
                f"{path}.optional",
                f"unable to load model '{config.name}', optional input '{tensor.name}' is not supported for models "
                "that support batching",
            )
        else:
            yield from _check_tensor(config, "input", path, tensor, allowed[tensor.name])
    for index, output in enumerate(config.output):
        path = f"output[{index}]"
        if output.name not in outputs:
            yield _unexpected(f"{path}.name", "output", output.name, sorted(outputs))
        else:
            yield from _check_tensor(config, "output", path, output, outputs[output.name])


def _extra_inputs(config: ModelConfig) -> list[str]:
    """Return the inputs that the server makes: of ragged batches, sequence controls and implicit states."""
    sequence = config.sequence_batching
    return [
        *(name for batch_input in config.batch_input for name in batch_input.target_name),
        *(control.name for control in sequence.control_input),
        *(state.input_name for state in sequence.state),
    ]


def _missing(config: ModelConfig, name: str, allowed: Sequence[str]) -> Fault:
    if name in [control.name for control in config.sequence_batching.control_input]:
        text = f"configuration specified sequence control '{name}', but model does not provide that input"
        return Fault("sequence_batching.control_input", text)
    return _unexpected("", "input", name, allowed)


def _check_controls(config: ModelConfig, backend: Signature, allowed: Mapping[str, GraphTensor]) -> Iterator[Fault]:
    for index, control in enumerate(config.sequence_batching.control_input):
        node, configured = allowed[control.name], backend.inputs[control.name].datatype.config_name
        where = f"unable to load model '{config.name}', sequence control '{control.name}'"
        dims = node.dims[1:] if config.max_batch_size else node.dims
        text = None
        if node.has_shape and not dims_agree(dims, (1,)):
            text = f"{where} in model has dims {dims_text(dims)} but dims [1] is expected"
        elif node.data_type != configured:
            named = node.data_type.removeprefix("TYPE_")
            text = (
                f"{where}, the model expects data-type {_ONNX_NAMES.get(named, named)} but the model configuration "
                f"specifies data-type {configured}"
            )
        if text is not None:
            yield Fault(f"sequence_batching.control_input[{index}]", text)


def _check_batch_inputs(config: ModelConfig, allowed: Mapping[str, GraphTensor]) -> Iterator[Fault]:
    for index, batch_input in enumerate(config.batch_input):
        for name in batch_input.target_name:
            text = _datatype_fault(config, "batch input", allowed[name], DataType.Name(batch_input.data_type))
            if text is not None:
                yield Fault(f"batch_input[{index}].data_type", text)


def _check_states(
    config: ModelConfig,
    backend: Signature,
    allowed: Mapping[str, GraphTensor],
    outputs: Mapping[str, GraphTensor],
) -> Iterator[Fault]:
    for index, state in enumerate(config.sequence_batching.state):
        path = f"sequence_batching.state[{index}]"
        if state.output_name not in outputs:
            yield _unexpected(f"{path}.output_name", "output", state.output_name, sorted(outputs))
            continue
        node = allowed[state.input_name]
        for kind, tensor in (("input", node), ("output", outputs[state.output_name])):
            text = _datatype_fault(
                config, f"{kind} state", tensor, backend.inputs[state.input_name].datatype.config_name
            )
            if text is not None:
                yield Fault(f"{path}.data_type", text)
        text = _shape_fault(config, node.name, node.dims, state.dims) if node.has_shape else None
        if text is not None:
            yield Fault(f"{path}.dims", text)


def _check_mixture(config: ModelConfig, backend: Signature) -> Iterator[Fault]:
    strings = [spec.name for spec in backend.inputs.values() if spec.datatype.name == "BYTES"]
    if strings and any(spec.datatype.name == "BF16" for spec in (*backend.inputs.values(), *backend.outputs.values())):
        yield Fault(
            "input",
            f"unable to load model '{config.name}', ONNX Runtime for Python takes no TYPE_STRING input '{strings[0]}' "
            "beside TYPE_BF16 tensors",
        )


def _datatype_fault(config: ModelConfig, kind: str, node: GraphTensor, configured: str) -> str | None:
    if node.data_type in ("", configured):
        return None
    return (
        f"unable to load model '{config.name}', configuration expects datatype {configured} for {kind} '{node.name}', "
        f"model provides {node.data_type}"
    )


def _unexpected(path: str, kind: str, name: str, allowed: Sequence[str]) -> Fault:
    return Fault(path, f"unexpected inference {kind} '{name}', allowed {kind}s are: {', '.join(allowed)}")


def _check_tensor(
    config: ModelConfig, kind: str, path: str, tensor: ModelInput | ModelOutput, node: GraphTensor
) -> Iterator[Fault]:
    if not node.data_type:
        return
    if not node.is_carried:
        yield Fault(
            path,
            f"unable to load model '{config.name}', unsupported datatype '{node.data_type}' for {kind} '{tensor.name}'",
        )
        return
    text = _datatype_fault(config, kind, node, DataType.Name(tensor.data_type))
    if text is not None:
        yield Fault(f"{path}.data_type", text)
    if not node.has_shape:
        return
    reshaped = tensor.HasField("reshape")
    dims = tuple(tensor.reshape.shape if reshaped else tensor.dims)
    if isinstance(tensor, ModelInput) and tensor.allow_ragged_batch and config.max_batch_size:
        text = _ragged_fault(config, tensor.name, node.dims)
    elif any(tensor.name in output.target_name for output in config.batch_output):
        text = None
    else:
        text = _shape_fault(config, tensor.name, node.dims, dims)
    if text is not None:
        yield Fault(f"{path}.{'reshape' if reshaped else 'dims'}", text)


def _ragged_fault(config: ModelConfig, name: str, shape: Sequence[int]) -> str | None:
    if tuple(shape) == (-1,):
        return None
    return (
        f"unable to load model '{config.name}', the model expects a ragged input '{name}' to have shape [-1], "
        f"but it has shape {dims_text(shape)}"
    )


def _shape_fault(config: ModelConfig, name: str, shape: Sequence[int], dims: Sequence[int]) -> str | None:
    where = f"model '{config.name}', tensor '{name}': "
    if not config.max_batch_size:
        # A graph's scalar is configured as [1] or [1,1].
        if dims_agree(shape, dims) or (not shape and set(dims) == {1}):
            return None
        return (
            f"{where}the model expects {len(shape)} dimensions (shape {dims_text(shape)}) but the model configuration "
            f"specifies {len(dims)} dimensions (shape {dims_text(dims)})"
        )
    if not shape or shape[0] != -1:
        return (
            f"{where}for the model to support batching the shape should have at least 1 dimension and the first "
            f"dimension must be -1; but shape expected by the model is {dims_text(shape)}"
        )
    complete = [-1, *dims]
    if dims_agree(shape, complete):
        return None
    return (
        f"{where}the model expects {len(shape)} dimensions (shape {dims_text(shape)}) but the model configuration "
        f"specifies {len(complete)} dimensions (an initial batch dimension because max_batch_size > 0 followed by "
        f"the explicit tensor shape, making complete shape {dims_text(complete)})"
    )
