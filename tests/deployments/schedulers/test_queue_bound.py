"""A queue under more load than its model can take; the clock is the test's."""

import pytest

from deployments.core.counts import Totals
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.default import DefaultScheduler
from deployments.schedulers.queue_bound import ALWAYS_TAKEN
from tests.deployments.fakes import Answers, FakeClock, FakePool

MAX_QUEUE_S = 2.0
FULL = "Exceeds maximum queue size"


class Bench:
    """A model that answers a request every `service_ms`, and clients that do not wait for each other's answers."""

    def __init__(self, service_ms: float) -> None:
        self.clock = FakeClock()
        self.pool = FakePool(self.clock)
        self.answers = Answers()
        self.scheduler = DefaultScheduler(self.pool, ModelStatistics("m", 1, Totals()), self.clock)
        self.scheduler.bound_queue(MAX_QUEUE_S)
        self.service_ms = service_ms
        self.sent = 0
        self.waits_s: list[float] = []
        self.refused: list[float] = []
        self._busy_until_ns = 0

    def send(self) -> None:
        request = self.answers.request(str(self.sent))
        self.sent += 1
        self.scheduler.submit(request)
        self.clock.run()
        if request.id in self.answers.results:
            assert self.answers.error(request.id).endswith(FULL)
            self.refused.append(self.now_s)

    @property
    def now_s(self) -> float:
        return self.clock.now_ns() / 1e9

    def run(self, rate: float, seconds: float) -> None:
        """Send at a rate, while the model does what it can."""
        step_ms = 1e3 / rate
        for _ in range(int(rate * seconds)):
            self.send()
            self._serve_until(self.clock.now_ns() + int(step_ms * 1e6))

    def _serve_until(self, end_ns: int) -> None:
        while self.pool.running:
            batch = self.pool.running[0]
            done_ns = batch.start_ns + int(self.service_ms * 1e6)
            if done_ns > end_ns:
                break
            self.clock.advance((done_ns - self.clock.now_ns()) / 1e6)
            self.waits_s.append((batch.start_ns - batch.requests[0].queued_ns) / 1e9)
            self.pool.finish()
        self.clock.advance((end_ns - self.clock.now_ns()) / 1e6)


@pytest.mark.parametrize("times", [2.0, 5.0])
def test_waits_are_bounded_under_overload_and_what_does_not_fit_is_refused_at_once(times: float) -> None:
    bench = Bench(service_ms=2)
    bench.run(rate=times * 500, seconds=20)
    served = len(bench.waits_s)
    assert served == pytest.approx(500 * 20, rel=0.01)
    settled = bench.waits_s[served // 2 :]
    assert max(settled) <= MAX_QUEUE_S * 1.1
    assert bench.sent - len(bench.refused) - served <= 500 * MAX_QUEUE_S * 1.1


def test_all_is_answered_soon_after_an_overload() -> None:
    bench = Bench(service_ms=2)
    bench.run(rate=1000, seconds=10)
    over_s = bench.now_s
    bench.run(rate=250, seconds=10)
    assert bench.refused[-1] - over_s < 1.0
    assert max(bench.waits_s[-250 * 5 :]) < 0.01


def test_many_requests_at_once_are_all_taken() -> None:
    bench = Bench(service_ms=50)
    for _ in range(1000):
        bench.send()
    assert not bench.refused


def test_clients_that_wait_for_their_answers_are_never_refused_by_a_slow_model() -> None:
    bench = Bench(service_ms=1000)
    for _ in range(ALWAYS_TAKEN):
        bench.send()
    bench.run(rate=1, seconds=30)  # each answer brings a request
    assert not bench.refused


def test_a_slow_model_keeps_few_waiting() -> None:
    bench = Bench(service_ms=50)
    bench.run(rate=200, seconds=20)
    assert bench.sent - len(bench.refused) - len(bench.waits_s) <= ALWAYS_TAKEN + 1 + 200


def test_a_queue_without_a_bound_takes_everything() -> None:
    bench = Bench(service_ms=50)
    bench.scheduler = DefaultScheduler(bench.pool, ModelStatistics("m", 1, Totals()), bench.clock)
    bench.run(rate=200, seconds=20)
    assert not bench.refused
