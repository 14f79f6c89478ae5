import asyncio
import threading
import time
import weakref

import numpy as np
import pytest

from deployments.backends.backend import Batch, RemoteInstance
from deployments.backends.gpu_fault import GpuFault
from deployments.core.counts import Totals
from deployments.core.instance_pool import InstancePool
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.default import DefaultScheduler
from protocol.errors import Internal, Unavailable
from protocol.infer import InferResponse
from tests.deployments.fakes import MS, Answers, FakeClock, FakeInstance


@pytest.fixture
def clock():
    return FakeClock()


def pool_of(clock, *instances):
    pool = InstancePool(instances, clock)
    done = []
    pool.finished = done.append
    return pool, done


def batch_of(rows=1, requests=1):
    answers = Answers()
    return Batch([answers.request(str(index)) for index in range(requests)], rows)


def test_first_batch_of_a_size_runs_in_the_instances_thread_and_later_ones_inline(clock):
    instance = FakeInstance(clock)
    pool, done = pool_of(clock, instance)
    pool.run(batch_of())
    assert not pool.idle and not done
    clock.wait_for_thread()
    assert pool.idle and len(done) == 1

    pool.run(batch_of())
    assert len(done) == 2
    pool.close()


@pytest.mark.parametrize("inline", [True, False])
def test_an_instance_that_has_lost_its_gpu_says_so(clock, inline):
    instance = FakeInstance(clock)
    pool, done = pool_of(clock, instance)
    pool.may_run_inline = inline
    assert pool.check(0.0) == ""
    instance.error = GpuFault("onnx runtime error 1: CUDA failure 700: an illegal memory access was encountered")
    pool.run(batch_of())
    clock.wait_for_thread()
    assert isinstance(done[0].results[0], Internal)
    assert pool.check(0.0).startswith("model instance 'm_0' has lost its GPU: onnx runtime error 1: CUDA failure 700")
    pool.close()


def test_nothing_runs_inline_where_the_pool_must_not(clock):
    pool, done = pool_of(clock, FakeInstance(clock))
    pool.may_run_inline = False
    for count in range(3):
        pool.run(batch_of())
        assert not pool.idle and len(done) == count
        clock.wait_for_thread()
    pool.may_run_inline = True
    pool.run(batch_of())
    assert len(done) == 4
    pool.close()


def test_sizes_are_measured_apart_by_powers_of_two(clock):
    pool, done = pool_of(clock, FakeInstance(clock))
    pool.run(batch_of(3))
    clock.wait_for_thread()
    pool.run(batch_of(4))
    assert len(done) == 2, "3 and 4 rows are one size"
    pool.run(batch_of(5))
    assert len(done) == 2, "5 rows are another"
    clock.wait_for_thread()
    pool.close()


def test_slow_batches_never_run_inline(clock):
    instance = FakeInstance(clock)
    instance.duration_ns = 2 * MS
    pool, done = pool_of(clock, instance)
    for count in range(5):
        pool.run(batch_of())
        assert len(done) == count
        clock.wait_for_thread()
    pool.close()


def test_instance_that_may_not_run_inline_does_not(clock):
    pool, done = pool_of(clock, FakeInstance(clock, may_run_inline=False))
    for count in range(3):
        pool.run(batch_of())
        assert len(done) == count
        clock.wait_for_thread()
    pool.close()


