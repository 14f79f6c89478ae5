"""What the replica tells the process of a model on its second socket, which may be full for a while."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from deployments.backends.python.process.area import AreaFullError
from deployments.backends.python.process.channel import Channel, Writer
from deployments.backends.python.process.exchange import result_fields
from deployments.backends.python.process.in_turn import InTurn
from protocol.errors import ServingError
from protocol.infer import InferResponse

_RETRY_S: Final = 0.002
MAX_WAITING: Final = 200_000


class Outbox:
    """Sends messages in order; any thread may. `overrun` is called when a process leaves too many unread."""

    def __init__(self, channel: Channel, overrun: Callable[[], None], max_waiting: int = MAX_WAITING) -> None:
        self._channel = channel
        self._overrun = overrun
        self._max_waiting = max_waiting
        self._waiting: deque[bytes] = deque()
        self._timer: threading.Timer | None = None
        self._closed = False
        self._in_turn = InTurn()

    def send(self, kind: str, writer: Writer | None, *fields: Any) -> None:
        """Send a message, now or as soon as there is room.

        What the garbage collector sends on this thread, in the middle of another message, follows that.

        Raises:
            AreaFullError: there is no shared memory for its tensors.
        """
        self._in_turn(self._put, kind, writer, *fields)

    def send_result(
        self, number: int, final: bool, names: tuple[str, ...], outcome: InferResponse | ServingError
    ) -> bool:
        """Send what a call came to; returns False when there is no room for it, as the process is told then."""
        writer = Writer()
        fields = result_fields(outcome, writer)
        try:
            self.send("result", writer, number, final, names, fields)
        except AreaFullError as error:
            self.send("result", None, number, True, names, result_fields(error.told(), Writer()))
            return False
        return True

    def close(self) -> None:
        """Send nothing more."""
        with self._in_turn.lock:
            self._closed = True
            self._waiting.clear()
            if self._timer is not None:
                self._timer.cancel()

    def _put(self, kind: str, writer: Writer | None, *fields: Any) -> None:
        if self._closed:  # and so are the files that large tensors would be written to
            return
        self._flush()
        if len(self._waiting) >= self._max_waiting:
            self._overrun()
            return
        self._waiting.append(self._channel.packed(kind, writer, *fields))
        self._flush()

    def _flush(self) -> None:
        """Send what waits, unless the socket was full only just now."""
        waiting = self._waiting
        while waiting and self._timer is None:
            try:
                self._channel.connection.send(waiting[0])
            except BlockingIOError:
                timer = threading.Timer(_RETRY_S, self._in_turn, (self._flush_again,))
                timer.daemon = True
                try:
                    timer.start()
                except RuntimeError:  # the system has no more threads: the next message tries again
                    return
                self._timer = timer
            except OSError:
                waiting.clear()  # the process is dead
            else:
                waiting.popleft()

    def _flush_again(self) -> None:
        self._timer = None
        self._flush()
