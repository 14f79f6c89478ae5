"""The forms in which a request travels as bytes, and the codec that a model version has for each."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from deployments.lane.frames import Buffer
from protocol.infer import InferRequest, InferResponse, Reply

HTTP: Final = 0
"""A KServe v2 HTTP body: JSON, then binary tensors; `json_length` says where the JSON ends."""
GRPC: Final = 1
"""A serialised ModelInferRequest, answered by serialised ModelInferResponses; `json_length` is None."""

GRPC_STREAM: Final = 2
"""A serialised ModelInferRequest, answered by serialised ModelStreamInferResponses; `json_length` is None."""


LONG_BYTES: Final = 1 << 18
"""Bodies up to this size are decoded in some milliseconds, whatever they hold."""


class WireCodec(Protocol):
    """Decodes requests to one model version and encodes its responses, in one form; errors are ServingErrors."""

    def decode(self, body: Buffer, json_length: int | None, reply: Reply, context: Any = None) -> InferRequest:
        """Return the checked request."""
        ...

    def reads_long(self, body: Buffer) -> bool:
        """Whether `decode` would keep a loop from its work; asked of bodies over `LONG_BYTES` only."""
        ...

    def encode(self, request: InferRequest, response: InferResponse) -> tuple[int | None, Sequence[Buffer]]:
        """Return the length of the JSON header, None without one, and the parts of the body."""
        ...

    def takes_long(self, request: InferRequest, response: InferResponse) -> bool:
        """Whether `encode` would keep a loop from its work; it may run in a thread then."""
        ...