def test_batches_run_on_as_many_instances_as_are_idle(clock):
    barrier = threading.Barrier(2)
    instances = [FakeInstance(clock, f"m_{index}", may_run_inline=False) for index in range(2)]
    for instance in instances:
        instance.execute = lambda batch, run=instance.execute: (barrier.wait(10), run(batch))
    pool, done = pool_of(clock, *instances)
    pool.run(batch_of())
    pool.run(batch_of())
    assert pool.running_count == 2 and not pool.idle
    clock.wait_for_thread()
    clock.wait_for_thread()
    assert len(done) == 2 and pool.running_count == 0
    pool.close()


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (Unavailable("come back later"), Unavailable, "come back later"),
        (
            ValueError("no"),
            Internal,
            "Failed to process the request(s) for model instance 'm_0', message: ValueError: no",
        ),
        *(
            (
                error,
                Internal,
                f"Failed to process the request(s) for model instance 'm_0', message: {type(error).__name__}: 3",
            )
            for error in (SystemExit(3), KeyboardInterrupt(3), GeneratorExit(3), asyncio.CancelledError(3))
        ),
    ],
    ids=[
        "a serving error as it is",
        "an exception with its name",
        "an exit",
        "an interrupt",
        "a generator's exit",
        "a cancellation",
    ],
)
def test_error_of_an_instance_fails_every_request_of_the_batch(clock, error, kind, text):
    instance = FakeInstance(clock, may_run_inline=False)
    instance.error = error
    pool, done = pool_of(clock, instance)
    pool.run(batch_of(2, requests=2))
    clock.wait_for_thread()
    assert [(type(result), str(result)) for result in done[0].results] == [(kind, text)] * 2
    instance.error = None
    pool.run(batch_of(2))
    clock.wait_for_thread()
    assert len(done) == 2, "the instance goes on"
    pool.close()


def test_a_batch_that_fails_is_forgotten_with_its_requests(clock):
    class Failing(FakeInstance):
        def execute(self, batch):
            try:
                raise ValueError("no")
            except ValueError as error:
                raise Internal("it failed") from error

    pool, done = pool_of(clock, Failing(clock))
    for inline in (False, True):
        pool.may_run_inline = inline
        batch = batch_of()
        held = np.zeros(1)
        batch.requests[0].inputs["X"] = held
        reference = weakref.ref(held)
        del held
        pool.run(batch)
        if not inline:
            clock.wait_for_thread()
        del batch
        (failed,) = done
        result = failed.results[0]
        done.clear()
        del failed
        assert isinstance(result, Internal) and reference() is None
    pool.close()


def test_missing_result_fails_the_batch(clock):
    instance = FakeInstance(clock)
    instance.execute = lambda batch: None
    pool, done = pool_of(clock, instance)
    pool.run(batch_of())
    clock.wait_for_thread()
    assert "0 results for 1 requests" in str(done[0].results[0])
    pool.close()


def test_times_of_a_batch_are_in_order_even_when_the_instance_sets_none(clock):
    instance = FakeInstance(clock)
    instance.error = ValueError("no")
    pool, done = pool_of(clock, instance)
    pool.run(batch_of())
    clock.wait_for_thread()
    batch = done[0]
    assert 0 < batch.start_ns <= batch.infer_start_ns <= batch.infer_end_ns <= batch.end_ns
    pool.close()


def test_close_lets_the_running_batch_finish_and_leaves_no_thread(clock):
    before = threading.active_count()
    release = threading.Event()
    instance = FakeInstance(clock, may_run_inline=False)
    instance.execute = lambda batch, run=instance.execute: (release.wait(10), run(batch))
    pool, done = pool_of(clock, instance)
    pool.run(batch_of())
    release.set()
    pool.close()
    assert instance.closed == 1 and threading.active_count() == before
    clock.wait_for_thread()
    np.testing.assert_array_equal(done[0].results[0].outputs["Y"], [[2, 2]])


def test_close_gives_up_on_a_batch_that_does_not_end(clock):
    release = threading.Event()
    instance = FakeInstance(clock, may_run_inline=False)
    instance.execute = lambda batch: release.wait(10)
    pool, _ = pool_of(clock, instance)
    pool.run(batch_of())
    pool.close(timeout_s=0.01)
    assert instance.closed == 0
    release.set()
    clock.wait_for_thread()


