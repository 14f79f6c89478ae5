"""Requests that wait for the first replica of a model that has none at the moment."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from deployments.lane.client import LaneCall
from protocol.errors import QueueFull, ServingError, Unavailable

MAX_CALLS: Final = 1000
MAX_BYTES: Final = 64 << 20
MAX_WAIT_S: Final = 60.0


class WaitingCalls:
    """A bounded queue; `wake` is called when a call comes, `refuse` for one that has waited for `max_wait_s`.

    One call may wait whatever its size: it would wake nobody else.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        refuse: Callable[[LaneCall, ServingError], None],
    ) -> None:
        self.wake = wake
        self.max_wait_s = MAX_WAIT_S
        self._refuse = refuse
        self._calls: deque[tuple[float, LaneCall]] = deque()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: LaneCall) -> ServingError | None:
        """Have a call wait; returns why it may not."""
        if len(self._calls) >= MAX_CALLS or (self._bytes and self._bytes + call.size > MAX_BYTES):
            return QueueFull()
        loop = asyncio.get_running_loop()
        self._calls.append((loop.time() + self.max_wait_s, call))
        self._bytes += call.size
        call.given_up = self._forget
        if self._timer is None:
            self._timer = loop.call_at(self._calls[0][0], self._expire)
        self.wake()
        return None

    def release(self) -> list[LaneCall]:
        """Return the calls in the order in which they came, and keep none."""
        calls = [call for _, call in self._calls]
        self._calls.clear()
        self._bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for call in calls:
            call.given_up = None
        return calls

    def _forget(self, gone: LaneCall) -> None:
        kept = deque((ends_s, call) for ends_s, call in self._calls if call is not gone)
        self._bytes -= gone.size if len(kept) < len(self._calls) else 0
        self._calls = kept

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._calls and self._calls[0][0] <= loop.time():
            _, call = self._calls.popleft()
            self._bytes -= call.size
            call.given_up = None
            self._refuse(call, Unavailable(f"no replica of model '{call.target.model_name}' has started in time"))
        if self._calls:
            self._timer = loop.call_at(self._calls[0][0], self._expire)
