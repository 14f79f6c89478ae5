"""`pb_utils.InferenceResponse`: the output tensors or the error that a model answers with."""

import json
from collections.abc import Iterable, Mapping

from deployments.backends.python.errors import TritonError, TritonModelException
from deployments.backends.python.tensor import Tensor
from deployments.backends.python.text import plain_text
from protocol.infer import Parameter


class InferenceResponse:
    """Output tensors, or an error that fails only the request it answers."""

    __slots__ = ("_error", "_output_tensors", "_parameters")

    def __init__(
        self,
        output_tensors: Iterable[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, Parameter] | None = None,
    ) -> None:
        self._output_tensors = tuple(output_tensors)
        for tensor in self._output_tensors:
            if not isinstance(tensor, Tensor):
                if tensor is None:
                    raise TritonModelException("Output tensor for inference response should not be empty.")
                raise TypeError(f"'output_tensors' must be Tensors, found type '{type(tensor)}'.")
        self._error = error
        self._parameters = None if parameters is None else checked_parameters(parameters)

    def output_tensors(self) -> list[Tensor]:
        """Return the output tensors."""
        return list(self._output_tensors)

    def has_error(self) -> bool:
        """Return whether the response is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error, None if there is none."""
        return self._error

    def parameters(self) -> str:
        """Return the parameters as JSON text."""
        return parameters_text(self._parameters)


def parameters_text(parameters: Mapping[str, Parameter] | None) -> str:
    """Return parameters as Triton writes them for a model: without blanks, and in UTF-8."""
    return json.dumps(parameters, separators=(",", ":"), ensure_ascii=False) if parameters else "{}"


def checked_parameters(parameters: dict[str, Parameter]) -> dict[str, Parameter]:
    """Return the parameters of a request or response, as they are now.

    Raises:
        TritonModelException: they are no dictionary of strings, integers of 64 bits and bools.
    """
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect parameters to be a dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, bool | int | str):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise TritonModelException(f"Expect parameters values of 64 bits at most, found {value.bit_length()}")
    return {plain_text(key): _plain(value) for key, value in parameters.items()}


def _plain(value: Parameter) -> Parameter:
    """Return a value of a class of its own, such as an enumeration's, as what it derives from."""
    if isinstance(value, bool):
        return value
    return plain_text(value) if isinstance(value, str) else int(value)
