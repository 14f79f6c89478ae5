"""`pb_utils.InferenceRequest` as a model makes it to call another model."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import partial
from operator import index
from typing import Any, TypeVar

from deployments.backends.python import bls
from deployments.backends.python.byte_tensor import to_bytes_elements
from deployments.backends.python.errors import TritonModelException
from deployments.backends.python.model_module import ModelModule, calling_model
from deployments.backends.python.response import InferenceResponse, checked_parameters, parameters_text
from deployments.backends.python.server import ModelCall
from deployments.backends.python.tensor import BFloat16Tensor, Tensor
from deployments.backends.python.text import plain_text, text_argument
from protocol.errors import InvalidArgument
from protocol.infer import Array, InferRequest, Parameter

T = TypeVar("T")


class MemoryType(IntEnum):
    """Host memory, or that of a GPU."""

    TRITONSERVER_MEMORY_CPU = 0
    TRITONSERVER_MEMORY_GPU = 2


class PreferredMemory:
    """Where a model would like the outputs of a call to be."""

    __slots__ = ("device_id", "memory_type")

    def __init__(
        self, preferred_memory_type: int = MemoryType.TRITONSERVER_MEMORY_CPU, preferred_device_id: int = 0
    ) -> None:
        self.memory_type = preferred_memory_type
        self.device_id = preferred_device_id


class InferenceTrace:
    """The trace that a request belongs to; a call that is given it passes it on.

    `_traced` is the served request where the server traces it.
    """

    __slots__ = ("_context", "_traced")

    def __init__(self, context: str | None = None, traced: InferRequest | None = None) -> None:
        self._context = context
        self._traced = traced

    def get_context(self) -> str | None:
        """Return the propagated OpenTelemetry context as JSON text, None without one."""
        return self._context


class InferenceRequest:
    """A request to another model of this server; requests that a model is given are of a subclass."""

    __slots__ = (
        "_correlation_id",
        "_flags",
        "_inputs",
        "_model_name",
        "_model_version",
        "_module",
        "_parameters",
        "_preferred_memory",
        "_request_id",
        "_requested_output_names",
        "_timeout_us",
        "_trace",
    )

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Iterable[Tensor] | None = None,
        requested_output_names: Sequence[str] | None = None,
        model_name: str | None = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: dict[str, Parameter] | None = None,
    ) -> None:
        """Make a request; `inputs`, `requested_output_names` and `model_name` must be given.

        Raises:
            TypeError: an argument is missing, or of another type.
            TritonModelException: an input is None, or a parameter no text, integer or bool.
        """
        if inputs is None or requested_output_names is None:
            raise TypeError("An InferenceRequest needs 'inputs', 'requested_output_names' and 'model_name'.")
        self._request_id = _text("request_id", request_id)
        self._model_name = _text("model_name", model_name)
        where = f"request with id '{request_id}' and model name '{model_name}'"
        self._inputs = tuple(inputs)
        for tensor in self._inputs:
            if tensor is None:
                raise TritonModelException(f"Input tensor for {where} should not be empty.")
            if not isinstance(tensor, Tensor):
                raise TypeError(f"'inputs' of an InferenceRequest must be Tensors, found type '{type(tensor)}'.")
        self._module: ModelModule | None = calling_model()
        self._correlation_id = _sequence_id(correlation_id)
        if isinstance(requested_output_names, str | bytes):
            raise TypeError("'requested_output_names' of an InferenceRequest must be a list of strings.")
        self._requested_output_names = [_text("requested_output_names", name) for name in requested_output_names]
        self._model_version = _integer("model_version", model_version, -1, 63)
        self._flags = _integer("flags", flags, 0, 32)
        self._timeout_us = _integer("timeout", timeout, 0, 64)
        self._preferred_memory = _instance("preferred_memory", preferred_memory, PreferredMemory)
        self._trace = _instance("trace", trace, InferenceTrace)
        self._parameters = None if parameters is None else checked_parameters(parameters)

    def inputs(self) -> list[Tensor]:
        """Return the input tensors."""
        return list(self._inputs)

    def input_tensor(self, name: str) -> Tensor | None:
        """Return the input of this name, None if the request has none."""
        for tensor in self._inputs:
            if tensor.name() == name:
                return tensor
        return None

    def request_id(self) -> str:
        """Return the client's id, "" without one."""
        return self._request_id

    def correlation_id(self) -> int | str:
        """Return the id of the sequence, 0 outside one."""
        return self._correlation_id

    def flags(self) -> int:
        """Return TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END, or-ed."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Replace the flags; raises TypeError if they are no number."""
        self._flags = _integer("flags", flags, 0, 32)

    def timeout(self) -> int:
        """Return the timeout in microseconds, 0 for none."""
        return self._timeout_us

    def parameters(self) -> str:
        """Return the parameters as JSON text."""
        return parameters_text(self._parameters)

    def trace(self) -> InferenceTrace:
        """Return the trace to hand on to calls of other models."""
        return self._trace

    def preferred_memory(self) -> PreferredMemory:
        """Return where the outputs should be."""
        return self._preferred_memory

    def requested_output_names(self) -> set[str]:
        """Return the names of the outputs that are asked for."""
        return set(self._requested_output_names)

    def model_name(self) -> str:
        """Return the name of the model to call."""
        return self._model_name

    def model_version(self) -> int:
        """Return the version to call, -1 for the highest ready one."""
        return self._model_version

    def is_cancelled(self) -> bool:
        """Return False; only a served request can be given up."""
        return False

    def set_release_flags(self, flags: int) -> None:
        """Refuse; only a served request can be released."""
        raise TritonModelException("set_release_flags is only supported on requests that execute was given.")

    def get_response_sender(self) -> Any:
        """Refuse; only a served request has a sender."""
        raise TritonModelException("get_response_sender is only supported on requests that execute was given.")

    def exec(self, decoupled: bool = False) -> InferenceResponse | bls.ResponseIterator:
        """Call the model and wait for its response; an error is one with `has_error`.

        `decoupled` is for models that answer with any number of responses: it returns their iterator.

        Raises:
            TritonModelException: outside `execute` and what it has started.
        """
        return bls.execute(self._module, partial(self._call, decoupled, goes_on=decoupled), decoupled)

    def async_exec(self, decoupled: bool = False) -> "asyncio.Future[InferenceResponse | bls.ResponseIterator]":
        """Call the model at once, and return a future of the running event loop. Raises as `exec`."""
        return bls.execute_async(self._module, partial(self._call, decoupled, goes_on=True), decoupled)

    def _call(
        self, decoupled: bool, parents: Sequence[InferRequest], callers: tuple[str, ...], *, goes_on: bool
    ) -> ModelCall:
        inputs = [tensor.on_host() for tensor in self._inputs]
        arrays: dict[str, Array] = {}
        for tensor in inputs:
            name = plain_text(tensor.name())
            if name in arrays:
                request_id = self._request_id or "<id_unknown>"
                raise InvalidArgument(f"[request id: {request_id}] input '{name}' already exists in request")
            arrays[name] = _sent(tensor)
        traced = self._trace._traced
        context = self._trace.get_context() if traced is None else None  # as a client's headers would say it
        parameters = self._parameters if context is None else {**json.loads(context), **(self._parameters or {})}
        return ModelCall(
            model_name=self._model_name,
            model_version=self._model_version,
            inputs=arrays,
            bfloat16=frozenset([plain_text(tensor.name()) for tensor in inputs if isinstance(tensor, BFloat16Tensor)]),
            outputs=tuple(self._requested_output_names) or None,
            request_id=self._request_id,
            sequence_id=self._correlation_id,
            flags=self._flags,
            timeout_us=self._timeout_us,
            parameters=parameters,
            decoupled=decoupled,
            parents=parents,
            callers=callers,
            traced=traced,
            goes_on=goes_on,
        )


def _sent(tensor: Tensor) -> Array:
    array = tensor.host_array(isinstance(tensor, BFloat16Tensor))
    return to_bytes_elements(array) if array.dtype.kind in "OSU" else array


def _integer(name: str, value: object, least: int, bits: int) -> int:
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"'{name}' of an InferenceRequest must be an integer, found type '{type(value)}'.") from None
    if not least <= number < 1 << bits:
        raise TypeError(f"'{name}' of an InferenceRequest is out of range: {number}")
    return number


def _instance(name: str, value: T | None, kind: type[T]) -> T:
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise TypeError(f"'{name}' of an InferenceRequest must be {kind.__name__}, found type '{type(value)}'.")
    return value


def _sequence_id(value: object) -> int | str:
    if isinstance(value, str):
        return plain_text(value)
    try:
        return _integer("correlation_id", value, 0, 64)
    except TypeError:
        raise TritonModelException("Correlation ID must be integer or string") from None


def _text(name: str, value: object) -> str:
    return text_argument(f"'{name}' of an InferenceRequest", value)
