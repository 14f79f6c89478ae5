"""Requests of one model version that were in a replica when it died: one of them may be what it died of."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from deployments.lane.client import LaneCall
from deployments.lane.frames import Buffer
from deployments.lane.sink import Sink
from protocol.errors import ServingError

_ANSWERS_PER_STEP: Final = 8


class Suspects:
    """Sends them again, the oldest first: one at a time, and one more at a time after each eight that were answered.

    Schedulers take requests in order, so the one that kills is among the oldest, and goes alone. All that come after
    those need about as many rounds as the square root of sixteen times their number.
    """

    def __init__(self, send: Callable[[LaneCall], ServingError | None]) -> None:
        self._send = send
        self._waiting: deque[LaneCall] = deque()
        self._under_way: set[LaneCall] = set()
        self._answered = 0
        self._sending = False

    def __bool__(self) -> bool:
        return bool(self._waiting or self._under_way)

    def add(self, calls: Iterable[LaneCall]) -> None:
        """Take calls, in the order in which they had been sent."""
        for call in calls:
            call.sink = _SuspectSink(call, call.sink, self)
            call.given_up = self._give_up
            self._waiting.append(call)
        self._go_on()

    def answered(self, call: LaneCall) -> None:
        """Note that a call has got its last response, or an error."""
        if call in self._under_way:
            self._under_way.discard(call)
            self._answered += 1
            self._go_on()

    def _give_up(self, call: LaneCall) -> None:
        """Forget a call that its client has cancelled."""
        if call in self._under_way:
            self.answered(call)
        elif call in self._waiting:
            self._waiting.remove(call)

    def _go_on(self) -> None:
        if self._sending:  # an error came at once
            return
        self._sending = True
        while self._waiting and len(self._under_way) <= self._answered // _ANSWERS_PER_STEP:
            call = self._waiting.popleft()
            self._under_way.add(call)
            error = self._send(call)
            if error is not None:
                call.target.refuse(call, error)
        self._sending = False
        if not self:
            self._answered = 0


class _SuspectSink:
    """Passes the answer on and says when it is complete."""

    __slots__ = ("_call", "_sink", "_suspects")

    def __init__(self, call: LaneCall, sink: Sink, suspects: Suspects) -> None:
        self._call = call
        self._sink = sink
        self._suspects = suspects

    def on_response(self, json_length: int | None, parts: Sequence[Buffer], final: bool) -> None:
        self._sink.on_response(json_length, parts, final)
        if final:
            self._suspects.answered(self._call)

    def on_error(self, error: ServingError) -> None:
        self._sink.on_error(error)
        self._suspects.answered(self._call)
