"""What the backends of Triton's tests ask of a configuration, with their texts.

Source: ValidateModelConfig of each of these backends.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from protocol.normalise import dims_text
from repository_loader.backend_traits import traits_of
from repository_loader.findings import Fault


class _UnmetError(Exception):
    """The first expectation that a configuration does not meet."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(field, message)
        self.fault = Fault(field, message)


def check_expectations(config: ModelConfig) -> Iterator[Fault]:
    """Yield the first thing that a backend of Triton's tests refuses; nothing for a model of another backend."""
    check = _CHECKS.get(traits_of(config).name)
    if check is None:
        return
    try:
        check(config)
    except _UnmetError as unmet:
        yield unmet.fault


def _expect(condition: bool, field: str, otherwise: str) -> None:
    if not condition:
        raise _UnmetError(field, otherwise)


def _expect_tensors(kind: str, tensors: Sequence[Any], wanted: Sequence[tuple[str, str]]) -> None:
    """Compare the inputs or the outputs with the wanted names and datatypes, which must come in this order."""
    _expect(len(tensors) == len(wanted), kind, f"expected {len(wanted)} {kind}s, got {len(tensors)}")
    for index, (tensor, (name, datatype)) in enumerate(zip(tensors, wanted, strict=True)):
        path = f"{kind}[{index}]"
        _expect(tensor.name == name, f"{path}.name", f"expected {kind} tensor name to be {name}, got {tensor.name}")
        given = DataType.Name(tensor.data_type)
        refused = f"expected {name} datatype to be {datatype}, got {given}"
        _expect(given == f"TYPE_{datatype}", f"{path}.data_type", refused)


def _expect_scalar(path: str, tensor: Any) -> None:
    refused = f"expected {tensor.name} shape to be [1], got {dims_text(tensor.dims)}"
    _expect(list(tensor.dims) == [1], f"{path}.dims", refused)


def _expect_controls(config: ModelConfig, names: Sequence[str], otherwise: str) -> None:
    given = sorted(entry.name for entry in config.sequence_batching.control_input)
    _expect(given == sorted(names), "sequence_batching.control_input", otherwise)


def _check_identity(config: ModelConfig) -> None:
    pairs = len(config.input) == len(config.output)
    _expect(pairs, "output", "model configuration must have equal input/output pairs")
    inputs: dict[str, Any] = {}
    for index, tensor in enumerate(config.input):
        refused = f"expected input name to follow INPUT<index> pattern, got '{tensor.name}'"
        _expect(tensor.name.startswith("INPUT"), f"input[{index}].name", refused)
        inputs[tensor.name.removeprefix("INPUT")] = tensor
    for index, tensor in enumerate(config.output):
        path, name = f"output[{index}]", tensor.name
        refused = f"expected output name to follow OUTPUT<index> pattern, got '{name}'"
        _expect(name.startswith("OUTPUT"), f"{path}.name", refused)
        matches = name.removeprefix("OUTPUT") in inputs
        _expect(matches, f"{path}.name", "expected input and output indices to match")
        source = inputs[name.removeprefix("OUTPUT")]
        types = [DataType.Name(each.data_type) for each in (source, tensor)]
        refused = f"expected input and output datatype to match, got {types[0]} and {types[1]}"
        _expect(types[0] == types[1], f"{path}.data_type", refused)
        shapes = [dims_text(each.reshape.shape if each.HasField("reshape") else each.dims) for each in (source, tensor)]
        refused = f"expected input and output shape to match, got {shapes[0]} and {shapes[1]}"
        _expect(shapes[0] == shapes[1], f"{path}.dims", refused)


