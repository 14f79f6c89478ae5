"""Instances that run a batch when the rate limiter gives them their turn."""

from functools import partial

import numpy as np
import pytest
from tritonclient.grpc.model_config_pb2 import ModelDynamicBatching

from deployments.backends.backend import RemoteInstance
from deployments.core.counts import Totals
from deployments.core.limited_pool import LimitedPool
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.default import DefaultScheduler
from deployments.schedulers.dynamic import DynamicBatcher
from deployments.schedulers.fifo import FifoBatcher
from protocol.infer import InferResponse
from protocol.signature import Signature
from tests.deployments.fakes import Answers, FakeClock, FakeInstance, config_of


class Turnstile:
    """A rate limiter whose grants the test gives."""

    def __init__(self):
        self.waiting = {}
        self.log = []

    def acquire(self, key, granted):
        self.waiting[key] = granted

    def release(self, key):
        self.log.append(f"release {key}")

    def remove(self, key):
        self.waiting.pop(key, None)
        self.log.append(f"remove {key}")

    def grant(self, key):
        self.waiting.pop(key)()


def limited(clock, *keys):
    turnstile = Turnstile()
    instances = [FakeInstance(clock, f"limited_{number}", may_run_inline=False) for number in range(len(keys))]
    pool = LimitedPool(instances, clock, turnstile, keys)
    return turnstile, instances, pool, DefaultScheduler(pool, ModelStatistics("m", 1, Totals()), clock)


def test_a_batch_waits_for_its_instances_turn():
    clock, answers = FakeClock(), Answers()
    turnstile, instances, pool, scheduler = limited(clock, "k")
    for name in ("r0", "r1"):
        scheduler.submit(answers.request(name))
        clock.run()
    for number in (1, 2):
        assert len(instances[0].batches) == len(answers.order) == number - 1
        turnstile.grant("k")
        clock.wait_for_thread()
        assert turnstile.log == ["release k"] * number
    assert answers.order == ["r0", "r1"] and not turnstile.waiting
    pool.close(10)


def test_what_waits_for_its_instances_turn_is_seen_to_wait():
    clock, answers, turnstile = FakeClock(), Answers(), Turnstile()
    instances = [FakeInstance(clock, f"limited_{number}", may_run_inline=False) for number in range(2)]
    pool = LimitedPool(instances, clock, turnstile, ["k", "l"])
    statistics = ModelStatistics("m", 1, Totals())
    scheduler = DefaultScheduler(pool, statistics, clock)
    came_ns = clock.now_ns()
    cancelled = answers.request("r0")
    for request in (cancelled, answers.request("r1")):
        scheduler.submit(request)
        clock.run()
        clock.advance(1.0)
    assert statistics.counts.pending_count == 2 and pool.oldest_queued_ns == came_ns
    scheduler.cancel(cancelled)
    turnstile.grant("k")
    assert statistics.counts.pending_count == 1 and pool.oldest_queued_ns == came_ns + 1_000_000
    pool.close(0.1)
    clock.wait_for_thread()
    assert statistics.counts.pending_count == 0 and pool.oldest_queued_ns == 0


SIGNATURE = Signature.for_backend(config_of('max_batch_size: 4 input { name: "X" data_type: TYPE_FP32 dims: -1 }'))
BATCHERS = {
    "fifo": FifoBatcher,
    "sizes": partial(DynamicBatcher, ModelDynamicBatching(preferred_batch_size=[1, 2, 4])),
}


@pytest.mark.parametrize("batcher", BATCHERS.values(), ids=BATCHERS)
def test_a_batch_that_waits_for_its_turn_takes_along_what_comes_and_fits(batcher):
    clock, answers, turnstile = FakeClock(), Answers(), Turnstile()
    instance = FakeInstance(clock, "limited_0", may_run_inline=False)
    pool = LimitedPool([instance], clock, turnstile, ["k"])
    statistics = ModelStatistics("m", 1, Totals())
    scheduler = batcher(SIGNATURE, pool, statistics, clock)
    for number in range(5):
        scheduler.submit(answers.request(f"r{number}"))
        clock.run()
    assert statistics.counts.pending_count == 5
    turnstile.grant("k")
    clock.wait_for_thread()
    clock.run()
    assert statistics.counts.pending_count == 1
    turnstile.grant("k")
    assert statistics.counts.pending_count == 0
    clock.wait_for_thread()
    assert instance.batches == [["r0", "r1", "r2", "r3"], ["r4"]] and len(answers.order) == 5
    pool.close(10)


