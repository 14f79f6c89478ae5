"""The tree of errors a client can see, each class with its HTTP status and gRPC code.

    ServingError
    ├── InvalidArgument   400   3
    │   └── UnknownSequence
    ├── NotFound          404   5
    ├── AlreadyExists     400   6
    ├── Cancelled         400   1
    ├── Unavailable       503  14
    │   ├── QueueFull     503  14
    │   └── Restricted    403  14
    ├── Unauthenticated   401  16
    ├── Forbidden         403   7
    ├── Unsupported       501  12
    ├── Internal          500  13
    └── Unknown           400   2

Source: Triton's HttpCodeFromError and its gRPC status map.
"""

import errno
from collections.abc import Callable
from typing import Any, ClassVar, Final, Self

from eagleray.errors import restore


class ServingError(Exception):
    """One request failed; `str(error)` is the one sentence the client is told."""

    http_status: ClassVar[int] = 500
    grpc_code: ClassVar[int] = 13
    refused = False
    """Whether the request was refused before any model had it; only a sink needs to know."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def without_frames(self) -> Self:
        """Return the error, without the frames that it was raised in.

        They have the batch, which has the error: together they would keep its tensors until a garbage collection.
        """
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        """Travel by name: a process that an error arrives in may have a `protocol` of its own."""
        return restore, (type(self).__name__, self.message)


class InvalidArgument(ServingError):
    """The request itself is wrong; sending it again will not help."""

    http_status = 400
    grpc_code = 3


class UnknownSequence(InvalidArgument):
    """The request goes on with a sequence that is not under way here; another replica may hold it."""


class NotFound(ServingError):
    """No such model, version or region."""

    http_status = 404
    grpc_code = 5


class AlreadyExists(ServingError):
    """The name is taken."""

    http_status = 400
    grpc_code = 6


class Cancelled(ServingError):
    """The client gave the request up."""

    http_status = 400
    grpc_code = 1


class Unavailable(ServingError):
    """Not now: queue full, timeout expired, model not ready, server stopping."""

    http_status = 503
    grpc_code = 14


class QueueFull(Unavailable):
    """The model has not taken the request, as too many wait for it; another replica may."""

    def __init__(self, message: str = "Exceeds maximum queue size") -> None:
        super().__init__(message)


class Unsupported(ServingError):
    """Not offered here."""

    http_status = 501
    grpc_code = 12


class Restricted(Unavailable):
    """The operator allows this API only to requests with a certain header."""

    http_status = 403


class Unauthenticated(ServingError):
    """The client did not say who it is, or nobody knows it."""

    http_status = 401
    grpc_code = 16


class Forbidden(ServingError):
    """The client may do other things, but not this."""

    http_status = 403
    grpc_code = 7


class Internal(ServingError):
    """The server or the model failed."""

    http_status = 500
    grpc_code = 13


class Unknown(ServingError):
    """An error that a model reported without a kind of its own."""

    http_status = 400
    grpc_code = 2


BY_GRPC_CODE: dict[int, type[ServingError]] = {
    kind.grpc_code: kind
    for kind in (InvalidArgument, NotFound, AlreadyExists, Cancelled, Unavailable, Unsupported, Internal, Unknown)
}


def from_grpc_code(code: int, message: str) -> ServingError:
    """Return the error that a peer named by its gRPC code; codes outside the tree become `Internal`."""
    return BY_GRPC_CODE.get(code, Internal)(message)


_EXHAUSTED: Final = {
    errno.EMFILE: "the server may open no more files",
    errno.ENFILE: "the server may open no more files",
    errno.ENOMEM: "the server has no memory left",
    errno.ENOSPC: "the server has no room left, on a disk or in shared memory",
}


def unexpected(error: BaseException | None, sentence: str = "internal server error") -> ServingError:
    """Return what a client hears of an error that is not for it: `Unavailable` where the machine has no more."""
    exhausted = ""
    if isinstance(error, OSError):
        exhausted = _EXHAUSTED.get(error.errno or 0, "")
    elif isinstance(error, MemoryError):
        exhausted = _EXHAUSTED[errno.ENOMEM]
    elif isinstance(error, RuntimeError) and "can't start new thread" in str(error):  # as CPython says it
        exhausted = "the server can start no more threads"
    return Unavailable(exhausted) if exhausted else Internal(sentence)