def _check_repeat(config: ModelConfig) -> None:
    refused = "repeat backend only supports models with max_batch_size == 0"
    _expect(config.max_batch_size == 0, "max_batch_size", refused)
    _expect_tensors("input", config.input, (("IN", "INT32"), ("DELAY", "UINT32"), ("WAIT", "UINT32")))
    _expect_tensors("output", config.output, (("OUT", "INT32"), ("IDX", "UINT32")))
    taken, delay, wait = config.input
    refused = f"expected IN shape to have one dimension, got {dims_text(taken.dims)}"
    _expect(len(taken.dims) == 1, "input[0].dims", refused)
    refused = f"expected IN and DELAY shape to match, got {dims_text(taken.dims)} and {dims_text(delay.dims)}"
    _expect(list(taken.dims) == list(delay.dims), "input[1].dims", refused)
    _expect_scalar("input[2]", wait)
    for index, tensor in enumerate(config.output):
        _expect_scalar(f"output[{index}]", tensor)


def _check_square(config: ModelConfig) -> None:
    _expect_tensors("input", config.input, (("IN", "INT32"),))
    _expect_tensors("output", config.output, (("OUT", "INT32"),))
    _expect_scalar("input[0]", config.input[0])
    _expect_scalar("output[0]", config.output[0])


def _check_sequence(config: ModelConfig) -> None:
    _expect_controls(config, ("START", "READY"), "'START' and 'READY' must be configured as the control inputs")
    _check_accumulated(config)


def _check_dyna_sequence(config: ModelConfig) -> None:
    for index, entry in enumerate(config.sequence_batching.control_input):
        types = {control.data_type for control in entry.control} if entry.name == "CORRID" else set()
        _expect(
            types <= {DataType.TYPE_UINT64, DataType.TYPE_STRING},
            f"sequence_batching.control_input[{index}]",
            "model CORRID control input must have TYPE_UINT64 or TYPE_STRING data-type",
        )
    names = ("CORRID", "END", "READY", "START")
    _expect_controls(config, names, "'START', 'END, 'READY' and 'CORRID' must be configured as the control inputs")
    _check_accumulated(config)


def _check_accumulated(config: ModelConfig) -> None:
    taken, given = config.input, config.output
    _expect(len(taken) == 1, "input", "model must have input 'INPUT' with vector shape, any length")
    one = len(taken[0].dims) == 1
    _expect(one, "input[0].dims", "model must have one input 'INPUT' with vector shape, any length")
    integers = taken[0].data_type == DataType.TYPE_INT32
    _expect(integers, "input[0].data_type", "model input must have TYPE_INT32 data-type")
    _expect(taken[0].name == "INPUT", "input[0].name", "model input must be named 'INPUT'")
    _expect(len(given) == 1, "output", "model must have one output 'OUTPUT' with vector shape, any length")
    same = list(given[0].dims) == list(taken[0].dims)
    _expect(same, "output[0].dims", "model must have output 'OUTPUT' with shape matching 'INPUT'")
    integers = given[0].data_type == DataType.TYPE_INT32
    _expect(integers, "output[0].data_type", "model output must have TYPE_INT32 data-type")
    _expect(given[0].name == "OUTPUT", "output[0].name", "model output must be named 'OUTPUT'")


def _check_implicit_state(config: ModelConfig) -> None:
    names = ("END", "READY", "START")
    _expect_controls(config, names, "'START', 'END, and 'READY' must be configured as the control inputs")


def _check_iterative_sequence(config: ModelConfig) -> None:
    decoupled = config.model_transaction_policy.decoupled
    refused = "iterative_sequence backend only supports decoupled models"
    _expect(decoupled, "model_transaction_policy", refused)
    _expect_tensors("input", config.input, (("INPUT", "INT32"),))
    _expect_tensors("output", config.output, (("OUTPUT", "INT32"),))


_CHECKS: dict[str, Callable[[ModelConfig], None]] = {
    "identity": _check_identity,
    "repeat": _check_repeat,
    "square": _check_square,
    "sequence": _check_sequence,
    "dyna_sequence": _check_dyna_sequence,
    "implicit_state": _check_implicit_state,
    "iterative_sequence": _check_iterative_sequence,
}
