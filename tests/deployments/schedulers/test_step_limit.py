"""How many requests of a step are under way, by `max_inflight_requests`, without an ensemble around it."""

import numpy as np
import pytest

from deployments.schedulers import step_limit
from deployments.schedulers.step_limit import StepLimit
from protocol.errors import ServingError
from protocol.infer import InferRequest, InferResponse
from tests.deployments.fakes import FakeClock


class Steps:
    """What was sent, and what was answered, by number."""

    def __init__(self, limit: int) -> None:
        self.clock = FakeClock()
        self.sent: list[InferRequest] = []
        self.answers: dict[str, str] = {}
        self.limit = StepLimit(limit, self.sent.append, self.clock)

    def submit(self, *names: str) -> list[InferRequest]:
        requests = [InferRequest({"X": np.zeros(1)}, 1, self._take, id=name) for name in names]
        for request in requests:
            self.limit.submit(request)
        self.clock.run()
        return requests

    def finish(self, name: str) -> None:
        (request,) = [each for each in self.sent if each.id == name]
        self.sent.remove(request)
        request.reply(request, InferResponse({}))
        self.clock.run()

    def _take(self, request: InferRequest, result: InferResponse | ServingError) -> None:
        self.answers[request.id] = repr(result) if isinstance(result, ServingError) else "ok"


def test_who_waits_is_sent_when_another_has_ended_first_come_first_served() -> None:
    steps = Steps(2)
    steps.submit("a", "b", "c", "d")
    for ended, under_way in (("b", "ac"), ("a", "cd"), ("d", "c"), ("c", "")):
        steps.finish(ended)
        assert "".join(request.id for request in steps.sent) == under_way
    assert steps.answers == dict.fromkeys("badc", "ok")


def test_more_than_may_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_limit, "MAX_WAITING", 2)
    steps = Steps(1)
    steps.submit("a", "b", "c", "d")
    assert list(steps.answers) == ["d"] and "Exceeds maximum queue size" in steps.answers["d"]
    steps.finish("a")
    steps.submit("e")
    assert [request.id for request in steps.sent] == ["b"] and "e" not in steps.answers


def test_one_that_is_withdrawn_while_it_waits_is_answered_and_not_sent() -> None:
    steps = Steps(1)
    _, waits, last = steps.submit("a", "b", "c")
    steps.limit.withdraw(waits)
    steps.clock.run()
    assert steps.answers["b"].startswith("Cancelled")
    steps.finish("a")
    assert steps.sent == [last]
