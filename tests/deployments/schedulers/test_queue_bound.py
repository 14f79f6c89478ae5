"""A queue under more load than its model can take; the clock is the test's."""

import pytest

from deployments.core.counts import Totals
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.default import DefaultScheduler
from deployments.schedulers.fifo import FifoBatcher
from deployments.schedulers.queue_bound import ALWAYS_TAKEN
from protocol.signature import Signature
from tests.deployments.fakes import Answers, FakeClock, FakePool, config_of

MAX_QUEUE_S = 2.0
FULL = "Exceeds maximum queue size"


class Bench:
    """A model whose batches take `service_ms`, and `row_ms` for each request, and clients that do not wait for each other's answers."""

    def __init__(self, service_ms: float, max_batch_size: int = 0, instance_count: int = 1) -> None:
        self.clock = FakeClock()
        self.pool = FakePool(self.clock, instance_count)
        self.answers = Answers()
        self.statistics = ModelStatistics("m", 1, Totals())
        arguments = (self.pool, self.statistics, self.clock)
        signature = Signature.from_config(config_of(f"max_batch_size: {max_batch_size}"))
        self.scheduler = FifoBatcher(signature, *arguments) if max_batch_size else DefaultScheduler(*arguments)
        self.scheduler.bound_queue(MAX_QUEUE_S)
        self.service_ms = service_ms
        self.row_ms = 0.0
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

    @property
    def waiting_count(self) -> int:
        return self.statistics.counts.pending_count

    def run(self, rate: float, seconds: float) -> None:
        """Send at a rate, while the model does what it can."""
        step_ms = 1e3 / rate
        for _ in range(int(rate * seconds)):
            self.send()
            self._serve_until(self.clock.now_ns() + int(step_ms * 1e6))

    def _serve_until(self, end_ns: int) -> None:
        while self.pool.running:
            batch = self.pool.running[0]
            done_ns = batch.start_ns + int((self.service_ms + self.row_ms * len(batch.requests)) * 1e6)
            if done_ns > end_ns:
                break
            self.clock.advance((done_ns - self.clock.now_ns()) / 1e6)
            self.waits_s += [(batch.start_ns - request.queued_ns) / 1e9 for request in batch.requests]
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
    assert bench.waiting_count <= 500 * MAX_QUEUE_S * 1.1


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
    assert bench.waiting_count <= ALWAYS_TAKEN + 1 + 200


@pytest.mark.parametrize(
    ("max_batch_size", "service_ms", "instance_count", "rate"),
    [
        pytest.param(1024, 2500, 1, 350, id="longer than a request may wait"),
        pytest.param(2048, 1200, 1, 1000, id="longer than a second"),
        pytest.param(4096, 900, 1, 2000, id="about a second"),
        pytest.param(512, 1500, 1, 280, id="nearly all that the model can"),
        pytest.param(512, 1500, 2, 600, id="two instances"),
        pytest.param(256, 2500, 4, 350, id="four instances"),
        pytest.param(512, 700, 1, 600, id="less than a second"),
    ],
)
def test_a_load_that_fits_is_taken_where_batches_take_seconds(
    max_batch_size: int, service_ms: float, instance_count: int, rate: float
) -> None:
    bench = Bench(service_ms, max_batch_size, instance_count)
    bench.run(rate, seconds=15)
    bench.run(rate / 100, seconds=60)
    bench.run(rate, seconds=10)
    assert not bench.refused


def test_a_load_that_doubles_is_taken_if_it_fits() -> None:
    bench = Bench(service_ms=1000, max_batch_size=2048)
    bench.run(rate=500, seconds=10)
    bench.run(rate=1000, seconds=10)
    assert not bench.refused


def test_of_a_model_with_long_batches_no_more_waits_than_it_answers_in_one_and_a_half() -> None:
    bench = Bench(service_ms=2500, max_batch_size=1024)
    bench.run(rate=800, seconds=40)
    assert bench.refused and bench.waiting_count <= 1.5 * 1024
    # What came before the first batches had been measured waited longer.
    assert max(bench.waits_s[-1024:]) <= 2.5 * 2.5
    full_batches = 40 / 2.5 - 2  # there is one request in the first; the last one runs
    assert len(bench.waits_s) >= full_batches * 1024


def test_a_model_whose_batches_take_longer_and_longer_does_not_have_the_more_waiting() -> None:
    bench = Bench(service_ms=0, max_batch_size=1 << 20)
    bench.row_ms = 2.5
    bench.run(rate=800, seconds=60)
    assert bench.waiting_count <= 400 * 2 * MAX_QUEUE_S * 1.1


def test_a_model_that_comes_to_a_standstill_keeps_few_waiting() -> None:
    bench = Bench(service_ms=1000, max_batch_size=1024)
    bench.run(rate=700, seconds=10)
    assert not bench.refused
    stopped_s = bench.now_s
    bench.service_ms = 1e9
    bench.run(rate=700, seconds=10)
    assert bench.refused[0] - stopped_s <= MAX_QUEUE_S + 1
    bench.service_ms = 0
    bench.run(rate=100, seconds=1)
    refused_count = len(bench.refused)
    bench.service_ms = 1000
    bench.run(rate=700, seconds=10)
    assert len(bench.refused) == refused_count


def test_a_model_that_has_not_answered_anything_keeps_few_waiting_in_the_end() -> None:
    bench = Bench(service_ms=1e9)
    bench.run(rate=200, seconds=20)
    assert bench.waiting_count <= 2 * MAX_QUEUE_S * 200 + ALWAYS_TAKEN + 20


def test_requests_that_come_seldom_do_not_fill_the_queue_of_a_model_that_stands_still() -> None:
    bench = Bench(service_ms=1e9)
    bench.run(rate=ALWAYS_TAKEN, seconds=1)
    bench.run(rate=0.4, seconds=250)
    assert bench.waiting_count <= ALWAYS_TAKEN + 5


def test_a_model_that_has_become_slow_keeps_as_many_waiting_as_it_answers_then() -> None:
    bench = Bench(service_ms=200, max_batch_size=512)
    bench.run(rate=2000, seconds=5)
    assert not bench.refused
    bench.service_ms = 1500
    bench.run(rate=600, seconds=15)
    assert bench.refused and bench.waiting_count <= 1.5 * 512
    assert max(bench.waits_s[-512:]) <= 1.5 + 1.5 * 1.5


def test_a_queue_without_a_bound_takes_everything() -> None:
    bench = Bench(service_ms=50)
    bench.scheduler = DefaultScheduler(bench.pool, ModelStatistics("m", 1, Totals()), bench.clock)
    bench.run(rate=200, seconds=20)
    assert not bench.refused
