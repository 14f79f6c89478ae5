"""A batcher whose instances are on a GPU starts what waits before it writes the answers of what has run."""

import pytest

from deployments.core.counts import Totals
from deployments.core.instance_pool import InstancePool
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.default import DefaultScheduler
from deployments.schedulers.dynamic import DynamicBatcher
from deployments.schedulers.fifo import FifoBatcher
from protocol.signature import Signature
from tests.deployments.fakes import MS, Answers, FakeClock, FakeInstance, FakePool, config_of


class Bench:
    """A batcher over one instance; `running_at_answers` is how many requests ran when each was answered."""

    def __init__(self, scheduler, *, on_gpu=True, settings=""):
        self.clock, self.answers = FakeClock(), Answers()
        self.pool = FakePool(self.clock)
        self.pool.on_gpu = on_gpu
        config = config_of(f"max_batch_size: 4 dynamic_batching {{ {settings} }}")
        signature, statistics = Signature.from_config(config), ModelStatistics("m", 1, Totals())
        before = {DynamicBatcher: (config.dynamic_batching, signature), FifoBatcher: (signature,), DefaultScheduler: ()}
        self.scheduler = scheduler(*before[scheduler], self.pool, statistics, self.clock)
        self.running_at_answers = []

    def come(self, count):
        for _ in range(count):
            request = self.answers.request("")
            request.reply = self._reply
            self.scheduler.submit(request)
        self.clock.run()

    def _reply(self, request, result):
        self.running_at_answers.append(sum(len(batch.requests) for batch in self.pool.running))

    def finish(self, ms=5.0):
        self.clock.advance(ms)
        self.pool.finish()


@pytest.mark.parametrize("scheduler", [DefaultScheduler, FifoBatcher, DynamicBatcher])
def test_what_waits_runs_before_the_answers_are_written(scheduler):
    bench = Bench(scheduler)
    bench.come(1)
    bench.come(1)
    bench.finish()
    assert bench.running_at_answers == [1]
    bench.finish()
    assert bench.running_at_answers == [1, 0]


@pytest.mark.parametrize("scheduler", [DefaultScheduler, FifoBatcher, DynamicBatcher])
def test_on_a_cpu_and_after_a_short_batch_answers_come_first(scheduler):
    on_cpu, short = Bench(scheduler, on_gpu=False), Bench(scheduler)
    for bench, ms in ((on_cpu, 5.0), (short, 0.5)):
        bench.come(1)
        bench.come(1)
        bench.finish(ms)
        assert bench.running_at_answers == [0]
        assert len(bench.pool.running) == 1


def test_a_batch_that_has_started_is_not_held_back_for_clients_that_return():
    bench = Bench(FifoBatcher)
    for count in (2, 1, 2):
        bench.come(count)
    assert [len(batch.requests) for batch in bench.pool.running] == [2]
    bench.finish(20.0)
    assert [len(batch.requests) for batch in bench.pool.running] == [3]
    bench.come(2)
    bench.finish(20.0)
    assert [len(batch.requests) for batch in bench.pool.running] == [2]


def test_answers_keep_their_order_where_they_must():
    bench = Bench(DynamicBatcher, settings="preserve_ordering: true")
    bench.come(1)
    bench.come(1)
    bench.finish()
    assert bench.running_at_answers == [0]


def test_a_batcher_that_drains_says_so_after_its_last_answer():
    bench = Bench(FifoBatcher)
    answered_when_drained = []
    bench.come(1)
    bench.come(1)
    bench.scheduler.drain(lambda: answered_when_drained.append(len(bench.running_at_answers)))
    bench.clock.run()
    bench.finish()
    bench.finish()
    assert answered_when_drained == [2]


class SlowWithRows(FakeInstance):
    """An instance on a GPU that takes 5 ms for several rows, and no time for one."""

    on_gpu = True

    def execute(self, batch):
        self.duration_ns = 5 * MS if batch.rows > 1 else 0
        super().execute(batch)


def test_what_waits_is_started_and_not_run_on_the_loops_thread_before_the_answers():
    clock, answers = FakeClock(), Answers()
    pool = InstancePool([SlowWithRows(clock)], clock)
    signature = Signature.from_config(config_of("max_batch_size: 4 dynamic_batching { }"))
    scheduler = FifoBatcher(signature, pool, ModelStatistics("m", 1, Totals()), clock)
    scheduler.submit(answers.request("first"))
    clock.run()
    clock.wait_for_thread()
    scheduler.submit(answers.request("slow", rows=4))
    clock.run()
    scheduler.submit(answers.request("quick"))
    clock.wait_for_thread()
    assert answers.order == ["first", "slow"]
    clock.wait_for_thread()
    assert answers.order == ["first", "slow", "quick"]
    scheduler.submit(answers.request("inline"))
    clock.run()
    assert answers.order[3:] == ["inline"]
    pool.close()
