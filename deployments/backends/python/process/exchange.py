"""What a replica and the process of a Python model tell each other: batches of requests, and their outcomes.

To the process: `load`, `regions`, `batch`, `close`. From it: `ready` or `failed`, `results` of a batch, and `response`
to a request of a decoupled model, or of a batch whose `results` are None, at any time. On a second socket, at any time:
from the process `log`, and `cancelled` with a number for the `answer`, as well as what `ModelServer` does; to it
`is_ready`, also with a number, `forget_region`, `forget_device` and `freed_outputs`; both ways `freed`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from deployments.backends.python.process.channel import Channel, Place, Writer
from protocol import errors
from protocol.datatypes import BY_NAME
from protocol.device_input import DeviceInput
from protocol.errors import Internal, ServingError
from protocol.infer import Array, InferRequest, InferResponse, StreamedResponse
from protocol.signature import Signature, TensorSpec
from protocol.trace import Trace

OWN_READINESS: Final = "is_ready"
"""Said with `ready` of a model that has an `is_ready`."""

FREED: Final = "freed"
"""Says nothing but what each message says: which places in the area are free."""
FREED_OUTPUTS: Final = "freed_outputs"
"""Says which places of what the process has sent on the first socket, which it does not read while a batch runs."""

RequestFields = tuple[Any, ...]
ResultFields = tuple[str, Any, Any]


def signature_fields(signature: Signature) -> tuple[Any, ...]:
    """Return a signature as plain values."""
    return (
        signature.model_name,
        signature.max_batch_size,
        [_spec_fields(spec) for spec in signature.inputs.values()],
        [_spec_fields(spec) for spec in signature.outputs.values()],
        signature.decoupled,
        signature.iterative,
    )


def read_signature(fields: tuple[Any, ...]) -> Signature:
    """Rebuild what `signature_fields` took apart."""
    name, max_batch_size, inputs, outputs, decoupled, iterative = fields
    inputs, outputs = (
        {tensor[0]: TensorSpec(tensor[0], BY_NAME[tensor[1]], *tensor[2:]) for tensor in tensors}
        for tensors in (inputs, outputs)
    )
    return Signature(name, max_batch_size, inputs, outputs, decoupled=decoupled, iterative=iterative)


def _spec_fields(spec: TensorSpec) -> tuple[Any, ...]:
    return spec.name, spec.datatype.name, spec.dims, spec.model_dims, spec.optional, spec.ragged


class ProcessRequest(InferRequest):
    """A request as the process has it: only the replica knows its client."""

    __slots__ = ("_cancelled", "ask", "number")

    number: int
    ask: Callable[..., Any]
    _cancelled: bool

    @property
    def cancelled(self) -> bool:
        """Whether the client gave the request up, by the replica's word."""
        if not self._cancelled:
            self._cancelled = bool(self.ask("cancelled", self.number))
        return self._cancelled

    @cancelled.setter
    def cancelled(self, cancelled: bool) -> None:
        self._cancelled = cancelled


def read_request(
    fields: RequestFields,
    ask: Callable[..., Any],
    channel: Channel,
    place: Array | None,
    view: Callable[[Place], memoryview],
    devices: Callable[[Any], dict[str, DeviceInput]],
) -> ProcessRequest:
    """Rebuild what `request_fields` took apart.

    Args:
        fields: of the request.
        ask: how the process asks the replica.
        channel: that the message came by.
        place: of the large tensors in the message.
        view: finds a place in a client's region.
        devices: rebuilds inputs on GPUs.
    """
    number, id, rows, outputs, parameters, sequence_id, flags, timeout_us, priority, callers, trace, *rest = fields
    tensors, places, on_devices = rest
    request = ProcessRequest(
        channel.arrays(tensors, place, view),
        rows,
        _nobody,
        id=id,
        outputs=outputs,
        parameters=parameters,
        priority=priority,
        timeout_us=timeout_us,
        sequence_id=sequence_id,
        flags=flags,
        callers=callers,
        devices=None if on_devices is None else devices(on_devices),
    )
    request.number, request.ask = number, ask
    if places:
        request.places = {name: view(region) for name, region in places.items()}
    request.trace = None if trace is None else Trace(*trace)
    return request


def request_fields(number: int, request: InferRequest, writer: Writer, devices: object) -> RequestFields:
    """Return a request as plain values.

    `number` tells it from others that the process still has; `devices` are its inputs on GPUs as plain values.
    """
    places = None
    if request.places and writer.places is not None:
        found = {name: writer.places.place(wanted) for name, wanted in request.places.items()}
        places = {name: place for name, place in found.items() if place is not None}
    return (
        number,
        request.id,
        request.rows,
        request.outputs,
        request.parameters,
        request.sequence_id,
        request.flags,
        request.timeout_us,
        request.priority,
        request.callers,
        None if request.trace is None else (request.trace.flags, request.trace.trace_id, request.trace.id),
        writer.describe(request.inputs),
        places,
        devices,
    )


def result_fields(
    outcome: InferResponse | ServingError, writer: Writer, places: Mapping[str, memoryview] | None = None
) -> ResultFields:
    """Return an outcome as plain values: an error's kind ("" for none) and text, or outputs and parameters.

    Large outputs are written to their `places`, if there are any.
    """
    if not isinstance(outcome, InferResponse):
        return type(outcome).__name__, outcome.message, None
    return "", writer.describe(outcome.outputs, places), outcome.parameters


def read_result(
    fields: ResultFields, channel: Channel, place: Array | None, places: Mapping[str, memoryview] | None = None
) -> InferResponse | ServingError:
    """Rebuild what `result_fields` took apart; `places` are those of the request."""
    kind, content, parameters = fields
    if kind:
        return read_error((kind, content))
    return InferResponse(channel.arrays(content, place, places=places), parameters)


def read_error(fields: tuple[str, str]) -> ServingError:
    """Rebuild an error of its kind and text."""
    error: ServingError = getattr(errors, fields[0], Internal)(fields[1])
    return error


def read_call_result(
    fields: ResultFields, final: bool, channel: Channel, place: Array | None
) -> InferResponse | ServingError:
    """Rebuild one response to a call of another model."""
    outcome = read_result(fields, channel, place)
    if isinstance(outcome, InferResponse):
        outcome.final = final
    return outcome


def read_response(
    fields: ResultFields, final: bool, output_ns: int, channel: Channel, place: Array | None
) -> StreamedResponse | ServingError:
    """Rebuild one response of a decoupled model."""
    outcome = read_result(fields, channel, place)
    if isinstance(outcome, InferResponse):
        return StreamedResponse(outcome.outputs, outcome.parameters, final, output_ns)
    return outcome


def _nobody(request: InferRequest, outcome: InferResponse | ServingError) -> None:
    raise AssertionError("the replica replies, not the model's process")
