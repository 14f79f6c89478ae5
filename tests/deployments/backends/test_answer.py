"""Answers that one thread sets and another waits for, told once whoever comes first."""

import gc
import threading

import pytest

from deployments.backends.answer import Answer, Late
from deployments.backends.backend import Batch
from deployments.backends.python.opened_inputs import OpenedInputs
from deployments.backends.python.response import InferenceResponse
from deployments.backends.python.response_sender import SingleResponseSender
from deployments.backends.python.served_request import ServedRequest
from protocol.datatypes import BY_NAME
from protocol.device_input import DeviceInput
from protocol.errors import Internal, InvalidArgument
from protocol.infer import InferRequest, InferResponse

FIRST, SECOND = InferResponse({}), InferResponse({})


def sender() -> SingleResponseSender:
    return SingleResponseSender(InferRequest({}, 1, lambda *_: None), lambda *_: FIRST)


@pytest.mark.parametrize("set_first", [True, False])
def test_an_outcome_is_told_once(set_first: bool) -> None:
    answer, told = Answer(), []
    if set_first:
        answer.set(FIRST)
    answer.when_set(told.append)
    assert told == ([FIRST] if set_first else [])
    answer.set(FIRST)
    answer.set(SECOND)
    assert told == [FIRST]


def test_an_outcome_that_is_set_while_another_thread_asks_for_it_is_told_once() -> None:
    for _ in range(500):
        answer, told, ready = Answer(), [], threading.Barrier(2)

        def set_it(answer: Answer = answer, ready: threading.Barrier = ready) -> None:
            ready.wait()
            answer.set(FIRST)

        thread = threading.Thread(target=set_it)
        thread.start()
        ready.wait()
        answer.when_set(told.append)
        thread.join()
        assert told == [FIRST]


def test_a_sender_that_the_collector_drops_tells_so() -> None:
    dropped, told = sender(), []
    dropped.answer.when_set(told.append)
    cycle = [dropped]
    cycle.append(cycle)  # type: ignore[arg-type]
    del dropped, cycle
    gc.collect()
    [error] = told
    assert isinstance(error, Internal) and "dropped the response sender" in error.message


def test_a_sender_whose_request_was_given_up_sends_nothing_more() -> None:
    kept, told = sender(), []
    kept.answer.when_set(told.append)
    kept.answer.set(Internal("too late"))
    with pytest.raises(Exception, match="cannot send more than one response"):
        kept.send(InferenceResponse())
    assert [outcome.message for outcome in told] == ["too late"]


class Memory:
    def __init__(self, opens: bool) -> None:
        self.opens = opens

    def open(self) -> None:
        if not self.opens:
            raise InvalidArgument("the region is gone")


def test_a_request_whose_inputs_cannot_be_opened_is_refused_in_a_late_batch_too() -> None:
    requests = [InferRequest({}, 1, lambda *_: None) for _ in range(3)]
    for request, opens in zip(requests, (True, False, True), strict=True):
        request.devices = {"X": DeviceInput(Memory(opens), 0, (1,), BY_NAME["FP32"])}  # type: ignore[arg-type]
    unanswered = [Answer(), Answer()]

    def execute(part: Batch) -> None:
        assert part.requests == [requests[0], requests[2]]
        part.late, part.answered = Late("m_0", unanswered), True

    batch = Batch(requests, 3)
    OpenedInputs(execute, None)(batch)
    assert batch.late is not None and batch.answered
    first, refused, last = batch.late.answers
    assert [first, last] == unanswered and refused.outcome is not None
    assert isinstance(refused.outcome, InvalidArgument)


def test_threads_that_ask_for_a_sender_at_once_get_the_same() -> None:
    got: list[object] = []

    def make(request: ServedRequest) -> SingleResponseSender:
        if not asks.is_alive():
            asks.start()
            asks.join(0.05)  # what it gets before this one is made
        return sender()

    asked = ServedRequest(InferRequest({}, 1, lambda *_: None), (), make)
    asks = threading.Thread(target=lambda: got.append(asked.get_response_sender()))
    got.append(asked.get_response_sender())
    asks.join()
    assert got[0] is got[1]
