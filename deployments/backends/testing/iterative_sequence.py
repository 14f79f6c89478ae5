"""The backend `iterative_sequence`: for INPUT = n, OUTPUT = n - 1, …, 0, one response for each time it runs."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np

from deployments.backends.backend import Batch, ModelInstance
from deployments.core.clock import Clock
from deployments.core.traced_request import begin_streams
from protocol.errors import Internal, ServingError
from protocol.infer import RESCHEDULED, InferRequest, StreamedResponse
from repository_loader.package import InstanceSpec, ModelPackage

NOT_ITERATIVE: Final = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
    "such a flag"
)


class IterativeSequenceBackend:
    """Sends one response and reschedules the request until none is left to send; fails where nothing may run again."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock

    def load(self, package: ModelPackage, specs: Sequence[InstanceSpec]) -> list[ModelInstance]:
        """Return an instance for each spec; `Backend.load`."""
        iterative = package.config.sequence_batching.iterative_sequence
        assert self._clock is not None
        return [IterativeSequenceInstance(spec.name, self._clock, iterative) for spec in specs]


class IterativeSequenceInstance:
    """Counts down, by correlation id."""

    def __init__(self, name: str, clock: Clock, iterative: bool) -> None:
        self.name = name
        self.may_run_inline = False
        self._clock = clock
        self._iterative = iterative
        self._left: dict[int | str, int] = {}

    def execute(self, batch: Batch) -> None:
        """Send the next response of each request; `ModelInstance.execute`."""
        batch.infer_start_ns = time.monotonic_ns()
        begin_streams(batch, batch.infer_start_ns)
        for request in batch.requests:
            taken = request.inputs["INPUT"]
            left = self._left.get(request.sequence_id, int(taken.flat[0])) - 1
            again = left > 0
            if again and self._iterative:
                self._left[request.sequence_id] = left
                request.flags |= RESCHEDULED
            else:
                self._left.pop(request.sequence_id, None)
            response = StreamedResponse({"OUTPUT": np.full(taken.shape, left, np.int32)}, None, not again, 0)
            self._clock.call_soon_threadsafe(partial(_send, request, response))
            if again and not self._iterative:
                self._clock.call_soon_threadsafe(partial(_send, request, Internal(NOT_ITERATIVE)))
        batch.infer_end_ns = time.monotonic_ns()
        batch.answered = True

    def close(self) -> None:
        """Forget the sequences."""
        self._left.clear()


def _send(request: InferRequest, response: StreamedResponse | ServingError) -> None:
    request.reply(request, response)
