"""Requests whose batch has left its instance, and that their model has yet to answer."""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from deployments.backends.answer import Answer, Late, Outcome
from deployments.backends.backend import Batch
from deployments.backends.gpu_fault import is_of_lost_gpu
from deployments.core.clock import Clock
from deployments.log.line_format import about_requests
from protocol.errors import Internal, ServingError
from protocol.infer import InferRequest

_LOG = logging.getLogger(__name__)

TakeAnswer = Callable[[InferRequest, Outcome], None]


class _Unanswered(NamedTuple):
    request: InferRequest
    start_ns: int
    late: Late
    take: TakeAnswer


class LateAnswers:
    """Brings each answer to the loop's thread, once, in a turn of its own.

    Models set answers from any thread; all else belongs to the loop's.
    """

    def __init__(self, clock: Clock) -> None:
        self._now_ns = clock.now_ns
        self._call_soon_threadsafe = clock.call_soon_threadsafe
        self._lost = ""
        self._unanswered: dict[Answer, _Unanswered] = {}

    @property
    def count(self) -> int:
        """How many requests there are."""
        return len(self._unanswered)

    def follow(self, batch: Batch, take: TakeAnswer) -> None:
        """Call `take` with each request of a batch and its answer, when that has come."""
        late = batch.late
        assert late is not None
        for request, answer in zip(batch.requests, late.answers, strict=True):
            self._unanswered[answer] = _Unanswered(request, batch.start_ns, late, take)
            answer.when_set(partial(self._bring, answer))

    def check(self, limit_s: float) -> str:
        """Return why an instance is lost, "" if none is: by an answer, or by none within `limit_s` (0: never).

        Requests without an answer are given up then. Those of an instance in a process of its own are lost with that,
        which starts again.
        """
        fault, self._lost = self._lost, ""
        limit_ns = self._now_ns() - limit_s * 1e9 if limit_s else 0.0
        for answer, (request, start_ns, late, _) in list(self._unanswered.items()):
            if start_ns >= limit_ns or answer.outcome is not None:
                continue
            if late.give_up is not None:
                late.give_up(f"ran one batch for more than {limit_s:g} s")
                continue
            fault = f"model instance '{late.instance_name}' has run one batch for more than {limit_s:g} s"
            _LOG.error("%s", fault, extra=about_requests("", None, (request,)))
            answer.set(Internal(fault))
        return fault

    def _bring(self, answer: Answer, outcome: Outcome) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits for the answer any more
            self._call_soon_threadsafe(partial(self._take, answer, outcome))

    def _take(self, answer: Answer, outcome: Outcome) -> None:
        unanswered = self._unanswered.pop(answer)
        if isinstance(outcome, ServingError) and is_of_lost_gpu(outcome.message) and not unanswered.late.give_up:
            self._lost = f"model instance '{unanswered.late.instance_name}' has lost its GPU: {outcome.message}"
        unanswered.take(unanswered.request, outcome)
