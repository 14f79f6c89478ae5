"""A model whose responses come at set times: of a decoupled one sent by the event loop, without a thread."""

import time
from collections.abc import Iterator
from typing import NamedTuple

from deployments.backends.backend import Batch
from deployments.core.clock import Clock
from deployments.core.traced_request import begin_streams
from protocol.errors import Cancelled, Internal, ServingError
from protocol.infer import Array, InferRequest, InferResponse, StreamedResponse


class Step(NamedTuple):
    """One response: how long after the one before it; its outputs, None for none at all, or an error."""

    delay_s: float
    outcome: dict[str, Array] | ServingError | None


class TimedInstance:
    """Answers each request by its `plan`; a subclass says what that is, and how long `execute` takes.

    A request to a model that is not decoupled has one response; any other number is an error, in Triton's words.
    """

    def __init__(self, name: str, clock: Clock, decoupled: bool) -> None:
        self.name = name
        self.may_run_inline = False
        self._clock = clock
        self._decoupled = decoupled

    def plan(self, request: InferRequest) -> Iterator[Step]:
        """Yield the steps of a request; may raise `ServingError` before the first."""
        raise NotImplementedError

    def busy_s(self, request: InferRequest) -> float:
        """Return how long the instance takes no other request."""
        return 0.0

    def execute(self, batch: Batch) -> None:
        """Begin the responses and wait as long as the request says; `ModelInstance.execute`."""
        batch.infer_start_ns = time.monotonic_ns()
        if not self._decoupled:
            batch.results = [self._answer(request) for request in batch.requests]
            batch.infer_end_ns = time.monotonic_ns()
            return
        begin_streams(batch, batch.infer_start_ns)
        wait_s = 0.0
        for request in batch.requests:
            wait_s = max(wait_s, self.busy_s(request))
            self._clock.call_soon_threadsafe(_Run(self._clock, request, self.plan(request)).advance)
        time.sleep(wait_s)
        batch.infer_end_ns = time.monotonic_ns()
        batch.answered = True

    def _answer(self, request: InferRequest) -> InferResponse | ServingError:
        """Return the only response, once the instance would take another request."""
        began_ns = time.monotonic_ns()
        responses = []
        try:
            for step in self.plan(request):
                time.sleep(step.delay_s)
                if isinstance(step.outcome, ServingError):
                    return step.outcome
                if step.outcome is not None:
                    responses.append(InferResponse(_wanted(request, step.outcome)))
        except ServingError as error:
            return error
        time.sleep(max(0.0, self.busy_s(request) - (time.monotonic_ns() - began_ns) / 1e9))
        if len(responses) != 1:
            return Internal(f"expected a single response, got {len(responses)}")
        return responses[0]

    def close(self) -> None:
        """Hold nothing: a loaded version waits for its streams before its instances go."""


def _wanted(request: InferRequest, outputs: dict[str, Array]) -> dict[str, Array]:
    wanted = request.outputs
    return {name: array for name, array in outputs.items() if wanted is None or name in wanted}


class _Run:
    """One request under way; belongs to the loop's thread."""

    __slots__ = ("_clock", "_next", "_request", "_steps")

    def __init__(self, clock: Clock, request: InferRequest, steps: Iterator[Step]) -> None:
        self._clock = clock
        self._request = request
        self._steps = steps
        self._next: Step | None = None

    def advance(self) -> None:
        """Send what is due, and wait for the next."""
        try:
            step = next(self._steps, None)
        except ServingError as error:
            self._reply(error)
            return
        if step is None:
            self._reply(StreamedResponse({}, None, True, 0))
            return
        self._next = step
        if step.delay_s:
            self._clock.call_later(step.delay_s, self._send)
        else:
            self._clock.call_soon(self._send)

    def _send(self) -> None:
        assert self._next is not None
        outcome = self._next.outcome
        if self._request.cancelled:
            self._reply(Cancelled(""))
            return
        if isinstance(outcome, ServingError):
            self._reply(outcome)
            return
        if outcome is not None:
            self._reply(StreamedResponse(_wanted(self._request, outcome), None, False, 0))
        self.advance()

    def _reply(self, outcome: StreamedResponse | ServingError) -> None:
        self._request.reply(self._request, outcome)
