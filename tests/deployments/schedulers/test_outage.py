"""What becomes of requests that wait for a model of which no process is left."""

from collections.abc import Callable

import pytest

from deployments.core.counts import Totals
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.default import DefaultScheduler
from deployments.schedulers.dynamic import DynamicBatcher
from deployments.schedulers.fifo import FifoBatcher
from deployments.schedulers.outage import LASTS
from deployments.schedulers.scheduler import PoolScheduler
from protocol.signature import Signature
from tests.deployments.fakes import Answers, FakeClock, FakePool, config_of
from tests.deployments.schedulers.sequences import START, Sequences, sequence_config

MINUTE_MS = 60_000


class MortalPool(FakePool):
    """A pool of one instance."""

    def die(self) -> None:
        self.alive = False
        self.idle.clear()
        self.died()
        self.clock.run()

    def come_back(self) -> None:
        self.alive = True
        self.idle.append(object())
        self.revived()
        self.clock.run()


class Bench:
    """A scheduler, its pool and its clock."""

    def __init__(self, make: Callable[..., PoolScheduler]) -> None:
        self.clock, self.answers = FakeClock(), Answers()
        self.pool = MortalPool(self.clock)
        self.statistics = ModelStatistics("m", 1, Totals())
        self.scheduler = make(self.pool, self.statistics, self.clock)

    def send(self, name: str) -> None:
        self.scheduler.submit(self.answers.request(name))
        self.clock.run()


CONFIG = config_of("max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 100 }")
SIGNATURE = Signature.from_config(CONFIG)
SCHEDULERS = {
    "default": DefaultScheduler,
    "fifo": lambda *rest: FifoBatcher(SIGNATURE, *rest),
    "dynamic": lambda *rest: DynamicBatcher(CONFIG.dynamic_batching, SIGNATURE, *rest),
}
each = pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)


@each
def test_what_waits_for_a_minute_without_an_instance_is_unavailable(make: Callable[..., PoolScheduler]) -> None:
    bench = Bench(make)
    bench.pool.die()
    bench.send("a")
    bench.clock.advance(MINUTE_MS - 1)
    assert not bench.answers.order
    bench.clock.advance(1)
    assert bench.answers.error("a") == f"Unavailable: {LASTS}"
    bench.send("b")
    bench.clock.advance(MINUTE_MS)
    assert bench.answers.error("b") == f"Unavailable: {LASTS}"
    assert bench.statistics.counts.other_count == 2 and not bench.statistics.counts.pending_count


@each
def test_an_instance_that_is_back_runs_what_waits_however_often_it_has_died(make: Callable[..., PoolScheduler]) -> None:
    bench = Bench(make)
    bench.pool.die()
    bench.clock.advance(MINUTE_MS - 1)
    bench.pool.come_back()
    bench.pool.die()
    bench.send("a")
    bench.clock.advance(MINUTE_MS - 1)
    bench.pool.come_back()
    bench.clock.advance(1)
    bench.pool.finish()
    assert bench.answers.order == ["a"] and not bench.statistics.counts.other_count
    bench.clock.advance(MINUTE_MS)
    assert all(timer.cancelled for timer in bench.clock.timers)


@each
@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_scheduler_that_has_stopped_waits_for_no_instance(make: Callable[..., PoolScheduler], dies: str) -> None:
    bench = Bench(make)
    if dies == "before":
        bench.pool.die()
    bench.scheduler.drain(lambda: None)
    bench.clock.run()
    if dies == "after":
        bench.pool.die()
    assert all(timer.cancelled for timer in bench.clock.timers)


@each
def test_what_waits_while_a_scheduler_stops_is_unavailable_after_a_minute(make: Callable[..., PoolScheduler]) -> None:
    bench = Bench(make)
    drained: list[bool] = []
    bench.pool.die()
    bench.send("a")
    bench.scheduler.drain(lambda: drained.append(True))
    bench.clock.advance(MINUTE_MS)
    assert bench.answers.error("a") == f"Unavailable: {LASTS}"
    assert drained
    assert all(timer.cancelled for timer in bench.clock.timers)


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { }"])
def test_a_sequence_scheduler_that_has_stopped_waits_for_no_instance(strategy: str) -> None:
    sequences = Sequences(sequence_config(strategy))
    sequences.scheduler.drain(lambda: None)
    sequences.clock.run()
    sequences.pools[0].died()
    assert all(timer.cancelled for timer in sequences.clock.timers)


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { }"])
def test_sequences_that_wait_for_a_minute_without_an_instance_are_unavailable(strategy: str) -> None:
    sequences = Sequences(sequence_config(strategy), instances=2)
    for pool in sequences.pools:
        pool.idle.clear()
    sequences.pools[0].died()
    sequences.clock.advance(MINUTE_MS)
    sequences.pools[1].died()
    for name, number in (("a", 1), ("b", 2)):
        sequences.send(name, number, START)
    sequences.clock.advance(MINUTE_MS - 1)
    assert not sequences.answers
    sequences.clock.advance(1)
    assert sequences.answers == dict.fromkeys(("a", "b"), f"Unavailable: {LASTS}")
    assert not sequences.statistics.counts.pending_count and not sequences.scheduler.sequence_count
