"""A replica of Serve whose constructor fails: its log says why, and what is half made has nothing to free."""

import functools
import logging
from collections.abc import Callable
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

_SERVE: Final = logging.getLogger("ray.serve")

Replica = TypeVar("Replica")
P = ParamSpec("P")


def tells_why_it_fails(construct: Callable[Concatenate[Replica, P], None]) -> Callable[Concatenate[Replica, P], None]:
    """Decorate a constructor that Serve calls.

    Serve tells its controller alone why one has failed, and calls the `__del__` of what that has left, which would fail
    for want of something that was to come: the log of a model would name that instead.
    """

    @functools.wraps(construct)
    def told(self: Replica, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            construct(self, *args, **kwargs)
        except Exception as error:
            _SERVE.error("the replica cannot start: %s: %s", type(error).__name__, error)
            vars(self)["__del__"] = _free_nothing
            raise

    return told


def _free_nothing(*_: Any) -> None:
    pass