def test_what_comes_joins_the_batch_that_waits_before_another_is_formed():
    clock, answers = FakeClock(), Answers()
    turnstile = Turnstile()
    instances = [FakeInstance(clock, f"limited_{number}", may_run_inline=False) for number in range(2)]
    pool = LimitedPool(instances, clock, turnstile, ["k", "l"])
    statistics = ModelStatistics("m", 1, Totals())
    scheduler = FifoBatcher(SIGNATURE, pool, statistics, clock)
    for number in range(2):
        scheduler.submit(answers.request(f"r{number}"))
        clock.run()
    turnstile.grant("k")
    scheduler.submit(answers.request("r2"))
    clock.wait_for_thread()
    assert statistics.counts.pending_count == 2
    turnstile.grant("l")
    assert statistics.counts.pending_count == 0
    clock.wait_for_thread()
    assert [instance.batches for instance in instances] == [[["r0"]], [["r1", "r2"]]] and not turnstile.waiting
    pool.close(10)


def test_requests_whose_order_is_preserved_join_the_last_batch_that_waits():
    clock, answers, turnstile = FakeClock(), Answers(), Turnstile()
    instances = [FakeInstance(clock, f"limited_{number}", may_run_inline=False) for number in range(2)]
    pool = LimitedPool(instances, clock, turnstile, ["k", "l"])
    batching = ModelDynamicBatching(preserve_ordering=True)
    scheduler = DynamicBatcher(batching, SIGNATURE, pool, ModelStatistics("m", 1, Totals()), clock)
    for number in range(3):
        scheduler.submit(answers.request(f"r{number}"))
        clock.run()
    for key in ("k", "l"):
        turnstile.grant(key)
        clock.wait_for_thread()
    assert answers.order == ["r0", "r1", "r2"]
    pool.close(10)


def test_a_batch_that_waits_for_its_turn_grows_to_a_preferred_size_and_by_its_own_shape():
    clock, answers, turnstile = FakeClock(), Answers(), Turnstile()
    instance = FakeInstance(clock, "limited_0", may_run_inline=False)
    pool = LimitedPool([instance], clock, turnstile, ["k"])
    batching = ModelDynamicBatching(preferred_batch_size=[1, 3])
    scheduler = DynamicBatcher(batching, SIGNATURE, pool, ModelStatistics("m", 1, Totals()), clock)
    for name, width in (("r0", 2), ("r1", 2), ("wide", 3)):
        scheduler.submit(answers.request(name, inputs={"X": np.zeros((1, width), np.float32)}))
        clock.run()
    for _ in range(3):
        turnstile.grant("k")
        clock.wait_for_thread()
    assert instance.batches == [["r0"], ["r1"], ["wide"]]
    pool.close(10)


def test_what_is_cancelled_while_it_waits_for_its_turn_does_not_run():
    clock, answers = FakeClock(), Answers()
    turnstile, instances, pool, scheduler = limited(clock, "k")
    request = answers.request("r0")
    scheduler.submit(request)
    clock.run()
    scheduler.cancel(request)
    turnstile.grant("k")
    clock.run()
    assert answers.error("r0") == "Cancelled: " and instances[0].batches == []
    assert turnstile.log == ["release k"] and len(pool.idle) == 1
    pool.close(10)


def test_an_instance_that_needs_nothing_waits_for_nobody():
    clock, answers = FakeClock(), Answers()
    turnstile, _, pool, scheduler = limited(clock, "k", "")
    for name in ("r0", "r1"):
        scheduler.submit(answers.request(name))
    clock.run()
    clock.wait_for_thread()
    assert answers.order[0] == "r0" and list(turnstile.waiting) == ["k"]
    pool.close(10)


def test_what_waits_for_a_turn_runs_on_an_instance_that_needs_nothing_and_is_idle_first():
    clock, answers = FakeClock(), Answers()
    turnstile, instances, pool, scheduler = limited(clock, "k", "")
    for number in range(5):
        scheduler.submit(answers.request(f"r{number}"))
    clock.run()
    for _ in range(5):
        clock.wait_for_thread()
    assert answers.order == [f"r{number}" for number in range(5)] and instances[0].batches == []
    turnstile.grant("k")  # which nobody waits for any more
    assert turnstile.log == ["release k"] and len(pool.idle) == 2
    pool.close(10)


def test_who_has_waited_longest_runs_first_whichever_instance_has_its_turn():
    clock, answers = FakeClock(), Answers()
    turnstile, instances, pool, scheduler = limited(clock, "k", "l")
    for name in ("r0", "r1"):
        scheduler.submit(answers.request(name))
    clock.run()
    for key in ("l", "k"):
        turnstile.grant(key)
        clock.wait_for_thread()
    assert answers.order == ["r0", "r1"] and turnstile.log == ["release l", "release k"]
    assert [len(instance.batches) for instance in instances] == [1, 1]
    pool.close(10)


