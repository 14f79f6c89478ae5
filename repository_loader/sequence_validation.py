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
    slots = candidates if candidates > 0 else config.max_batch_size
    if slots > MAX_SLOTS:
        path = f"{base}.oldest.max_candidate_sequences" if candidates > 0 else "max_batch_size"
        yield Fault(path, f"sequence batching has {slots} slots in each instance, more than {MAX_SLOTS}, for {name}")
    yield from _check_controls(config)
    for index, state in enumerate(sequence.state):
        for fault in _check_state(state):
            yield Fault(f"{base}.state[{index}]{fault.field}", f"{fault.message} for {name}")


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
            for text in _check_control(control, kind, entry.name):
                yield Fault(f"{path}.control[{position}]", f"{text} for {kind} for {name}")


def _check_control(control: ModelSequenceBatching.Control, kind: str, tensor: str) -> Iterator[str]:
    given = [listed for listed in _VALUE_LISTS if getattr(control, listed)]
    prefix = f"sequence batching control tensor '{tensor}'"
    if control.kind == ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID:
        if given:
            yield f"{prefix} must not specify '{given[0]}'"
        if control.data_type not in _CORRELATION_TYPES:
            given_type = DataType.Name(control.data_type)
            yield f"unexpected data type {given_type} of {prefix}, expecting an integer or a string"
        return
    if len(given) != 1:
        how_many = "more than one of" if given else "one of"
        verb = "must not specify" if given else "must specify"
        yield f"{prefix} {verb} {how_many} 'int32_false_true', 'fp32_false_true' and 'bool_false_true'"
    for listed in given:
        if len(getattr(control, listed)) != 2:
            yield f"{prefix} '{listed}' must have exactly 2 entries"


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
    if len(state.initial_state) > 1:
        yield Fault(".initial_state", f"sequence batching state '{state.input_name}' has more than one initial state")
    for initial in state.initial_state:
        prefix = f"initial state of sequence batching state '{state.input_name}'"
        if not initial.name:
            yield Fault(".initial_state", f"{prefix} must specify 'name'")
        if initial.data_type != state.data_type:
            yield Fault(".initial_state", f"{prefix} must have the state's data type")
        if len(initial.dims) != len(state.dims):
            yield Fault(".initial_state", f"{prefix} must have the state's number of dimensions")
        if any(dim < 1 for dim in initial.dims):
            yield Fault(".initial_state", f"{prefix} must not have variable-size dimensions")
        if initial.WhichOneof("state_data") is None:
            yield Fault(".initial_state", f"{prefix} must specify 'zero_data' or 'data_file'")
        if leaves_folder(initial.data_file):
            yield Fault(".initial_state", f"data file of {prefix} leaves the model's folder")
    if state.use_growable_memory and not state.use_same_buffer_for_input_output:
        yield Fault("", "'use_growable_memory' needs 'use_same_buffer_for_input_output'")
