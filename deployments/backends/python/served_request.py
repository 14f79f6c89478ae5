"""A request as `execute` gets it: a light view of the core's own request."""

import json
import threading
from collections.abc import Callable
from operator import index
from typing import ClassVar, Final, NoReturn

from deployments.backends.python.errors import TritonModelException
from deployments.backends.python.request import InferenceRequest, InferenceTrace, PreferredMemory
from deployments.backends.python.response import parameters_text
from deployments.backends.python.response_sender import ResponseSender
from deployments.backends.python.tensor import BFloat16Tensor, InputOnDevice, Tensor
from protocol.infer import RESCHEDULED, SEQUENCE_END, SEQUENCE_START, Array, InferRequest
from protocol.trace import CONTEXT

TRACE_FIELDS = ("traceparent", "tracestate")
"""Of the W3C's Trace Context."""
_MAKING: Final = threading.RLock()
RELEASE_ALL = 1
RELEASE_RESCHEDULE = 2


class ServedRequest(InferenceRequest):
    """One request of a batch; tensors are made when the model asks for them.

    `output_names` are the model's configured outputs; `make_sender` gives the request its one response sender.
    `iterative` says that the model may have a request run again.
    """

    __slots__ = ("_make_sender", "_output_names", "_request", "_sender")
    iterative: ClassVar[bool] = False

    def __init__(
        self,
        request: InferRequest,
        output_names: tuple[str, ...],
        make_sender: Callable[["ServedRequest"], ResponseSender],
    ) -> None:
        self._request = request
        self._output_names = output_names
        self._make_sender = make_sender
        self._sender: ResponseSender | None = None

    def inputs(self) -> list[Tensor]:
        """Return the input tensors."""
        request_inputs, devices = self._request.inputs, self._request.devices
        tensors = [self._tensor(name, request_inputs[name]) for name in list(request_inputs)]
        return tensors if devices is None else tensors + [InputOnDevice(*each) for each in devices.items()]

    def input_tensor(self, name: str) -> Tensor | None:
        """Return the input of this name, None for an optional input that was not sent."""
        array = self._request.inputs.get(name)
        return self._tensor(name, array) if array is not None else self._on_device(name)

    def request_id(self) -> str:
        """Return the client's id, "" without one."""
        return self._request.id

    def correlation_id(self) -> int | str:
        """Return the id of the sequence, 0 outside one."""
        return self._request.sequence_id

    def flags(self) -> int:
        """Return TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END, or-ed."""
        return self._request.flags & (SEQUENCE_START | SEQUENCE_END)

    def set_flags(self, flags: int) -> None:
        """Replace the flags of the sequence."""
        self._request.flags = self._request.flags & RESCHEDULED | index(flags) & (SEQUENCE_START | SEQUENCE_END)

    def timeout(self) -> int:
        """Return the client's timeout in microseconds, 0 for none."""
        return self._request.timeout_us

    def parameters(self) -> str:
        """Return the client's parameters as JSON text."""
        return parameters_text(self._request.parameters)

    def trace(self) -> InferenceTrace:
        """Return the trace to hand on to calls of other models.

        Its context is this model's part in what the server exports to OpenTelemetry, else what the client's headers
        said: they reach a model as parameters, when the server forwards them.
        """
        parameters, trace = self._request.parameters, self._request.trace
        context = {} if parameters is None else {name: parameters[name] for name in TRACE_FIELDS if name in parameters}
        if trace is None:
            return InferenceTrace(json.dumps(context) if context else None)
        if trace.flags & CONTEXT:
            context["traceparent"] = trace.traceparent()
        return InferenceTrace(json.dumps(context) if context else None, self._request)

    def preferred_memory(self) -> PreferredMemory:
        """Return host memory, where outputs are encoded."""
        return PreferredMemory()

    def requested_output_names(self) -> set[str]:
        """Return the outputs that the client asked for, all of the model's when it named none."""
        outputs = self._request.outputs
        return set(self._output_names if outputs is None else outputs)

    def model_name(self) -> str:
        """Return "": a served request calls no model."""
        return ""

    def model_version(self) -> int:
        """Return -1: a served request calls no model."""
        return -1

    def is_cancelled(self) -> bool:
        """Return whether the client gave the request up."""
        return self._request.cancelled

    def set_release_flags(self, flags: int) -> None:
        """Accept the release of the whole request, which is what happens anyway, or have it run again.

        Raises:
            TritonModelException: the model's sequences are not iterative, or the flags are unknown.
        """
        if flags == RELEASE_RESCHEDULE and self.iterative:
            self._request.flags |= RESCHEDULED
        elif flags == RELEASE_ALL:
            self._request.flags &= ~RESCHEDULED
        else:
            raise TritonModelException("Inference request release flags support only TRITONSERVER_REQUEST_RELEASE_ALL.")

    def get_response_sender(self) -> ResponseSender:
        """Return the object that answers this request from any thread; always the same one."""
        if self._sender is None:
            with _MAKING:  # the model's thread may be at it while `execute` returns
                if self._sender is None:
                    self._sender = self._make_sender(self)
        return self._sender

    def exec(self, decoupled: bool = False) -> NoReturn:
        """Refuse: a served request names no model."""
        raise TritonModelException("exec is not supported on requests that execute was given.")

    def async_exec(self, decoupled: bool = False) -> NoReturn:
        """Refuse, as `exec` does."""
        self.exec(decoupled)

    def _on_device(self, name: str) -> Tensor | None:
        devices = self._request.devices
        return InputOnDevice(name, devices[name]) if devices is not None and name in devices else None

    def _tensor(self, name: str, array: Array) -> Tensor:
        """Return the input as a tensor over writable and aligned memory, which models may count on.

        Any other array is copied once and the copy takes its place in the request.
        """
        if not array.flags.behaved:
            array = self._request.inputs[name] = array.copy()
        tensor = _new(Tensor)
        tensor._name = name
        tensor._array = array
        return tensor


_new = Tensor.__new__


class BFloat16Request(ServedRequest):
    """A request to a model with BF16 inputs; its arrays of uint16 may stand for BF16."""

    __slots__ = ()
    bfloat16_inputs: ClassVar[frozenset[str]] = frozenset()

    def _tensor(self, name: str, array: Array) -> Tensor:
        return BFloat16Tensor(name, array) if name in self.bfloat16_inputs else super()._tensor(name, array)


# Python's own errors, which reach clients, call them as models know them.
ServedRequest.__name__ = BFloat16Request.__name__ = InferenceRequest.__name__


def request_class(bfloat16_inputs: frozenset[str], *, iterative: bool = False) -> type[ServedRequest]:
    """Return the class for a model's requests, so that most models pay nothing for what few have."""
    if not bfloat16_inputs and not iterative:
        return ServedRequest
    base = BFloat16Request if bfloat16_inputs else ServedRequest
    return type(base.__name__, (base,), {"__slots__": (), "bfloat16_inputs": bfloat16_inputs, "iterative": iterative})
