"""Compresses the messages of one call's answer, in their order: a small one at once, any other in a thread."""

from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from app.grpc.compression import compress
from app.grpc.context import CallContext
from app.grpc.status import OK
from deployments.lane.frames import Buffer

_INLINE_BYTES: Final = 32 << 10


class AnsweredCall(Protocol):
    """The call, as far as its answer goes."""

    context: CallContext
    done: bool

    def send_message(self, parts: Sequence[Buffer], size: int, compressed: bool = False) -> None:
        """Send one message."""
        ...

    def finish(self, code: int, message: str) -> None:
        """End the call with a status."""
        ...


class ResponseCompressor:
    """Belongs to a call, which ends only when everything given to `send` has left.

    `waiting_bytes` are those of messages that are not compressed yet.
    """

    __slots__ = ("_call", "_encoding", "_finish", "_level", "_waiting", "busy", "waiting_bytes")

    def __init__(self, call: AnsweredCall, encoding: bytes, level: str) -> None:
        self._call = call
        self._encoding = encoding
        self._level = level
        self._waiting: deque[tuple[Sequence[Buffer], int]] = deque()
        self._finish = False
        self.busy = False
        self.waiting_bytes = 0

    def send(self, parts: Sequence[Buffer], size: int) -> None:
        """Take the next message."""
        if size <= _INLINE_BYTES and not self.busy:
            self._send(compress(self._encoding, self._level, parts))
            return
        self._waiting.append((parts, size))
        self.waiting_bytes += size
        if not self.busy:
            self.busy = True
            self._call.context.start(self._run())

    def finish_after(self) -> None:
        """End the call once the last message has left; only while `busy`."""
        self._finish = True

    def _send(self, data: bytes) -> None:
        self._call.send_message((data,), len(data), compressed=True)

    async def _run(self) -> None:
        loop = self._call.context.loop
        while self._waiting and not self._call.done:
            parts, size = self._waiting.popleft()
            data = await loop.run_in_executor(None, compress, self._encoding, self._level, parts)
            self.waiting_bytes -= size
            if not self._call.done:
                self._send(data)
        self.busy = False
        if self._finish:
            self._call.finish(OK, "")
