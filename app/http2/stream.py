"""One stream of a connection, as the connection sees it; an application's calls derive from it."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from app.http2.frames import FLOW_CONTROL_ERROR
from app.http2.sender import SendState
from deployments.lane.frames import Buffer


class StreamOwner(Protocol):
    """What a stream asks of its connection."""

    initial_credit_bytes: int
    loop: asyncio.AbstractEventLoop

    def grant(self, stream_id: int, size: int) -> None:
        """Let the peer send more on a stream."""
        ...

    def close_stream(self, stream: "Stream") -> None:
        """Forget a stream whose end was sent."""
        ...

    def send_data(self, stream: "Stream", parts: Sequence[Buffer]) -> None:
        """Send DATA, now or when the windows allow."""
        ...

    def reset(self, stream: "Stream", code: int) -> None:
        """End a stream because of what the peer did."""
        ...


class Stream(SendState):
    """What a peer sends on a stream arrives through the methods below; all run on the loop's thread."""

    __slots__ = ("connection", "credit_bytes", "opened_s", "peer_ended")

    def __init__(self, connection: StreamOwner, stream_id: int) -> None:
        super().__init__(stream_id)
        self.connection = connection
        self.credit_bytes = connection.initial_credit_bytes
        """What the peer may still send."""
        self.peer_ended = False
        self.opened_s = connection.loop.time()

    def finished(self) -> None:
        """The end of the stream has left, after waiting in the queue."""
        self.connection.close_stream(self)

    def receive(self, data: Buffer, end: bool) -> None:
        """Take DATA, or a piece of it, a memoryview of which is valid during the call only.

        `end`: the peer sends nothing more. Neither credit nor end are noted yet.
        """
        raise NotImplementedError

    def receive_run(self, view: memoryview, at: int, head: memoryview, size: int) -> int:
        """Take as many more frames of DATA with this head as are in the middle of a message; returns where they end."""
        return at

    def aborted(self) -> None:
        """The stream is over: the peer reset it, broke the protocol on it, or is gone. Send nothing."""
        raise NotImplementedError

    def expired(self) -> None:
        """What `connection.incomplete` holds a deadline for has not arrived in time."""
        raise NotImplementedError

    def server_stops(self) -> None:
        """The server takes no more, which is said about once a second: end as soon as nothing is under way."""

    def granted(self) -> None:
        """What was asked of `connection.reservations` is there."""
        raise NotImplementedError

    @property
    def due(self) -> bool:
        """Whether the stream would soon end by itself: to reset it now is what its time does anyway."""
        return False

    @property
    def held_bytes(self) -> int:
        """What has come of a request that is not complete, while `connection.incomplete` has it."""
        return 0

    def crowded_out(self) -> None:
        """All connections together hold too much of requests that are not complete, and this one the most here."""
        raise NotImplementedError

    def spend(self, size: int) -> bool:
        """Take received bytes off the credit; a peer that sent more than it may has its stream reset."""
        self.credit_bytes -= size
        if self.credit_bytes >= 0:
            return True
        self.connection.reset(self, FLOW_CONTROL_ERROR)
        return False

    def grant(self, size: int) -> None:
        """Let the peer send more."""
        self.credit_bytes += size
        self.connection.grant(self.stream_id, size)

    def send_data(self, parts: Sequence[Buffer]) -> None:
        """Send DATA, now or when the windows allow."""
        self.connection.send_data(self, parts)
