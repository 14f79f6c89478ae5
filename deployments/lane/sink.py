"""Who waits for the answer to a request that travels as bytes, and where such requests are sent."""

from collections.abc import Sequence
from typing import Any, Protocol

from deployments.lane.frames import Buffer
from deployments.lane.wire import HTTP
from protocol.errors import ServingError
from protocol.trace import Trace


class Sink(Protocol):
    """Takes the answer to one request, in its wire form."""

    def on_response(self, json_length: int | None, parts: Sequence[Buffer], final: bool) -> None:
        """Take one response: its body in parts, and the length of its JSON header (None: all of it is JSON)."""
        ...

    def on_error(self, error: ServingError) -> None:
        """Take the error that ends the request."""
        ...


class Target(Protocol):
    """A model version that requests can be sent to, wherever it runs."""

    model_name: str
    version: int

    @property
    def shared(self) -> bool:
        """Whether others wait for the loop that decodes its requests: this process's, or that of a packed replica."""
        ...

    @property
    def ready(self) -> bool:
        """Whether a request sent now would find a live instance."""
        ...

    def submit(
        self,
        parts: Sequence[Buffer],
        json_length: int | None,
        sink: Sink,
        wire: int = HTTP,
        trace: Trace | None = None,
    ) -> Any:
        """Send one request body in the form that `wire` names and return a token for `cancel`.

        The answer comes in the same form; the sink may be told before this returns. What becomes of a request with a
        `trace` is noted there.
        """
        ...

    def cancel(self, token: Any) -> None:
        """Give a request up; its sink hears nothing more."""
        ...


class VersionTarget(Target, Protocol):
    """One that leads to one version only."""

    def submit(
        self,
        parts: Sequence[Buffer],
        json_length: int | None,
        sink: Sink,
        wire: int = HTTP,
        trace: Trace | None = None,
        *,
        copied: bool = False,
    ) -> Any:
        """Send a request as `Target.submit` does; `copied` says that it is for a shadow."""
        ...

    def holds(self, sequence_id: int | str) -> bool:
        """Whether a sequence of this id is known to be under way there."""
        ...

    def may_be_elsewhere(self, token: Any, others: Sequence["VersionTarget"]) -> None:
        """Have these versions asked too, where the one that has got a request turns out not to know its sequence."""
        ...

    def end_sequence(self, sequence_id: int | str) -> None:
        """End a sequence that has started anew in another version."""
        ...
