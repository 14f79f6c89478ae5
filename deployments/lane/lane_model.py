"""What the replica's end of a lane needs of a loaded model version."""

from collections.abc import Callable, Sequence
from typing import Protocol

from deployments.lane.slow_codec import SlowCodec
from deployments.lane.wire import WireCodec
from protocol.infer import InferRequest
from protocol.trace import Trace


class LaneModel(Protocol):
    """Reads, runs and answers the requests that a lane brings it; `interface` is a digest of its inputs and outputs."""

    codecs: tuple[WireCodec, ...]
    slow: SlowCodec
    capacity: int
    sequence_idle_us: int
    says_ready: bool
    gpus: Sequence[str]
    interface: str

    def end_sequence(self, sequence_id: int | str) -> None:
        """End a sequence that has started anew in another replica."""
        ...

    def follow(self, request: InferRequest, trace: Trace) -> None:
        """Trace a request that is about to be submitted."""
        ...

    @property
    def submit_request(self) -> Callable[[InferRequest], None]:
        """Takes a request."""
        ...

    @property
    def cancel_request(self) -> Callable[[InferRequest], None]:
        """Gives a request up."""
        ...
