"""One method of a gRPC service."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from app.service.service import Service

Handler = Callable[[Service, Any], bytes | Coroutine[Any, Any, bytes]]
"""Gets the message as `bytes`, that of a `large` method as a `Buffer`; returns the serialised answer."""


@dataclass(frozen=True, slots=True)
class Method:
    """What a head needs to know of it.

    `category` is that of Triton's --grpc-restricted-protocol; `handler` answers a method that is neither inference nor
    reflection. A `large` one may have messages as large as those of inference.
    """

    name: str
    category: str
    handler: Handler | None = None
    inference: bool = False
    large: bool = False
