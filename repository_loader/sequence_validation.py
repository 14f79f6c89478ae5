"""The rules of `sequence_batching`, with Triton's texts.

Source: core's ValidateModelConfig and the sequence control helpers.
"""

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelSequenceBatching

from repository_loader.findings import Fault
from repository_loader.model_files import leaves_folder

MAX_SLOTS = 65_536
_CORRELATION_TYPES = (
    DataType.TYPE_UINT64,
    DataType.TYPE_INT64,
    DataType.TYPE_UINT32,
    DataType.TYPE_INT32,
    DataType.TYPE_STRING,
)
_CORRID = ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID
_VALUE_LISTS = ("int32_false_true", "fp32_false_true", "bool_false_true")


def check_sequence_batching(config: ModelConfig) -> Iterator[Fault]:
    """Yield the faults of a model with a sequence batcher."""
    name, sequence = config.name, config.sequence_batching
    base = "sequence_batching"
    if sequence.HasField("oldest"):
        for index, size in enumerate(sequence.oldest.preferred_batch_size):
            path = f"{base}.oldest.preferred_batch_size[{index}]"
            if size <= 0:
                yield Fault(path, f"sequence batching preferred batch size must be positive for {name}")
            elif size > config.max_batch_size:
                yield Fault(path, f"sequence batching preferred batch size must be <= max batch size for {name}")
    elif not 0.0 <= sequence.direct.minimum_slot_utilization <= 1.0:
        yield Fault(
            f"{base}.direct.minimum_slot_utilization",
            f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}",
        )
    candidates = sequence.oldest.max_candidate_sequences if sequence.HasField("oldest") else 0
    on_a_device = sum(max(1, group.count) for group in config.instance_group) or 1
    slots = on_a_device * (candidates if candidates > 0 else max(1, config.max_batch_size))
    if slots > MAX_SLOTS:
        path = f"{base}.oldest.max_candidate_sequences" if candidates > 0 else "max_batch_size"
        yield Fault(path, f"sequence batching has {slots} slots on a device, more than {MAX_SLOTS}, for {name}")
    yield from _check_controls(config)
    for index, state in enumerate(sequence.state):
        for fault in _check_state(state):
            yield Fault(f"{base}.state[{index}]{fault.field}", f"{fault.message} for {name}")
        for text in _check_initial_state(state):
            yield Fault(f"{base}.state[{index}].initial_state", text)


def _check_controls(config: ModelConfig) -> Iterator[Fault]:
    name = config.name
    tensors: set[str] = set()
    kinds: set[int] = set()
    inputs = {tensor.name for tensor in config.input}
    for index, entry in enumerate(config.sequence_batching.control_input):
        path = f"sequence_batching.control_input[{index}]"
        if not entry.name:
            yield Fault(path, f"sequence batching control tensor must have a name for {name}")
        elif entry.name in tensors:
            message = (
                f"sequence batching control tensor '{entry.name}' is specified for multiple control kinds for {name}"
            )
            yield Fault(path, message)
        elif entry.name in inputs:
            yield Fault(
                path, f"sequence batching control tensor '{entry.name}' must not be listed in 'input' of {name}"
            )
        tensors.add(entry.name)
        for position, control in enumerate(entry.control):
            kind = ModelSequenceBatching.Control.Kind.Name(control.kind)
            if control.kind in kinds:
                yield Fault(
                    f"{path}.control[{position}]", f"sequence batching specifies multiple {kind} tensors for {name}"
                )
            kinds.add(control.kind)
            for text in _check_control(control, kind):
                yield Fault(f"{path}.control[{position}]", f"{text} for {name}")
            if control.kind == _CORRID and control.data_type not in _CORRELATION_TYPES:
                allowed = "Allowed data types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
                yield Fault(
                    f"{path}.control[{position}]", f"unexpected data type for control {kind} for {name}. {allowed}"
                )


def _check_control(control: ModelSequenceBatching.Control, kind: str) -> Iterator[str]:
    given = [listed for listed in _VALUE_LISTS if getattr(control, listed)]
    either = f"either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for {kind}"
    if control.kind == _CORRID:
        if given:
            yield f"sequence batching must not specify {either}"
        return
    if not given:
        yield f"sequence batching must specify {either}"
    elif len(given) > 1:
        lists = "'int32_false_true', 'fp32_false_true' and 'bool_false_true'"
        yield f"sequence batching specifies more than one from {lists} for {kind}"
    for listed in given:
        if len(getattr(control, listed)) != 2:
            yield f"sequence batching control '{listed}' must have exactly 2 entries for {kind}"


def _check_state(state: ModelSequenceBatching.State) -> Iterator[Fault]:
    for field in ("input_name", "output_name"):
        if not getattr(state, field):
            yield Fault("", f"sequence batching state must specify '{field}'")
    if state.data_type == DataType.TYPE_INVALID:
        yield Fault(".data_type", f"sequence batching state '{state.input_name}' must specify 'data_type'")
    if not state.dims:
        yield Fault(".dims", f"sequence batching state '{state.input_name}' must specify 'dims'")
    if any(dim < 1 and dim != -1 for dim in state.dims):
        yield Fault(".dims", f"sequence batching state '{state.input_name}' dimension must be integer >= 1, or -1")
    if state.use_growable_memory and not state.use_same_buffer_for_input_output:
        yield Fault("", "'use_growable_memory' needs 'use_same_buffer_for_input_output'")


def _check_initial_state(state: ModelSequenceBatching.State) -> Iterator[str]:
    name = state.input_name
    if len(state.initial_state) > 1:
        found = len(state.initial_state)
        yield (
            f"initial_state field for state input '{name}' must contain exactly one or zero element. "
            f"Found '{found}' elements."
        )
    for initial in state.initial_state:
        if not initial.name:
            yield f"Field 'name' must be set when using initial_state for state input '{name}'."
        if initial.data_type != state.data_type:
            yield f"The data type used for 'initial_state' field of state '{name}' does not match the state data type."
        if any(dim < 1 for dim in initial.dims):
            yield f"'initial_state' field for state input name '{name}' contains variable dimensions."
        if len(initial.dims) != len(state.dims):
            yield (
                "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
                f"'{name}'. {len(initial.dims)} != {len(state.dims)}"
            )
        for given, expected in zip(initial.dims, state.dims, strict=False):
            if expected not in (-1, given):
                yield (
                    f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. "
                    f"{given} != {expected}"
                )
        if initial.WhichOneof("state_data") is None:
            yield f"initial_state setting expects state'{name}' to have state_data set"
        if leaves_folder(initial.data_file):
            yield f"data file of the initial state of '{name}' leaves the model's folder"
