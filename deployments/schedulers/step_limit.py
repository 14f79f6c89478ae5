"""`max_inflight_requests` of an ensemble: how many requests of each step are under way at the same time."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from deployments.core.clock import Clock
from deployments.core.router import Router
from deployments.schedulers.ensemble_plan import Step
from deployments.schedulers.scheduler import reply
from protocol.errors import Cancelled, ServingError, Unavailable
from protocol.infer import InferRequest, InferResponse, Reply

Send = Callable[[InferRequest], None]

MAX_WAITING: Final = 65_536


class StepLimit:
    """Sends a step at most `limit` requests at a time; the others wait, first come, first served.

    The limit holds over all requests to the ensemble in this process.
    """

    def __init__(self, limit: int, send: Send, clock: Clock) -> None:
        self._free = limit
        self._send = send
        self._call_soon = clock.call_soon
        self._waiting: OrderedDict[InferRequest, None] = OrderedDict()

    def submit(self, request: InferRequest) -> None:
        """Send the request now, or when others have ended."""
        if self._free:
            self._start(request)
        elif len(self._waiting) < MAX_WAITING:
            request.context = self
            self._waiting[request] = None
        else:
            self._call_soon(partial(reply, request, Unavailable("Exceeds maximum queue size")))

    def withdraw(self, request: InferRequest) -> None:
        """End a request that waits as cancelled."""
        del self._waiting[request]
        request.context = None
        self._call_soon(partial(reply, request, Cancelled("")))

    def _start(self, request: InferRequest) -> None:
        self._free -= 1
        request.context = None
        request.reply = partial(self._replied, request.reply)
        self._send(request)

    def _replied(self, answer: Reply, request: InferRequest, result: InferResponse | ServingError) -> None:
        if isinstance(result, ServingError) or result.final:
            request.reply = answer
            self._free += 1
        answer(request, result)
        while self._free and self._waiting:
            self._start(self._waiting.popitem(last=False)[0])


def withdraw_waiting(requests: Iterable[InferRequest]) -> None:
    """End those of the requests that wait for others to end."""
    for request in requests:
        if isinstance(request.context, StepLimit):
            request.context.withdraw(request)


def limited(limit: int, router: Router, steps: Sequence[Step], clock: Clock) -> tuple[list[Send], Send]:
    """Return how each step is sent requests, and how one is given up; a `limit` of 0 is none."""
    sends: list[Send] = [
        partial(router.infer, step.model_name, step.version, interface=step.signature.interface) for step in steps
    ]
    if not limit:
        return sends, router.cancel

    def cancel(request: InferRequest) -> None:
        if isinstance(request.context, StepLimit):
            request.context.withdraw(request)
        else:
            router.cancel(request)

    return [StepLimit(limit, send, clock).submit for send in sends], cancel
