"""Opens what requests have in the memory of GPUs before a model gets them."""

from collections.abc import Callable
from dataclasses import replace
from time import monotonic_ns

from deployments.backends.answer import answered
from deployments.backends.backend import Batch
from deployments.backends.python.response_sender import Replies
from deployments.core.traced_request import begin_streams
from protocol.errors import ServingError
from protocol.infer import InferRequest


class OpenedInputs:
    """The `execute` of an instance, which runs without the requests whose inputs cannot be opened: these are refused.

    Those of a decoupled model hear so through `replies`.
    """

    def __init__(self, execute: Callable[[Batch], None], replies: Replies | None) -> None:
        self._execute = execute
        self._replies = replies

    def __call__(self, batch: Batch) -> None:
        """Run a batch; an exception fails those as well that were refused."""
        refused = {request: error for request in batch.requests if (error := _open(request)) is not None}
        if not refused:
            self._execute(batch)
            return
        others = [request for request in batch.requests if request not in refused]
        part = Batch(others, sum([request.rows for request in others]), batch.reason)
        part.start_ns, part.before_ns = batch.start_ns, batch.before_ns
        part.infer_start_ns = part.infer_end_ns = monotonic_ns()
        if others:
            self._execute(part)
        batch.infer_start_ns, batch.infer_end_ns = part.infer_start_ns, part.infer_end_ns
        if part.late is not None:
            rest = iter(part.late.answers)
            answers = [answered(refused[each]) if each in refused else next(rest) for each in batch.requests]
            batch.late = replace(part.late, answers=answers)
            batch.answered = True
            return
        if self._replies is None:
            results = iter(part.results)
            batch.results = [refused.get(request) or next(results) for request in batch.requests]
            return
        batch.answered = True
        begin_streams(batch, batch.infer_start_ns)
        for request, error in refused.items():
            self._replies.put(request, error)


def _open(request: InferRequest) -> ServingError | None:
    """Open the inputs of a request that are on GPUs; returns why that is not possible."""
    if request.devices is not None:
        try:
            for given in request.devices.values():
                given.memory.open()
        except ServingError as error:
            return error
    return None
