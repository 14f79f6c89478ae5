import numpy as np
import pytest

from deployments.core.counts import Totals
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.default import DefaultScheduler
from deployments.schedulers.fifo import FifoBatcher
from protocol.signature import Signature
from tests.deployments.fakes import MS, Answers, FakeClock, FakePool, config_of, reasons_of

VARIABLE = 'input { name: "X" data_type: TYPE_FP32 dims: [-1] %s}'


class Bench:
    """A batcher over a pool that the test finishes."""

    def __init__(self, text="max_batch_size: 4", instance_count=1, kind=FifoBatcher):
        self.clock = FakeClock()
        self.pool = FakePool(self.clock, instance_count)
        self.statistics = ModelStatistics("m", 1, Totals())
        self.answers = Answers()
        arguments = (self.pool, self.statistics, self.clock)
        signature = Signature.from_config(config_of(text))
        self.scheduler = kind(*arguments) if kind is DefaultScheduler else kind(signature, *arguments)

    def submit(self, *ids, rows=1, **rest):
        requests = [self.answers.request(id, rows, **rest) for id in ids]
        for request in requests:
            self.scheduler.submit(request)
        return requests

    @property
    def running(self):
        return [[request.id for request in batch.requests] for batch in self.pool.running]


def test_requests_of_one_turn_share_a_batch():
    bench = Bench()
    bench.submit("a", "b", "c")
    assert bench.running == []
    bench.clock.turn()
    assert bench.running == [["a", "b", "c"]]


def test_requests_wait_while_the_instance_is_busy_and_leave_together():
    bench = Bench()
    bench.submit("a")
    bench.clock.turn()
    for id in "bcdef":
        bench.submit(id)
        bench.clock.run()
    assert bench.running == [["a"]] and bench.statistics.counts.pending_count == 5
    bench.pool.finish()
    assert bench.running == [["b", "c", "d", "e"]]
    bench.pool.finish()
    assert bench.running == [["f"]]
    bench.pool.finish()
    assert bench.answers.order == list("abcdef") and bench.statistics.counts.pending_count == 0


def test_free_instance_takes_its_batch_in_the_turn_after():
    bench = Bench()
    bench.submit("a", "b", "c", "d", "e")
    bench.clock.turn()
    batch = bench.pool.running.pop()
    batch.end_ns, batch.results = 1, [None] * 4
    bench.pool.idle.append(object())
    bench.pool.finished(batch)
    bench.submit("f")
    assert bench.running == []
    bench.clock.turn()
    assert bench.running == [["e", "f"]]


def test_rows_count_and_the_first_that_does_not_fit_closes_the_batch():
    bench = Bench()
    bench.submit("a", rows=3)
    bench.submit("b", rows=2)
    bench.submit("c", rows=1)
    bench.clock.turn()
    assert bench.running == [["a"]]
    bench.pool.finish()
    assert bench.running == [["b", "c"]]


def test_every_idle_instance_gets_a_batch():
    bench = Bench(instance_count=2)
    bench.submit(*"abcdefghij")
    bench.clock.turn()
    assert bench.running == [["a", "b", "c", "d"], ["e", "f", "g", "h"]]


@pytest.mark.parametrize(
    ("config", "together"),
    [
        ("max_batch_size: 4 " + VARIABLE % "", False),
        ("max_batch_size: 4 " + VARIABLE % "allow_ragged_batch: true ", True),
    ],
    ids=["variable", "ragged"],
)
def test_different_shapes_share_a_batch_only_when_ragged(config, together):
    bench = Bench(config)
    bench.submit("a", "b", inputs={"X": np.zeros((1, 3), np.float32)})
    bench.submit("c", inputs={"X": np.zeros((1, 5), np.float32)})
    bench.clock.turn()
    assert bench.running == ([["a", "b", "c"]] if together else [["a", "b"]])


def test_different_sets_of_optional_inputs_do_not_share_a_batch():
    bench = Bench(
        'max_batch_size: 4 input { name: "X" data_type: TYPE_FP32 dims: 2 } '
        'input { name: "Z" data_type: TYPE_FP32 dims: 2 optional: true }'
    )
    x = np.zeros((1, 2), np.float32)
    bench.submit("a", inputs={"X": x})
    bench.submit("b", inputs={"X": x, "Z": x})
    bench.submit("c", inputs={"X": x, "Z": x})
    bench.clock.turn()
    assert bench.running == [["a"]]
    bench.pool.finish()
    assert bench.running == [["b", "c"]]