def test_a_model_that_goes_first_answers_what_waits_for_its_turn():
    clock, answers = FakeClock(), Answers()
    turnstile, _, pool, scheduler = limited(clock, "k")
    scheduler.submit(answers.request("r"))
    clock.run()
    drained = []
    scheduler.drain(lambda: drained.append(list(answers.order)))
    clock.run()
    assert drained == []
    turnstile.grant("k")
    clock.wait_for_thread()
    assert drained == [["r"]]
    pool.close(10)


def test_what_still_waits_when_the_model_goes_is_refused():
    clock, answers = FakeClock(), Answers()
    turnstile, _, pool, scheduler = limited(clock, "k")
    scheduler.submit(answers.request("r"))
    clock.run()
    pool.close(0.1)
    clock.wait_for_thread()
    assert "Server is stopping" in answers.error("r") and turnstile.log == ["remove k"]


class FakeProcess(RemoteInstance):
    """An instance that runs elsewhere, and dies when the test says so."""

    alive = True

    def __init__(self):
        self.name = "m_0"
        self.begun = []

    def attach(self, clock, done, changed):
        self.done, self.changed = done, changed

    def begin(self, batch):
        assert self.alive and len(self.begun) == 0
        self.begun.append(batch)

    def finish(self):
        batch = self.begun.pop()
        batch.results = [InferResponse({}) for _ in batch.requests]
        self.done(batch)

    def set_alive(self, alive):
        self.alive = alive
        self.changed()

    def begin_close(self):
        pass

    def close(self, timeout_s=30.0):
        pass


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("back", [False, True], ids=["dead when its turn comes", "back when its turn comes"])
def test_what_waits_for_the_turn_of_a_process_that_dies_has_failed(cancelled, back):
    clock, answers, turnstile, process = FakeClock(), Answers(), Turnstile(), FakeProcess()
    pool = LimitedPool([process], clock, turnstile, ["k"])
    scheduler = DefaultScheduler(pool, ModelStatistics("m", 1, Totals()), clock)
    request = answers.request("r0")
    scheduler.submit(request)
    clock.run()
    if cancelled:
        scheduler.cancel(request)
    process.set_alive(False)
    if back:
        process.set_alive(True)
    turnstile.grant("k")
    clock.run()
    assert "'m_0', message: its process has died" in answers.error("r0")
    assert turnstile.log == ["release k"] and not pool.running_count

    if not back:
        process.set_alive(True)
    for name in ("r1", "r2"):
        scheduler.submit(answers.request(name))
        clock.run()
    for _ in range(2):
        turnstile.grant("k")
        process.finish()
        clock.run()
    assert answers.order == ["r0", "r1", "r2"] and turnstile.log == ["release k"] * 3


def test_a_turn_that_comes_when_the_instances_are_closed_runs_nothing():
    clock, answers = FakeClock(), Answers()
    turnstile, instances, pool, scheduler = limited(clock, "k")
    scheduler.submit(answers.request("r"))
    clock.run()
    pool.close(0.1)
    turnstile.grant("k")
    clock.wait_for_thread()
    assert "Server is stopping" in answers.error("r") and instances[0].batches == [] and not pool.running_count


def test_an_instance_that_needs_nothing_and_comes_back_takes_what_waits():
    clock, answers, turnstile = FakeClock(), Answers(), Turnstile()
    free, needy = FakeProcess(), FakeProcess()
    pool = LimitedPool([free, needy], clock, turnstile, ["", "k"])
    scheduler = DefaultScheduler(pool, ModelStatistics("m", 1, Totals()), clock)
    free.set_alive(False)
    scheduler.submit(answers.request("r0"))
    clock.run()
    assert list(turnstile.waiting) == ["k"]
    free.set_alive(True)
    scheduler.submit(answers.request("r1"))
    clock.run()
    assert [request.id for batch in free.begun for request in batch.requests] == ["r0"]


def test_what_waits_takes_along_what_comes_also_where_it_runs_on_an_instance_that_needs_nothing():
    clock, answers, turnstile = FakeClock(), Answers(), Turnstile()
    free, needy = FakeProcess(), FakeProcess()
    pool = LimitedPool([free, needy], clock, turnstile, ["", "k"])
    free.set_alive(False)
    statistics = ModelStatistics("m", 1, Totals())
    scheduler = FifoBatcher(SIGNATURE, pool, statistics, clock)
    for name in ("r0", "r1"):
        scheduler.submit(answers.request(name))
        clock.run()
    free.set_alive(True)
    clock.run()
    assert [[request.id for request in batch.requests] for batch in free.begun] == [["r0", "r1"]]
    assert statistics.counts.pending_count == 0
