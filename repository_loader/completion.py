"""Auto-complete: fills what a configuration leaves out from the model itself.

Source: Triton's AutoCompleteConfig of each backend, and core's UpdateModelConfig for what a backend may change.
"""

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelOutput

from repository_loader.backend_traits import PYTHON, traits_of
from repository_loader.onnx_graph import GraphTensor, OnnxGraph

ModelCompleter = Callable[[ModelConfig, str, str, str], ModelConfig]
"""Asks a model in a process of its own: (config, model path, version path, file path) -> config.

Of a Python model it is what `auto_complete_config` returns. Of an ONNX model it has nothing but `input` and `output`,
the tensors of its graph with all their dims, as ONNX Runtime has worked them out. It raises any exception, whose text
is the reason.
"""

_MODEL_CLASS = "TritonPythonModel"


class CompletionError(Exception):
    """The model contradicts its configuration, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Completer:
    """How the model of one version is asked; `run` is None where nobody can ask."""

    run: ModelCompleter | None
    model_path: str
    version_path: str
    file_path: str

    def ask(self, config: ModelConfig) -> ModelConfig:
        """Return what `run` does of a copy of the configuration.

        Raises:
            CompletionError: with the model's reason.
        """
        assert self.run is not None
        given = ModelConfig.FromString(config.SerializeToString())
        try:
            return self.run(given, self.model_path, self.version_path, self.file_path)
        except Exception as error:  # a model's code may raise anything
            raise CompletionError(str(error) or type(error).__name__) from error


def complete(
    config: ModelConfig, graph: OnnxGraph | None, default_max_batch_size: int, completer: Completer
) -> list[str]:
    """Complete the configuration in place; returns warnings. `graph` is what is in an ONNX model's file, if that tells.

    Raises:
        CompletionError: with Triton's text where it has one.
    """
    incomplete = not (config.input or config.batch_input) or not (config.output or config.batch_output)
    if traits_of(config).name == "onnxruntime" and incomplete:
        graph = _with_shapes(config, graph, completer)
        return [] if graph is None else _complete_from_graph(config, graph, default_max_batch_size)
    if traits_of(config).name == "pytorch" and incomplete:
        return [f"skipping model configuration auto-complete for '{config.name}': not supported for pytorch backend"]
    is_python = traits_of(config).name == PYTHON and completer.file_path  # a model that is also an ensemble has none
    if is_python and completer.run is not None and defines_auto_complete(completer.file_path):
        merge_completed(config, completer.ask(config))
    return []


def merge_completed(config: ModelConfig, completed: ModelConfig) -> None:
    """Take over what a backend may change: batch size, inputs, outputs, decoupled, and the scheduler if none was set.

    Raises:
        CompletionError: another scheduler was chosen than the one that is configured.
    """
    before, after = (source.WhichOneof("scheduling_choice") for source in (config, completed))
    if before is not None and after is not None and before != after:
        raise CompletionError(f"Cannot update scheduling choice from {before} to {after} when auto-completing.")
    config.max_batch_size = completed.max_batch_size
    for name in ("input", "output"):
        config.ClearField(name)
        getattr(config, name).extend(getattr(completed, name))
    if before is None and after is not None:
        getattr(config, after).CopyFrom(getattr(completed, after))
    if completed.HasField("model_transaction_policy"):
        config.model_transaction_policy.decoupled = completed.model_transaction_policy.decoupled


def defines_auto_complete(file_path: str) -> bool:
    """Whether a Python model may have `auto_complete_config`, judged from its source alone.

    A class that inherits may get the method from its base, so it counts; so does a name that is imported or assigned.
    A file that cannot be read or parsed counts too: running it gives the better message.
    """
    try:
        with open(file_path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError, SystemError):  # the last: now and then, of CPython 3.11
        return True
    found = False
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == _MODEL_CLASS:
            found = True
            if _class_may_complete(node):
                return True
        elif isinstance(node, ast.ImportFrom | ast.Import):
            if any((alias.asname or alias.name) in (_MODEL_CLASS, "*") for alias in node.names):
                return True
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in (_MODEL_CLASS, "auto_complete_config"):
                return True
    return not found


def _class_may_complete(node: ast.ClassDef) -> bool:
    if node.decorator_list or node.keywords:
        return True
    if any(not (isinstance(base, ast.Name) and base.id == "object") for base in node.bases):
        return True
    return any(
        isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name == "auto_complete_config"
        for inner in ast.walk(node)
    )


def _with_shapes(config: ModelConfig, graph: OnnxGraph | None, completer: Completer) -> OnnxGraph | None:
    """Return a graph of which ONNX Runtime has worked out what its file leaves open; None where nobody can ask.

    Raises:
        CompletionError: ONNX Runtime does not open the file, which alone tells what is in it.
    """
    tensors = () if graph is None else (*graph.inputs, *graph.outputs)
    if completer.run is None or (graph is not None and all(each.has_shape for each in tensors)):
        return graph
    try:
        asked = completer.ask(config)
    except CompletionError:
        if graph is None or not all(each.data_type for each in tensors):
            raise
        return graph  # loading it gives the reason
    inputs, outputs = (_graph_tensors(tensors) for tensors in (asked.input, asked.output))
    if graph is None:
        return OnnxGraph(tuple(inputs.values()), tuple(outputs.values()), (), ())
    return replace(
        graph,
        inputs=tuple(each if each.has_shape else inputs.get(each.name, each) for each in graph.inputs),
        outputs=tuple(each if each.has_shape else outputs.get(each.name, each) for each in graph.outputs),
    )


def _graph_tensors(tensors: Iterable[ModelInput | ModelOutput]) -> dict[str, GraphTensor]:
    return {each.name: GraphTensor(each.name, DataType.Name(each.data_type), tuple(each.dims)) for each in tensors}


def _complete_from_graph(config: ModelConfig, graph: OnnxGraph, default_max_batch_size: int) -> list[str]:
    warnings = []
    fills_inputs = not config.input and not config.batch_input
    fills_outputs = not config.output and not config.batch_output
    filled = (*(graph.inputs if fills_inputs else ()), *(graph.outputs if fills_outputs else ()))
    _check_types(filled, graph)
    tensors = [tensor for tensor in (*graph.inputs, *graph.outputs) if tensor.is_carried]
    if all(tensor.dims and tensor.dims[0] == -1 for tensor in tensors) and tensors:
        if config.max_batch_size == 0 and default_max_batch_size > 0:
            config.max_batch_size = default_max_batch_size
            warnings.append(
                f"max_batch_size of '{config.name}' is completed to {default_max_batch_size}: the model supports "
                "batching and the configuration does not say how much; set max_batch_size for larger batches"
            )
        if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
            config.dynamic_batching.SetInParent()
    elif config.max_batch_size > 0:
        raise CompletionError(
            f"autofill failed for model '{config.name}': model does not support batching while non-zero max_batch_size "
            "is specified"
        )
    batching = config.max_batch_size > 0
    if fills_inputs:
        made = _made_inputs(config)
        sent = (tensor for tensor in graph.inputs if tensor.name not in made)
        config.input.extend(_tensors(ModelInput, sent, batching))
    if fills_outputs:
        config.output.extend(_tensors(ModelOutput, graph.outputs, batching))
    return warnings


def _made_inputs(config: ModelConfig) -> set[str]:
    """Return the inputs of a sequence that the server makes, which no client sends."""
    sequence = config.sequence_batching
    return {each.name for each in sequence.control_input} | {each.input_name for each in sequence.state}


def _check_types(tensors: Iterable[GraphTensor], graph: OnnxGraph) -> None:
    fix = "; convert the model with zipmap=False" if "ZipMap" in graph.operators else ""
    for tensor in tensors:
        if not tensor.is_carried:
            raise CompletionError(
                f"tensor '{tensor.name}' is of type {tensor.data_type or 'UNDEFINED'}, which the protocol cannot "
                f"carry{fix}"
            )


def _tensors(
    kind: type[ModelInput] | type[ModelOutput], tensors: Iterable[GraphTensor], batching: bool
) -> Iterable[ModelInput | ModelOutput]:
    for tensor in tensors:
        dims = tensor.dims[1:] if batching else tensor.dims
        filled = kind(name=tensor.name, data_type=DataType.Value(tensor.data_type), dims=dims or [1])
        if not dims and batching:
            filled.reshape.SetInParent()
        yield filled
