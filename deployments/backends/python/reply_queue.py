"""Brings what a decoupled model sends to the event loop, a little in each of its turns."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from deployments.backends.answer import Outcome
from deployments.backends.python.byte_tensor import host_bytes
from deployments.log.line_format import about_requests
from protocol.infer import InferRequest, StreamedResponse

_LOG = logging.getLogger(__name__)

_A_TURN: Final = 64
_MOST: Final = 1024
_MOST_BYTES: Final = 64 << 20
_LOOK_S: Final = 1.0


class ReplyQueue:
    """Brings outcomes from any thread to `request.reply` on the loop's thread, in order, at most 64 in one turn.

    A thread that sends faster than the loop replies waits while 1,024 outcomes do, or 64 MiB of such as it has sent.
    Else they would fill the memory, and the loop would come to nothing else, cancellations among it.
    """

    def __init__(self, call_soon_threadsafe: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon_threadsafe = call_soon_threadsafe
        self._outcomes: deque[tuple[InferRequest, Outcome]] = deque()
        self._scheduled = False
        self._loop_thread = 0
        self._room = threading.Condition()
        self._waiting_count = 0
        call_soon_threadsafe(self._drain)  # which learns the loop's thread

    def put(self, request: InferRequest, outcome: Outcome) -> None:
        """Deliver the outcome in one of the loop's next turns; waits for room unless it ends its request.

        Raises:
            RuntimeError: the loop is closed.
        """
        outcomes = self._outcomes
        outcomes.append((request, outcome))
        if not self._scheduled:
            self._scheduled = True
            self._call_soon_threadsafe(self._drain)
        if len(outcomes) > 1 and isinstance(outcome, StreamedResponse) and not outcome.final:
            size = sum([host_bytes(array) for array in outcome.outputs.values()])
            most = min(_MOST, _MOST_BYTES // size) if size else _MOST
            if len(outcomes) > most and self._loop_thread not in (0, threading.get_ident()):
                self._wait(request, most)

    def _wait(self, request: InferRequest, most: int) -> None:
        with self._room:
            self._waiting_count += 1
            try:
                while len(self._outcomes) > most and not request.cancelled:
                    if not self._room.wait(_LOOK_S):
                        self._call_soon_threadsafe(_nothing)  # which a closed loop refuses
            finally:
                self._waiting_count -= 1

    def _drain(self) -> None:
        self._loop_thread = threading.get_ident()
        outcomes = self._outcomes
        for _ in range(min(len(outcomes), _A_TURN)):
            request, outcome = outcomes.popleft()
            try:
                request.reply(request, outcome)
            except Exception:
                whose = about_requests("", None, (request,))
                _LOG.exception("the reply to request '%s' failed", request.id, extra=whose)
        if self._waiting_count:
            with self._room:
                self._room.notify_all()
        self._scheduled = False  # before the last look: a put that comes after it schedules again
        if outcomes and not self._scheduled:
            self._scheduled = True
            self._call_soon_threadsafe(self._drain)


def _nothing() -> None:
    pass
