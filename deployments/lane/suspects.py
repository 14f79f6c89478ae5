"""Requests of one model version that were in a replica when it died: one of them may be what it died of."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from deployments.lane.client import LaneCall
from deployments.lane.frames import Buffer
from deployments.lane.sink import Sink
from protocol.errors import QueueFull, ServingError, Unavailable

MAX_WAIT_S: Final = 60.0
_LIKELY_COUNT: Final = 8


class Suspects:
    """Sends them again, the oldest first.

    Schedulers take requests in order, so the one that kills is among the oldest: the first eight go one after the
    other, each with a replica to itself (`send` is told so), and then all others at once. Those that were in two deaths
    go before them, alone too. They wait for a replica, where one is `expected`, as long as `max_wait_s`: who gets 503
    for a request that kills might send it again and again. So do the others while the one that died is being replaced.
    """

    def __init__(
        self,
        send: Callable[[LaneCall, bool], ServingError | None],
        expected: Callable[[], bool],
        max_wait_s: float = MAX_WAIT_S,
    ) -> None:
        self._send = send
        self._expected = expected
        self._max_wait_s = max_wait_s
        self._waiting: deque[LaneCall] = deque()
        self._under_way: LaneCall | None = None
        self._cleared = 0
        self._sending = False
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting) or self._under_way is not None

    @property
    def waiting_count(self) -> int:
        """How many are on no lane."""
        return len(self._waiting)

    def add(self, calls: Iterable[LaneCall]) -> None:
        """Take calls, in the order in which they had been sent; some may have been taken before."""
        first: list[LaneCall] = []
        for call in calls:
            if not isinstance(call.sink, _SuspectSink) or call.sink.suspects is not self:
                call.sink = _SuspectSink(call, call.sink, self)
            call.given_up = self._give_up
            if call is self._under_way:
                self._under_way = None
            (first if call.deaths > 1 else self._waiting).append(call)
        self._waiting.extendleft(reversed(first))
        self.go_on()

    def cleared(self, call: LaneCall) -> None:
        """Note that a call has got its last response, or an error, or has had its time with the replica to itself."""
        if call is self._under_way:
            self._under_way = None
            self._cleared += 1
            self.go_on()

    def _give_up(self, call: LaneCall) -> None:
        """Forget a call that its client has cancelled."""
        if call is self._under_way:
            self.cleared(call)
        elif call in self._waiting:
            self._waiting.remove(call)
            self.go_on()

    def go_on(self) -> None:
        """Send what may go now."""
        if self._sending:  # an error came at once
            return
        self._sending = True
        while self._waiting and self._under_way is None:
            call = self._waiting.popleft()
            alone = call.deaths > 1 or self._cleared < _LIKELY_COUNT
            self._under_way = call if alone else None
            error = self._send(call, alone)
            waits = (call.deaths > 1 and self._expected()) or call.target.may_get_replica
            if waits and isinstance(error, Unavailable) and not isinstance(error, QueueFull):
                self._under_way = None
                self._waiting.appendleft(call)
                break
            if error is not None:
                call.target.refuse(call, error)
        self._sending = False
        self._watch_wait()
        if not self:
            self._cleared = 0

    def _watch_wait(self) -> None:
        """Bound the time for which they wait for a replica."""
        waits = bool(self._waiting) and self._under_way is None
        if waits and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._max_wait_s, self._refuse_waiting)
        elif not waits and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse_waiting(self) -> None:
        self._timer = None
        while self._waiting:
            call = self._waiting.popleft()
            call.target.refuse(call, Unavailable(f"no replica of model '{call.target.model_name}' has started in time"))


class _SuspectSink:
    """Passes the answer on and says when it is complete."""

    __slots__ = ("_call", "_sink", "suspects")

    def __init__(self, call: LaneCall, sink: Sink, suspects: Suspects) -> None:
        self._call = call
        self._sink = sink
        self.suspects = suspects

    def on_response(self, json_length: int | None, parts: Sequence[Buffer], final: bool) -> None:
        self._sink.on_response(json_length, parts, final)
        if final:
            self.suspects.cleared(self._call)

    def on_error(self, error: ServingError) -> None:
        self._sink.on_error(error)
        self.suspects.cleared(self._call)
