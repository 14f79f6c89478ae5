"""What a traced request leaves behind in a core: when it came, waited, ran and was answered, and its tensors."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final, Protocol

from deployments.backends.backend import Batch
from protocol.bytes_tensor import encode_bytes
from protocol.datatypes import DataType, of_array
from protocol.errors import ServingError
from protocol.infer import Array, InferRequest, InferResponse, Reply
from protocol.signature import Signature, TensorSpec
from protocol.trace import CONTEXT, TENSORS, Trace, TracedTensor, plain

QUEUE_INPUT: Final = "TENSOR_QUEUE_INPUT"
BACKEND_OUTPUT: Final = "TENSOR_BACKEND_OUTPUT"
_LENGTH_BYTES: Final = 4
"""Ahead of each element of a BYTES tensor."""
_TEXTS: Final = (bytes, str)
_SLICE: Final = 1024
MAX_LINKS: Final = 128
"""Requests of its batch that a trace names: as many as OpenTelemetry lets a span link to."""


class TracedModel(Protocol):
    """What a trace says of a model version."""

    @property
    def name(self) -> str:
        """The model's name."""
        ...

    @property
    def version(self) -> int:
        """The version's number."""
        ...

    @property
    def signature(self) -> Signature:
        """Its inputs and outputs."""
        ...


def follow(request: InferRequest, trace: Trace, model: TracedModel, now_ns: Callable[[], int]) -> None:
    """Trace a request that is about to be given to a model version."""
    trace.model_name, trace.version, trace.request_id = model.name, model.version, plain(request.id)
    request.trace = trace
    request.reply = partial(_replied, model, now_ns, request.reply)
    if trace.flags & TENSORS:
        _add(trace, QUEUE_INPUT, request.inputs, model.signature.inputs)
        for name, (_, _, shape, datatype) in (request.devices or {}).items():  # what it holds stays where it is
            trace.add_tensor(TracedTensor(QUEUE_INPUT, name, datatype.name, shape, b""))


def traced_in(batch: Batch) -> list[str]:
    """Return the requests of a batch that are traced for OpenTelemetry, the first of them, as `Trace.traceparent`."""
    traces = (request.trace for request in batch.requests)
    found = (trace.traceparent() for trace in traces if trace is not None and trace.flags & CONTEXT)
    return list(islice(found, MAX_LINKS))


def note_batch(request: InferRequest, batch: Batch, traced: Sequence[str] = ()) -> None:
    """Note the stages of the batch that a traced request has run in.

    Args:
        traced: what `traced_in` says of a batch of several requests.
    """
    trace = request.trace
    assert trace is not None
    _note_formed(trace, request, batch, traced)
    trace.mark("COMPUTE_START", batch.start_ns)
    trace.mark("COMPUTE_INPUT_END", batch.infer_start_ns)
    trace.mark("COMPUTE_OUTPUT_START", batch.infer_end_ns)
    trace.mark("COMPUTE_END", batch.end_ns)


def begin_streams(batch: Batch, now_ns: int) -> None:
    """Note that an instance has got a batch whose answers come later; what is traced computes until its last one."""
    traced: list[str] | None = None
    for request in batch.requests:
        trace = request.trace
        if trace is not None and not request.started_ns:
            if traced is None:
                traced = traced_in(batch)
            _note_formed(trace, request, batch, traced)
            trace.mark("COMPUTE_START", now_ns)
            trace.mark("COMPUTE_INPUT_END", now_ns)
        request.started_ns = now_ns


def _note_formed(trace: Trace, request: InferRequest, batch: Batch, traced: Sequence[str]) -> None:
    """Note how long a request waited, and what it runs with."""
    _note_start(trace, request)
    trace.mark("QUEUE_START", request.queued_ns)
    if batch.reason and trace.flags & CONTEXT:
        trace.mark("BATCH_START", max(request.queued_ns, batch.before_ns))
        trace.attributes["batch_of"] = traced
    trace.attributes |= {"batch_rows": batch.rows, "batch_requests": len(batch.requests)}
    if batch.reason:
        trace.attributes["batch_reason"] = batch.reason


def _note_start(trace: Trace, request: InferRequest) -> None:
    if trace.at_ns("REQUEST_START") is None:
        trace.mark("REQUEST_START", request.received_ns)


def _replied(
    model: TracedModel,
    now_ns: Callable[[], int],
    tell: Reply,
    request: InferRequest,
    result: InferResponse | ServingError,
) -> None:
    trace = request.trace
    assert trace is not None
    if isinstance(result, InferResponse):
        if trace.flags & TENSORS:
            _add(trace, BACKEND_OUTPUT, result.outputs, model.signature.outputs)
        if not result.final:
            tell(request, result)
            return
    else:
        trace.fail(result.message)
    request.reply = tell
    ended_ns = now_ns()
    if request.received_ns:
        _note_start(trace, request)
        if trace.at_ns("QUEUE_START") is None:
            trace.mark("QUEUE_START", request.queued_ns)
    if model.signature.decoupled and trace.at_ns("COMPUTE_START") is not None:
        trace.mark("COMPUTE_OUTPUT_START", ended_ns)
        trace.mark("COMPUTE_END", ended_ns)
    trace.mark("REQUEST_END", ended_ns)
    tell(request, result)


def _add(trace: Trace, activity: str, arrays: Mapping[str, Array], specs: Mapping[str, TensorSpec]) -> None:
    for name, array in arrays.items():
        room_bytes = trace.tensor_room_bytes
        if room_bytes < 0:
            return
        spec = specs.get(name)
        if spec is None:  # what a scheduler adds, such as the states of a sequence, is no tensor of the request
            continue
        try:
            datatype = of_array(array, spec.datatype)  # a model may answer with another one than is configured
        except KeyError:  # which the client is about to be told
            continue
        trace.add_tensor(TracedTensor(activity, name, datatype.name, array.shape, _data(array, datatype, room_bytes)))


def _data(array: Array, datatype: DataType, room_bytes: int) -> bytes:
    """Return a tensor as on the wire, "" where that is more than there is room for."""
    if datatype.byte_size:
        return array.astype(datatype.numpy, copy=False).tobytes() if array.nbytes <= room_bytes else b""
    left_bytes = room_bytes - _LENGTH_BYTES * array.size
    if left_bytes < 0:
        return b""
    elements = array.ravel()
    for at in range(0, elements.size, _SLICE):
        left_bytes -= sum(len(each) for each in elements[at : at + _SLICE] if isinstance(each, _TEXTS))
        if left_bytes < 0:
            return b""
    try:
        return encode_bytes(array)
    except ServingError:  # which the client is about to be told
        return b""