def test_batch_that_never_ends_is_answered_and_its_instance_given_up(clock):
    release, started = threading.Event(), threading.Event()
    instance = FakeInstance(clock, may_run_inline=False)
    instance.execute = lambda batch: (started.set(), release.wait(10))
    pool, done = pool_of(clock, instance)
    pool.run(batch_of(requests=2))
    assert started.wait(10)
    clock.time_ns += 5_000 * MS
    assert pool.check(5.0) == "" and not done
    clock.time_ns += 1
    fault = "model instance 'm_0' has run one batch for more than 5 s"
    assert pool.check(5.0) == pool.check(0.0) == fault
    (batch,) = done
    assert [(type(result), str(result)) for result in batch.results] == [(Internal, fault)] * 2
    assert not pool.idle and pool.running_count == 0
    pool.close()  # does not wait for it
    release.set()
    clock.wait_for_thread()
    assert len(done) == 1, "what comes too late is dropped"


def test_instances_that_do_not_come_back_have_one_deadline_together(clock):
    release = threading.Event()
    instances = [FakeInstance(clock, f"m_{number}", may_run_inline=False) for number in range(4)]
    for instance in instances:
        instance.execute = lambda batch: release.wait(20)
    pool, _ = pool_of(clock, *instances)
    for _ in instances:
        pool.run(batch_of())
    began_s = time.monotonic()
    pool.close(1.0)
    assert 1.0 <= time.monotonic() - began_s < 2.5
    release.set()


def test_batch_may_take_any_time_without_a_limit(clock):
    release, started = threading.Event(), threading.Event()
    instance = FakeInstance(clock, may_run_inline=False)
    instance.execute = lambda batch, run=instance.execute: (started.set(), release.wait(10), run(batch))
    pool, done = pool_of(clock, instance)
    pool.run(batch_of())
    assert started.wait(10)
    clock.time_ns += 10**6 * MS
    assert pool.check(0.0) == ""
    release.set()
    clock.wait_for_thread()
    assert len(done) == 1
    pool.close()


def test_instance_whose_thread_has_ended_is_given_up(clock):
    instance = FakeInstance(clock, may_run_inline=False)
    pool, done = pool_of(clock, instance)
    pool.run(batch_of())
    clock.wait_for_thread()
    (worker,) = pool.idle
    worker.batches.put(None)
    worker.thread.join(10)
    pool.run(batch_of())
    assert pool.check(0.0) == "the thread of model instance 'm_0' has ended"
    assert type(done[1].results[0]) is Internal
    pool.close()


class Refusing(RemoteInstance):
    """An instance elsewhere that cannot be sent the first batch."""

    alive = True

    def __init__(self):
        self.name = "m_0"
        self.begun = []

    def attach(self, clock, done, changed):
        self.done = done

    def begin(self, batch):
        self.begun.append(batch)
        if len(self.begun) == 1:
            raise ValueError("unmarshallable object")
        batch.results = [InferResponse({}) for _ in batch.requests]
        self.done(batch)

    def begin_close(self):
        pass

    def close(self, timeout_s=30.0):
        pass


def test_what_cannot_be_sent_to_an_instance_is_answered_and_the_instance_goes_on():
    clock, answers, instance = FakeClock(), Answers(), Refusing()
    pool = InstancePool([instance], clock)
    scheduler = DefaultScheduler(pool, ModelStatistics("m", 1, Totals()), clock)
    for name in ("odd", "next"):
        scheduler.submit(answers.request(name))
    clock.run()
    assert "'m_0', message: ValueError: unmarshallable object" in answers.error("odd")
    assert answers.order == ["odd", "next"] and not pool.running_count and len(pool.idle) == 1


def test_a_thread_that_cannot_be_started_fails_the_batch_and_is_tried_again(clock, monkeypatch):
    instance, answers = FakeInstance(clock, may_run_inline=False), Answers()
    pool = InstancePool([instance], clock)
    scheduler = DefaultScheduler(pool, ModelStatistics("m", 1, Totals()), clock)

    def refuse(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        scheduler.submit(answers.request("r0"))
        clock.run()
    assert answers.error("r0").startswith("Unavailable: ") and "can't start new thread" in answers.error("r0")
    scheduler.submit(answers.request("r1"))
    clock.run()
    clock.wait_for_thread()
    assert answers.order == ["r0", "r1"]
    pool.close()
