"""The rate limiter's decisions, against its rules."""

import random
from collections import Counter
from functools import partial

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelDynamicBatching

from deployments.backends.backend import RemoteInstance
from deployments.core.arbiter import Arbiter
from deployments.core.counts import Totals
from deployments.core.limited_pool import LimitedPool
from deployments.core.rate_limit import ALL_DEVICES, Needs, Resource, needs_of
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.default import DefaultScheduler
from deployments.schedulers.dynamic import DynamicBatcher
from deployments.schedulers.fifo import FifoBatcher
from protocol.infer import InferResponse
from protocol.signature import Signature
from repository_loader.package import InstanceSpec
from tests.deployments.fakes import Answers, FakeClock, FakeInstance, config_of


def needs(*resources, priority=1):
    return Needs(tuple(Resource(name, device, count) for name, device, count in resources), priority)


def arbiter_of(given=(), **instances):
    arbiter = Arbiter(given)
    for key, wanted in instances.items():
        arbiter.add(key, wanted)
        arbiter.want(key)
    return arbiter


ONE = needs(("R", 0, 1))


def test_without_given_counts_the_largest_need_is_the_limit():
    arbiter = arbiter_of(a=ONE, b=ONE, big=needs(("R", 0, 2)))
    assert sorted(arbiter.grants()) == ["a", "b"]
    arbiter.done("a")
    assert arbiter.grants() == []
    arbiter.done("b")
    assert arbiter.grants() == ["big"]


def test_devices_have_resources_of_their_own_unless_these_are_global():
    arbiter = arbiter_of((("R", None, 1), ("G", None, 1)), a=ONE, b=needs(("R", 1, 1)), c=needs(("R", 1, 1)))
    assert arbiter.grants() == ["a", "b"]
    arbiter = arbiter_of(
        (("R", None, 1), ("G", None, 1)), d=needs(("G", ALL_DEVICES, 1)), e=needs(("G", ALL_DEVICES, 1))
    )
    assert arbiter.grants() == ["d"]


def test_a_device_may_be_given_another_count():
    arbiter = arbiter_of((("R", None, 1), ("R", 1, 2)), a=ONE, b=ONE, c=needs(("R", 1, 2)))
    assert arbiter.grants() == ["a", "c"]


def test_turns_go_by_priority():
    arbiter = arbiter_of(once=needs(("R", 0, 1), priority=1), half=needs(("R", 0, 1), priority=2))
    turns = Counter()
    for _ in range(300):
        (key,) = arbiter.grants()
        turns[key] += 1
        arbiter.done(key)
        arbiter.want(key)
    assert turns == {"once": 200, "half": 100}


def test_with_as_many_turns_the_higher_priority_is_first():
    arbiter = arbiter_of(half=needs(("R", 0, 1), priority=2), once=needs(("R", 0, 1), priority=1))
    order = []
    for _ in range(6):
        order += arbiter.grants()
        arbiter.done(order[-1])
        arbiter.want(order[-1])
    assert order == ["once", "once", "half", "once", "once", "half"]


def test_who_comes_late_takes_turns_with_who_has_had_many():
    arbiter = arbiter_of(old=ONE, idle=ONE)
    arbiter.done("idle")
    for _ in range(100):
        assert arbiter.grants() == ["old"]
        arbiter.done("old")
        arbiter.want("old")
    arbiter.add("new", needs(("R", 0, 1), priority=2))
    arbiter.want("new")
    turns = Counter()
    for _ in range(30):
        (key,) = arbiter.grants()
        turns[key] += 1
        arbiter.done(key)
        arbiter.want(key)
    assert turns["old"] in (19, 20) and turns["new"] in (10, 11)


def test_what_needs_much_is_not_starved_and_holds_up_nobody_else():
    arbiter = arbiter_of(small=ONE, other=needs(("S", 0, 1)))
    assert sorted(arbiter.grants()) == ["other", "small"]
    arbiter.add("big", needs(("R", 0, 2)))
    arbiter.add("late", ONE)
    arbiter.want("big")
    arbiter.want("late")
    arbiter.done("other")
    arbiter.want("other")
    assert arbiter.grants() == ["other"]
    arbiter.done("small")
    assert arbiter.grants() == ["big"]


def test_who_is_gone_holds_nothing():
    arbiter = arbiter_of(a=ONE, b=ONE)
    assert arbiter.grants() == ["a"]
    arbiter.remove("a")
    assert arbiter.grants() == ["b"]


def test_what_can_never_run_is_refused_in_tritons_words():
    assert Arbiter((("S", None, 1),)).check(needs(("R", 0, 4))) == (
        'Resource count for "R" is limited to 0 which will prevent scheduling of one or more model instances, the '
        "minimum required count is 4"
    )
    limited = Arbiter((("R", None, 3),))
    assert limited.check(needs(("R", 0, 3))) == ""
    assert 'Resource count for "R" is limited to 3' in limited.check(needs(("R", 0, 4)))
    assert "the minimum required count is 4" in limited.check(needs(("R", 0, 2), ("R", 0, 2)))
    arbiter = arbiter_of(a=ONE)
    assert arbiter.check(needs(("R", ALL_DEVICES, 1))) == (
        'Resource "R" is present as both global and device-specific resource in the model configuration.'
    )


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_given_twice_and_all_get_their_turn(seed):
    rng = random.Random(seed)
    instances = {
        f"i{number}": needs(
            *{
                name: (name, rng.choice([0, 1]) if name != "G" else ALL_DEVICES, rng.randint(1, 3))
                for name in rng.sample("RSTG", rng.randint(1, 3))
            }.values(),
            priority=rng.randint(1, 3),
        )
        for number in range(8)
    }
    arbiter = arbiter_of(**instances)
    limits = Counter()
    for each in instances.values():
        for resource in each.resources:
            place = resource.name, resource.device
            limits[place] = max(limits[place], resource.count)
    held, turns = [], Counter()
    for _ in range(400):
        for key in arbiter.grants():
            held.append(key)
            turns[key] += 1
        used = Counter()
        for key in held:
            for resource in instances[key].resources:
                used[resource.name, resource.device] += resource.count
        assert all(count <= limits[place] for place, count in used.items())
        assert held, "something always runs"
        done = held.pop(rng.randrange(len(held)))
        arbiter.done(done)
        arbiter.want(done)
    assert min(turns[key] for key in instances) > 10


def test_reads_the_needs_of_an_instance_from_its_group(monkeypatch):
    text = (
        'instance_group { name: "a" kind: KIND_CPU count: 2 rate_limiter { resources { name: "R" count: 2 } '
        'resources { name: "G" global: true count: 1 } resources { name: "none" } } } '
        'instance_group { name: "a_b" kind: KIND_GPU rate_limiter { resources { name: "R" count: 1 } priority: 3 } } '
        'instance_group { name: "free" kind: KIND_CPU }'
    )
    config = text_format.Parse(text, ModelConfig())
    assert needs_of(config, InstanceSpec("a_1", "CPU", 0)) == needs(("R", 0, 2), ("G", ALL_DEVICES, 1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert needs_of(config, InstanceSpec("a_b_0_gpu1", "GPU", 1)) == needs(("R", 5, 1), priority=3)
    assert needs_of(config, InstanceSpec("free_0", "CPU", 0)) is None


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
