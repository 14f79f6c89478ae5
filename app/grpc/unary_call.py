"""Calls with one request message and one response message."""

import asyncio
import logging
from time import monotonic_ns

from google.protobuf.message import DecodeError

from app.grpc.call import Call
from app.grpc.status import INTERNAL, OK
from deployments.lane.frames import Buffer
from protocol.errors import InvalidArgument, ServingError, unexpected

logger = logging.getLogger(__name__)


class UnaryCall(Call):
    """Collects the message; `dispatch` gets it when the request is complete."""

    __slots__ = ("_message", "receive_began_ns")

    _message: Buffer | None
    receive_began_ns: int
    """When the message came, unset if all of it came at once."""

    def receive(self, data: Buffer, end: bool) -> None:
        """Take DATA, which is mostly all of one message that is not compressed."""
        size = len(data)
        if (
            end
            and size >= 5
            and not self._received
            and size <= self.credit_bytes
            and not data[0]
            and int.from_bytes(data[1:5], "big") == size - 5
            and size - 5 <= self.head.max_message_bytes
            and self.head.content_length in (-1, size)
            and not self.done
        ):
            self.peer_ended = True
            self.dispatch(bytes(data[5:]))
        else:
            if not self._received:
                self.receive_began_ns = monotonic_ns()
            super().receive(data, end)

    def message(self, message: Buffer) -> None:
        """Keep the message until the client has said that it was the only one."""
        if getattr(self, "_message", None) is not None:
            self.finish(INTERNAL, "a unary call has one request message")
        else:
            self._message = message
            if not self.peer_ended:
                connection = self.connection
                connection.incomplete[self] = self.context.loop.time() + connection.limits.body_timeout_s

    @property
    def held_bytes(self) -> int:
        """What has come, also of a message that only waits for the client to say that it was all."""
        message = getattr(self, "_message", None)
        return super().held_bytes if message is None else len(message)

    def half_closed(self) -> None:
        """Dispatch the message."""
        self.connection.incomplete.pop(self, None)
        message = getattr(self, "_message", None)
        if message is None:
            self.finish(INTERNAL, "the request has no message")
        else:
            self._message = None
            self.dispatch(message)

    def dispatch(self, message: Buffer) -> None:
        """Act on the message."""
        raise NotImplementedError


class MethodCall(UnaryCall):
    """A call of anything but inference: the method's handler makes the answer, now or as a coroutine."""

    __slots__ = ("_task",)

    _task: asyncio.Task[bytes] | None

    def dispatch(self, message: Buffer) -> None:
        """Ask the handler."""
        method = self.head.method
        assert method is not None
        assert method.handler is not None
        try:
            answer = method.handler(self.context.service, message if method.large else bytes(message))
            if isinstance(answer, bytes):
                self._answer(answer)
            else:
                self._task = self.context.start(answer)
                self._task.add_done_callback(self._made)
        except Exception as error:
            self._failed(error)

    def _made(self, task: asyncio.Task[bytes]) -> None:
        if task.cancelled():
            return
        try:
            self._answer(task.result())
        except Exception as error:
            self._failed(error)

    def _answer(self, message: bytes) -> None:
        if not self.done:
            self.send_message((message,), len(message))
            self.finish(OK, "")

    def _failed(self, error: Exception) -> None:
        if isinstance(error, ServingError):
            self.fail(error)
        elif isinstance(error, DecodeError):
            assert self.head.method is not None
            self.fail(InvalidArgument(f"failed to parse the request of {self.head.method.name}"))
        else:
            assert self.head.method is not None
            logger.error("%s failed", self.head.method.name, exc_info=error)
            self.fail(unexpected(error))

    def cancelled(self) -> None:
        """Stop the handler."""
        task = getattr(self, "_task", None)
        if task is not None:
            task.cancel()
