"""What ensembles ask of a step and make of its answers."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from deployments.schedulers.ensemble_plan import Step
from protocol.datatypes import of_array
from protocol.errors import QueueFull, ServingError, Unavailable
from protocol.infer import COPIED, SEQUENCE_END, SEQUENCE_START, Array, InferRequest, Parameter, Reply
from protocol.normalise import normalise
from protocol.signature import TensorSpec

Tensors = Sequence[Array | None] | Mapping[int, Array | None]


class SequenceState(Protocol):
    """The sequence that a request is of, as the steps so far have changed it."""

    request: InferRequest
    sequence_id: int | str
    flags: int


def step_inputs(tensors: Tensors, step: Step, request_id: str) -> tuple[dict[str, Array], int]:
    """Return a step's inputs as its model sees them, and their batch size; `tensors` are found by their numbers.

    Raises:
        InvalidArgument: a tensor is absent that the step requires, or they do not fit the step or each other.
    """
    inputs: dict[str, Array] = {}
    checked = step.checked
    for edge in step.inputs:
        array = tensors[edge.tensor]
        if array is not None:
            inputs[edge.name] = edge.convert(array) if edge.converts else array
        checked = checked and array is not None and edge.takes(array)
    max_rows = step.signature.max_batch_size
    if checked:
        if not max_rows:
            return inputs, 1
        sizes = {array.shape[0] for array in inputs.values()}
        if len(sizes) == 1 and (rows := sizes.pop()) <= max_rows:
            return inputs, rows
    sent = [(name, _datatype(step.signature.inputs[name], array), array.shape) for name, array in inputs.items()]
    rows, shapes = normalise(step.signature, sent, request_id)
    arrays = zip(inputs.items(), shapes, strict=True)
    return {name: array.reshape(shape) for (name, array), shape in arrays}, rows


def _datatype(spec: TensorSpec, array: Array) -> str:
    return (spec.datatype if array.dtype == spec.datatype.numpy else of_array(array)).name


def step_request(
    state: SequenceState, step: Step, inputs: dict[str, Array], rows: int, outputs: tuple[str, ...], reply: Reply
) -> InferRequest:
    """Return what a step's model is asked; it is on the ensemble's behalf in all that the ensemble's request says."""
    request = state.request
    child = InferRequest(
        inputs,
        rows,
        reply,
        id=request.id,
        outputs=outputs,
        parameters=request.parameters,
        priority=request.priority,
        timeout_us=request.timeout_us,
        sequence_id=state.sequence_id,
        flags=state.flags,
        callers=request.callers,
    )
    if request.trace is not None:
        child.trace = request.trace.child(step.model_name, step.version)
    return child


def step_error(ensemble: str, step: Step, error: ServingError) -> ServingError:
    """Return a step's error as the ensemble's: Triton's text, and the step where the error does not name it."""
    name = step.model_name
    named = f"'{name}'" in error.message or f"'{name}_" in error.message  # the model, or an instance of it
    where = f"in ensemble '{ensemble}', " + ("" if named else f"step '{name}': ")
    kind = Unavailable if isinstance(error, QueueFull) else type(error)  # the step's queue, not the ensemble's
    return kind(where + error.message)


def follow_sequence(state: SequenceState, parameters: dict[str, Parameter]) -> None:
    """Take what a step's response says of the sequence: flags that it does not mention are then not set."""
    changed = False
    sequence_id = parameters.get("sequence_id")
    if isinstance(sequence_id, int | str):
        state.sequence_id = sequence_id
        changed = True
    flags = 0
    for name, flag in (("sequence_start", SEQUENCE_START), ("sequence_end", SEQUENCE_END)):
        if name in parameters:
            changed = True
            flags |= flag if parameters[name] else 0
    if changed:
        state.flags = state.flags & COPIED | flags


def sequence_parameters(state: SequenceState) -> dict[str, Parameter] | None:
    """Return the sequence that a response belongs to, as the steps have left it; None outside one."""
    if not state.sequence_id and not state.flags:
        return None
    return {
        "sequence_id": state.sequence_id,
        "sequence_start": bool(state.flags & SEQUENCE_START),
        "sequence_end": bool(state.flags & SEQUENCE_END),
    }
