"""The one outcome of a request whose model answers it from any thread, and batches that leave before they have all."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protocol.errors import ServingError
from protocol.infer import InferResponse

Outcome = InferResponse | ServingError


class Answer:
    """The one outcome of a request whose sender may be in another thread."""

    __slots__ = ("_call", "_set", "_untold", "outcome")

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self._set = threading.Event()
        self._call: Callable[[Outcome], None] | None = None
        self._untold = [True]

    def set(self, outcome: Outcome) -> None:
        """Set the outcome and tell whoever waits; any thread may, the garbage collector's among them."""
        self.outcome = outcome
        self._set.set()
        self._tell()

    def wait(self) -> Outcome:
        """Return the outcome; a sender that is dropped sets one too."""
        self._set.wait()
        assert self.outcome is not None
        return self.outcome

    def when_set(self, call: Callable[[Outcome], None]) -> None:
        """Call with the outcome, once: on the thread that sets it, or now."""
        self._call = call
        if self.outcome is not None:
            self._tell()

    def _tell(self) -> None:
        call, outcome = self._call, self.outcome
        if call is None or outcome is None:
            return
        try:  # no lock: the garbage collector may drop the sender on a thread that is in `when_set`
            self._untold.pop()
        except IndexError:
            return
        call(outcome)


def answered(outcome: Outcome) -> Answer:
    """Return an answer that is there already."""
    answer = Answer()
    answer.set(outcome)
    return answer


@dataclass(frozen=True, slots=True)
class Late:
    """What a batch has instead of results that left its instance before its model had answered every request.

    `answers` are those of all its requests, in order. `give_up` ends what runs for it, for a reason that is a
    predicate; None where only the whole process could be ended.
    """

    instance_name: str
    answers: Sequence[Answer]
    give_up: Callable[[str], None] | None = None
