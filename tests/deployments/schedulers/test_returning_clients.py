"""A batcher holds a batch back for the clients that it has just answered, and only for those that do come back."""

from hypothesis import given
from hypothesis import strategies as st

from deployments.core.counts import Totals
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.fifo import FifoBatcher
from deployments.schedulers.returning_clients import LONGEST_WAIT_NS, MOST_SKIPPED, SHARE
from protocol.signature import Signature
from tests.deployments.fakes import MS, Answers, FakeClock, FakePool, config_of

SLOW_MS = 24.0
WAIT_MS = SLOW_MS / SHARE


class Bench:
    """A batcher over instances that take as long as the test says."""

    def __init__(self, instance_count=1, max_rows=16):
        self.clock = FakeClock()
        self.pool = FakePool(self.clock, instance_count)
        self.answers = Answers()
        signature = Signature.from_config(config_of(f"max_batch_size: {max_rows}"))
        self.scheduler = FifoBatcher(signature, self.pool, ModelStatistics("m", 1, Totals()), self.clock)

    def come(self, count, rows=1):
        for _ in range(count):
            self.scheduler.submit(self.answers.request("", rows))
        self.clock.run()

    def run(self, ms=SLOW_MS):
        self.clock.advance(ms)
        self.pool.finish()

    @property
    def running(self):
        return [len(batch.requests) for batch in self.pool.running]


def test_halves_become_one():
    bench = Bench()
    bench.come(8)
    bench.come(8)
    assert bench.running == [8]
    bench.run()
    assert bench.running == []
    for _ in range(7):
        bench.come(1)
    assert bench.running == []
    bench.come(1)
    assert bench.running == [16]
    for _ in range(3):
        bench.run()
        bench.come(15)
        assert bench.running == []
        bench.come(1)
        assert bench.running == [16]


def test_a_full_batch_waits_for_nobody():
    bench = Bench(max_rows=8)
    bench.come(8)
    bench.come(8)
    bench.run()
    assert bench.running == [8]


def test_rows_fill_a_batch_too():
    bench = Bench(max_rows=8)
    bench.come(4)
    bench.run()
    bench.come(2, rows=4)
    assert bench.running == [2]


def test_who_waits_goes_when_the_wait_is_over():
    bench = Bench()
    bench.come(8)
    bench.come(3)
    bench.run()
    bench.come(4)
    bench.clock.advance(WAIT_MS - 0.01)
    assert bench.running == []
    bench.clock.advance(0.01)
    assert bench.running == [7]
    bench.run()
    assert bench.running == []  # half of them came: the clients do return, and are awaited again


def test_nobody_is_awaited_after_a_short_batch_or_that_of_one_client():
    bench = Bench()
    bench.come(8)
    bench.come(1)
    bench.run(ms=7.9)
    assert bench.running == [1]
    bench.come(1)
    bench.run()
    assert bench.running == [1]


def test_nobody_is_awaited_while_another_instance_runs():
    bench = Bench(instance_count=2)
    bench.come(4)
    bench.come(4)
    bench.come(4)
    bench.run()
    assert bench.running == [4, 4]


def test_no_wait_is_longer_than_25_ms():
    bench = Bench()
    bench.come(8)
    bench.come(1)
    bench.run(ms=10_000)
    bench.clock.advance(LONGEST_WAIT_NS / MS)
    assert bench.running == [1]


def test_clients_that_do_not_return_are_awaited_ever_more_seldom():
    bench = Bench()
    held, since, gaps = 0, 0, []
    bench.come(2)
    while held < 12:
        bench.come(2)
        bench.run()
        since += 1
        if not bench.running:
            held += 1
            gaps.append(since)
            since = 0
            bench.clock.advance(WAIT_MS)
        assert bench.running == [2]
    assert gaps == [1, 2, 3, 5, 9, 17, 33, 65, 129, MOST_SKIPPED + 1, MOST_SKIPPED + 1, MOST_SKIPPED + 1]


def test_clients_that_return_again_are_awaited_again():
    bench = Bench()
    bench.come(4)
    bench.run()
    bench.clock.advance(WAIT_MS)  # nobody came
    bench.come(4)
    bench.run()
    for _ in range(4):
        bench.come(1)
    assert bench.running == [1]  # the first was not held back
    bench.run()
    assert bench.running == [3]
    bench.come(1)
    bench.run()
    for count in (3, 4, 4):
        for _ in range(count):
            assert bench.running == []
            bench.come(1)
        assert bench.running == [4]
        bench.run()


def test_a_batcher_that_drains_waits_for_nobody():
    bench = Bench()
    drained = []
    bench.come(8)
    bench.come(2)
    bench.run()
    bench.scheduler.drain(lambda: drained.append(True))
    bench.clock.run()
    assert bench.running == [2]
    bench.run()
    assert drained == [True]


STEPS = st.lists(st.tuples(st.integers(0, 6), st.floats(0, 60), st.booleans()), max_size=40)


@given(steps=STEPS, instance_count=st.integers(1, 2))
def test_no_request_waits_longer_than_that_beside_an_idle_instance(steps, instance_count):
    bench = Bench(instance_count)
    longest_ms = 0.0
    for count, ms, finish in steps:
        bench.come(count)
        bench.clock.advance(ms)
        if finish and bench.pool.running:
            batch = bench.pool.running[0]
            elapsed_ms = (bench.clock.now_ns() - batch.start_ns) / MS
            longest_ms = max(longest_ms, min(elapsed_ms / SHARE, LONGEST_WAIT_NS / MS))
            bench.pool.finish()
    bench.clock.advance(longest_ms)
    assert not bench.pool.idle or not bench.scheduler.oldest_queued_ns
