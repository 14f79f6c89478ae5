"""The errors that a model raises or puts into a response."""

from enum import IntEnum
from typing import Final

from deployments.backends.python.text import plain_text
from protocol.errors import (
    AlreadyExists,
    Cancelled,
    Internal,
    InvalidArgument,
    NotFound,
    ServingError,
    Unavailable,
    Unknown,
    Unsupported,
)

_MAX_CHARACTERS: Final = 4096


class TritonModelException(Exception):
    """Something in the model or in its use of `pb_utils` went wrong."""


class ErrorCode(IntEnum):
    """Whose error it is, by the numbers of `TRITONSERVER_Error_Code`."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class TritonError:
    """The error of one response; codes are those of `TRITONSERVER_Error_Code`."""

    __slots__ = ("_code", "_message")

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message = message.decode(errors="replace") if isinstance(message, bytes) else plain_text(str(message))
        self._code = code

    def message(self) -> str:
        """Return the text that the client gets."""
        return self._message

    def code(self) -> int:
        """Return the code that decides the HTTP status and the gRPC code."""
        return self._code

    def __str__(self) -> str:
        return self._message


_BY_TRITON_CODE: dict[int, type[ServingError]] = {
    TritonError.UNKNOWN: Unknown,
    TritonError.INTERNAL: Internal,
    TritonError.NOT_FOUND: NotFound,
    TritonError.INVALID_ARG: InvalidArgument,
    TritonError.UNAVAILABLE: Unavailable,
    TritonError.UNSUPPORTED: Unsupported,
    TritonError.ALREADY_EXISTS: AlreadyExists,
    TritonError.CANCELLED: Cancelled,
}


def told(error: BaseException) -> str:
    """Return an exception's type and message, as pybind11 words them, without the middle of a very long message.

    A message that cannot be made is left out.
    """
    try:
        text = plain_text(str(error)) or "<EMPTY MESSAGE>"
    except Exception:  # of its own `__str__`
        return type(error).__name__
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[: _MAX_CHARACTERS // 2]}...{text[-_MAX_CHARACTERS // 2 :]}"
    return f"{type(error).__name__}: {text}"


def to_serving_error(error: object) -> ServingError:
    """Return the error that a client sees for the error of a response; anything but a `TritonError` is `Internal`."""
    try:
        kind = _BY_TRITON_CODE.get(error.code(), Internal) if isinstance(error, TritonError) else Internal
        return kind(plain_text(error.message() if isinstance(error, TritonError) else str(error)))
    except Exception as failure:  # of its code or its text, which are a model's
        return Internal(told(failure))


def of_serving_error(error: ServingError) -> TritonError:
    """Return the error of a response to a call that ended with this one."""
    code = next((code for code, kind in _BY_TRITON_CODE.items() if isinstance(error, kind)), TritonError.INTERNAL)
    return TritonError(error.message, code)
