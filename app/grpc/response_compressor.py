"""Compresses the messages of one call's answer, in their order: a small one at once, any other in a thread."""

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from app.grpc.compression import compress
from app.grpc.context import CallContext
from app.grpc.status import OK
from deployments.lane.frames import Buffer
from deployments.lane.work_queue import Work
from protocol.errors import unexpected

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

    __slots__ = ("_call", "_encoding", "_finish", "_level", "_waiting", "_work", "waiting_bytes")

    def __init__(self, call: AnsweredCall, encoding: bytes, level: str) -> None:
        self._call = call
        self._encoding = encoding
        self._level = level
        self._waiting: deque[tuple[Sequence[Buffer], int]] = deque()
        self._finish = False
        self._work: Work | None = None
        self.waiting_bytes = 0

    @property
    def busy(self) -> bool:
        """Whether something has not left yet."""
        return self._work is not None

    def send(self, parts: Sequence[Buffer], size: int) -> None:
        """Take the next message."""
        if size <= _INLINE_BYTES and not self.busy:
            self._send(compress(self._encoding, self._level, parts))
            return
        self._waiting.append((parts, size))
        self.waiting_bytes += size
        if not self.busy:
            self._begin()

    def finish_after(self) -> None:
        """End the call once the last message has left; only while `busy`."""
        self._finish = True

    def _send(self, data: bytes) -> None:
        self._call.send_message((data,), len(data), compressed=True)

    def give_up(self) -> None:
        """Send nothing more."""
        self._waiting.clear()
        if self._work is not None:
            self._work.withdraw()
            self._work = None

    def _begin(self) -> None:
        parts, size = self._waiting.popleft()
        run = partial(compress, self._encoding, self._level, parts)
        self._work = self._call.context.packing.submit(run, lambda data, error: self._compressed(data, error, size))

    def _compressed(self, data: bytes, error: BaseException | None, size: int) -> None:
        self._work = None
        self.waiting_bytes -= size
        if error is not None:
            failure = unexpected(error)
            self._call.finish(failure.grpc_code, failure.message)
            return
        if self._waiting:
            self._begin()
        self._send(data)
        if self._finish and not self.busy:
            self._call.finish(OK, "")
