"""What stands between a connection and whoever answers a request that cannot take the direct way."""

from collections.abc import Sequence
from typing import Protocol

from deployments.lane.frames import Buffer
from deployments.lane.sink import Target
from protocol.errors import ServingError


class Exchange(Protocol):
    """One request and its answer."""

    def start(self) -> None:
        """Begin; the connection may be told before this returns."""
        ...

    def disconnect(self) -> None:
        """The client has gone: give up, and tell the connection nothing more."""
        ...


class ExchangeConnection(Protocol):
    """The connection's side of an exchange."""

    @property
    def unsent_bytes(self) -> int:
        """How much of what was written the client has not taken yet."""
        ...

    def write(self, data: Buffer) -> None:
        """Send bytes."""
        ...

    @property
    def receive_began_ns(self) -> int:
        """When the request came, 0 if all of it came at once."""
        ...

    @property
    def head_end(self) -> bytes:
        """What the head of the answer ends with: Date, Connection where it must be said, and the empty line."""
        ...

    def close_after_answer(self) -> None:
        """Let the answer be the last on this connection; before its head is written."""
        ...

    def hold(self, size: int) -> bool:
        """Count bytes of the request's body into the total of all connections; False when there are too many."""
        ...

    def finish(self) -> None:
        """The answer is complete."""
        ...

    def give_up(self, reason: str) -> None:
        """Close, whatever was not sent, and log why."""
        ...

    def on_response(self, json_length: int | None, parts: Sequence[Buffer], final: bool) -> None:
        """Send an inference response as it is, and finish."""
        ...

    def on_error(self, error: ServingError, target: Target | None = None) -> None:
        """Send an error, and finish; `target` had the request, if one had."""
        ...

    def note(self, status: int, message: str, target: Target | None = None) -> None:
        """Have an error that is sent otherwise logged and counted."""
        ...
