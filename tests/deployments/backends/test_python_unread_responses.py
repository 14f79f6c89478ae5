"""What becomes of the responses to a decoupled call that a model does not read, and of those that it has read."""

import numpy as np
import pytest

from deployments.backends.python import bls
from deployments.backends.python.bls import ResponseIterator
from deployments.backends.python.server import GiveUp, Take
from protocol.infer import StreamedResponse


class Call:
    def __init__(self) -> None:
        self.given_up = False
        self.responses = ResponseIterator(self._send)

    def _send(self, take: Take) -> GiveUp:
        self.take = take
        return self._give_up

    def _give_up(self, *, listens: bool = False) -> None:
        self.given_up = True

    def bring(self, size: int, *, final: bool = False) -> None:
        text = np.array([b"y" * size], np.object_)
        self.take(StreamedResponse({"Y": text}, {}, final, 0), frozenset())


def test_responses_that_a_model_does_not_read_end_the_call_when_they_are_too_large_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bls, "MAX_UNREAD_BYTES", 10_000)
    call = Call()
    for _ in range(50):  # which it reads in time
        call.bring(4_000)
        assert not next(call.responses).has_error()
    call.bring(20_000)  # the only one
    assert not next(call.responses).has_error()
    for _ in range(4):
        call.bring(4_000)
    (last,) = call.responses
    error = last.error()
    assert error is not None and "unread" in error.message() and call.given_up


def test_one_large_response_is_read_with_the_end_of_its_call_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bls, "MAX_UNREAD_BYTES", 10_000)
    call = Call()
    call.bring(20_000)
    call.take(StreamedResponse({}, {}, True, 0), frozenset())
    assert [each.has_error() for each in call.responses] == [False, False]


def test_the_texts_of_a_response_that_comes_when_all_have_been_read_are_not_counted() -> None:
    """Millions of them would keep the loop from all others."""
    counted = []

    class Text(bytes):
        def __len__(self) -> int:
            counted.append(self)
            return 0

    call = Call()
    for _ in range(2):
        call.take(StreamedResponse({"Y": np.array([Text()], np.object_)}, {}, False, 0), frozenset())
        assert not counted
        assert not next(call.responses).has_error()
        counted.clear()


def test_long_texts_are_not_kept_to_be_read_again() -> None:
    call = Call()
    for number in range(3):
        call.bring(4 << 20, final=number == 2)
    assert len(list(call.responses)) == 3
    assert list(call.responses) == []