@pytest.mark.parametrize("kind", [FifoBatcher, DefaultScheduler])
def test_cancelled_request_is_answered_when_a_batch_is_formed(kind):
    bench = Bench(kind=kind)
    bench.submit("a")
    bench.clock.turn()
    (request,) = bench.submit("b")
    bench.submit("c")
    bench.scheduler.cancel(request)
    bench.pool.finish()
    assert bench.running == [["c"]]
    assert bench.answers.error("b") == "Cancelled: "
    assert bench.statistics.counts.canceled_count == 1 and bench.statistics.counts.pending_count == 0


@pytest.mark.parametrize("kind", [FifoBatcher, DefaultScheduler])
def test_cancelled_requests_leave_the_queue_while_no_batch_is_formed(kind):
    bench = Bench(kind=kind)
    bench.submit("a")
    bench.clock.turn()
    requests = bench.submit("b", "c", "d")
    for request in requests[:2]:
        bench.scheduler.cancel(request)
    bench.clock.advance(20)
    assert bench.answers.error("b") == bench.answers.error("c") == "Cancelled: "
    assert bench.statistics.counts.canceled_count == 2 and bench.statistics.counts.pending_count == 1
    bench.pool.finish()
    assert bench.running == [["d"]]


def test_default_scheduler_merges_nothing():
    bench = Bench(kind=DefaultScheduler, instance_count=2)
    bench.submit("a", "b", "c", rows=2)
    bench.clock.turn()
    assert bench.running == [["a"], ["b"]]
    bench.pool.finish()
    assert bench.running == [["b"], ["c"]]


def test_draining_scheduler_refuses_and_says_when_all_is_answered():
    bench = Bench("max_batch_size: 1")
    drained = []
    bench.submit("a", "b")
    bench.clock.turn()
    bench.scheduler.drain(lambda: drained.append(True))
    bench.submit("late")
    bench.clock.run()
    assert bench.answers.error("late") == (
        "Unavailable: [request id: late] Server is stopping, scheduler for model has stopped accepting new inference "
        "requests"
    )
    bench.pool.finish()
    assert not drained
    bench.pool.finish()
    assert drained == [True] and bench.answers.order == ["late", "a", "b"]


def test_abandoned_requests_are_refused():
    bench = Bench()
    bench.submit("a")
    bench.clock.turn()
    bench.submit("b")
    bench.scheduler.abandon()
    assert bench.answers.error("b").startswith("Unavailable: Server is stopping")


def test_reply_that_raises_does_not_keep_others_from_theirs():
    bench = Bench()
    (request,) = bench.submit("a")
    bench.submit("b")

    def broken(request, result):
        raise RuntimeError("the connection is gone")

    request.reply = broken
    bench.clock.turn()
    bench.pool.finish()
    assert bench.answers.order == ["b"]


@pytest.mark.parametrize(
    ("rows", "reasons"),
    [
        ((1, 1), {"none_waits": 1}),
        ((1, 3), {"full": 1}),
        ((3, 2), {"next_differs": 1, "none_waits": 1}),
        ((2, 2, 2, 2, 1), {"full": 2, "none_waits": 1}),
    ],
)
def test_each_batch_is_counted_by_why_it_left(rows, reasons):
    bench = Bench()
    for number, count in enumerate(rows):
        bench.submit(str(number), rows=count)
    bench.clock.run()
    while bench.pool.running:
        bench.pool.finish()
    assert reasons_of(bench.statistics) == reasons


def test_the_oldest_request_tells_how_long_it_has_waited():
    bench = Bench()
    assert bench.scheduler.oldest_queued_ns == 0
    bench.submit("a")
    bench.clock.turn()
    bench.clock.advance(5)
    (oldest, _) = bench.submit("b", "c")
    bench.clock.advance(5)
    assert bench.scheduler.oldest_queued_ns == oldest.queued_ns == bench.clock.now_ns() - 5 * MS
