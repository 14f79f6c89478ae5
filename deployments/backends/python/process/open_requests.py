"""Requests that the process of a Python model answers after the batch they came in."""

from collections.abc import Callable
from functools import partial

from deployments.backends.answer import Answer, Late, Outcome
from deployments.backends.backend import Batch
from deployments.schedulers.scheduler import reply
from protocol.infer import InferRequest, InferResponse

Take = Callable[[Outcome], None]


class OpenRequests:
    """The requests by the numbers that the process knows them by: a decoupled model's, and those of late batches."""

    def __init__(self) -> None:
        self._takes: dict[int, tuple[InferRequest, Take]] = {}

    def __len__(self) -> int:
        return len(self._takes)

    def stream(self, first: int, batch: Batch) -> None:
        """Reply to the requests of a decoupled model with each response; `first` is the number of the first."""
        for number, request in enumerate(batch.requests, first):
            self._takes[number] = request, partial(reply, request)

    def answer_late(self, first: int, batch: Batch, instance_name: str, give_up: Callable[[str], None]) -> None:
        """Let a batch be late, and set the answers of its requests as they come."""
        answers = [Answer() for _ in batch.requests]
        for number, (request, answer) in enumerate(zip(batch.requests, answers, strict=True), first):
            self._takes[number] = request, partial(_set, answer)
        batch.late = Late(instance_name, answers, give_up)
        batch.answered = True

    def get(self, number: int) -> InferRequest | None:
        """Return a request, None if it is answered to the end."""
        found = self._takes.get(number)
        return None if found is None else found[0]

    def forget(self, number: int) -> None:
        """Have a request, which is to run again, answered no more."""
        self._takes.pop(number, None)

    def take(self, number: int, outcome: Outcome) -> None:
        """Answer a request, unless it is answered to the end."""
        found = self._takes.get(number)
        if found is None:
            return
        if not isinstance(outcome, InferResponse) or outcome.final:
            del self._takes[number]
        found[1](outcome)

    def clear(self) -> list[tuple[InferRequest, Take]]:
        """Forget all; returns what was not answered to the end, and what takes its end."""
        takes = list(self._takes.values())
        self._takes.clear()
        return takes


def _set(answer: Answer, outcome: Outcome) -> None:
    if isinstance(outcome, InferResponse):
        outcome = InferResponse(outcome.outputs, outcome.parameters)
    answer.set(outcome)
