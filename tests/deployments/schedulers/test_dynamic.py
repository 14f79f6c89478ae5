import time

import pytest

from deployments.core.clock import NEVER_NS
from deployments.core.counts import Totals
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.dynamic import DynamicBatcher, needs_policies
from deployments.schedulers.priority_queue import PriorityQueue
from protocol.signature import Signature
from tests.deployments.fakes import MS, Answers, FakeClock, FakePool, config_of, reasons_of


class Bench:
    """A dynamic batcher over a pool that the test finishes; `batching` is the text of `dynamic_batching`."""

    def __init__(self, batching, max_batch_size=8, instance_count=1):
        config = config_of(f"max_batch_size: {max_batch_size} dynamic_batching {{ {batching} }}")
        self.clock = FakeClock()
        self.pool = FakePool(self.clock, instance_count)
        self.statistics = ModelStatistics("m", 1, Totals())
        self.answers = Answers()
        self.batcher = DynamicBatcher(
            config.dynamic_batching, Signature.from_config(config), self.pool, self.statistics, self.clock
        )

    def submit(self, id, rows=1, **rest):
        request = self.answers.request(id, rows, **rest)
        self.batcher.submit(request)
        return request

    def occupy(self):
        """Give the instance something to do."""
        self.batcher._pool.idle, idle = [], self.batcher._pool.idle
        return lambda: (self.batcher._pool.idle.extend(idle), self.batcher._schedule_dispatch(), self.clock.run())

    @property
    def running(self):
        return [[request.id for request in batch.requests] for batch in self.pool.running]


SIZES = {
    "largest preferred prefix": ("preferred_batch_size: [2, 4]", [1] * 7, [4, 2, 1]),
    "no preferred size reached, all go": ("preferred_batch_size: [4]", [1] * 3, [3]),
    "prefix kept below the largest preferred size": ("preferred_batch_size: [4]", [3, 3], [3, 3]),
    "rows count": ("preferred_batch_size: [4]", [2, 2, 3], [4, 3]),
    "without preferred sizes up to the maximum": ("", [1] * 10, [8, 2]),
    "never more than the maximum": ("", [5, 5, 3], [5, 8]),
}


@pytest.mark.parametrize(("batching", "rows", "expected"), SIZES.values(), ids=SIZES)
def test_batch_sizes_of_what_waited_for_an_instance(batching, rows, expected):
    bench = Bench(batching)
    free = bench.occupy()
    for index, count in enumerate(rows):
        bench.submit(str(index), count)
    bench.clock.run()
    free()
    seen = []
    while bench.pool.running:
        seen.append(bench.pool.running[0].rows)
        bench.pool.finish()
    assert seen == expected


DELAYS = {
    "goes when the delay is over": ([1, 1], [], 5, [2]),
    "goes at once at a preferred size": ([1, 1, 1, 1], [4], 0, [4]),
    "goes at once when the next would not fit": ([3, 3, 3], [], 0, [6]),
    "goes at once at the maximum": ([8], [], 0, [8]),
    "waits beyond a preferred size it has not met": ([3], [4], 5, [3]),
}


@pytest.mark.parametrize(("rows", "preferred", "waits_ms", "expected"), DELAYS.values(), ids=DELAYS)
def test_queue_delay(rows, preferred, waits_ms, expected):
    bench = Bench(f"max_queue_delay_microseconds: 5000 preferred_batch_size: {preferred}")
    for index, count in enumerate(rows):
        bench.submit(str(index), count)
    bench.clock.run()
    if waits_ms:
        bench.clock.advance(waits_ms - 0.01)
        assert not bench.running
        bench.clock.advance(0.01)
    assert [batch.rows for batch in bench.pool.running] == expected


def test_delay_that_is_over_sends_more_than_a_preferred_size():
    bench = Bench("max_queue_delay_microseconds: 5000 preferred_batch_size: [2]")
    free = bench.occupy()
    for id in "abcde":
        bench.submit(id)
    bench.clock.run()
    bench.clock.advance(6)
    free()
    assert bench.running == [list("abcde")]


def test_delay_counts_from_the_oldest_request():
    bench = Bench("max_queue_delay_microseconds: 5000")
    bench.submit("a")
    bench.clock.run()
    bench.clock.advance(3)
    bench.submit("b")
    bench.clock.run()
    bench.clock.advance(2)
    assert bench.running == [["a", "b"]]


def test_priorities_go_level_by_level():
    bench = Bench("priority_levels: 3 default_priority_level: 2")
    free = bench.occupy()
    for id, priority in [("a3", 3), ("a0", 0), ("a1", 1), ("a9", 9), ("b1", 1), ("b3", 3)]:
        bench.submit(id, priority=priority)
    bench.clock.run()
    free()
    assert bench.running == [["a1", "b1", "a0", "a9", "a3", "b3"]]


def test_queue_size_is_per_level_and_a_refused_request_is_counted_as_rejected():
    bench = Bench(
        "priority_levels: 2 default_priority_level: 1 default_queue_policy { max_queue_size: 2 } "
        "priority_queue_policy { key: 2 value { max_queue_size: 1 } }"
    )
    bench.occupy()
    for id, priority in [("a", 1), ("b", 1), ("c", 1), ("d", 2), ("e", 2)]:
        bench.submit(id, priority=priority)
    assert not bench.answers.order, "no reply before submit returns"
    bench.clock.run()
    assert bench.answers.order == ["c", "e"]
    assert bench.answers.error("c") == "QueueFull: [request id: c] Exceeds maximum queue size"
    assert bench.statistics.counts.rejected_count == 2 and bench.statistics.counts.pending_count == 3


def test_policies_of_levels_mean_nothing_without_levels():
    bench = Bench(
        "max_queue_delay_microseconds: 1000 default_queue_policy { max_queue_size: 2 } "
        "priority_queue_policy { key: 1 value { max_queue_size: 1 default_timeout_microseconds: 1000 } }"
    )
    free = bench.occupy()
    for id, priority in [("a", 0), ("b", 1), ("c", 1)]:
        bench.submit(id, priority=priority)
    bench.clock.run()
    bench.clock.advance(5)
    assert bench.answers.order == ["c"] and bench.statistics.counts.rejected_count == 1
    free()
    assert bench.running == [["a", "b"]]


def test_a_request_that_another_replica_may_take_is_not_counted_as_rejected_here():
    bench = Bench("default_queue_policy { max_queue_size: 1 }")
    bench.occupy()
    for id in "ab":
        request = bench.answers.request(id)
        request.over_lane = True
        bench.batcher.submit(request)
    bench.clock.run()
    assert bench.answers.order == ["b"] and bench.statistics.counts.rejected_count == 0


TIMEOUTS = {
    "default": ("default_timeout_microseconds: 10000", 0, 10),
    "shorter override not allowed": ("default_timeout_microseconds: 10000", 2000, 10),
    "shorter override": ("default_timeout_microseconds: 10000 allow_timeout_override: true", 2000, 2),
    "longer override": ("default_timeout_microseconds: 10000 allow_timeout_override: true", 20000, 10),
    "override of no timeout": ("allow_timeout_override: true max_queue_size: 9", 2000, None),
}


@pytest.mark.parametrize(("policy", "timeout_us", "expected_ms"), TIMEOUTS.values(), ids=TIMEOUTS)
def test_timeout_rejects_a_request_while_it_waits(policy, timeout_us, expected_ms):
    bench = Bench(f"default_queue_policy {{ {policy} }}")
    bench.occupy()
    bench.submit("a", timeout_us=timeout_us)
    bench.clock.run()
    if expected_ms is None:
        bench.clock.advance(1000)
        assert not bench.answers.order
        return
    bench.clock.advance(expected_ms - 0.01)
    assert not bench.answers.order
    bench.clock.advance(0.01)
    assert bench.answers.error("a") == "Unavailable: Request timeout expired"
    assert bench.statistics.counts.rejected_count == 1 and bench.statistics.counts.pending_count == 0


def test_shorter_timeout_behind_a_longer_one_is_noticed():
    bench = Bench("default_queue_policy { default_timeout_microseconds: 10000 allow_timeout_override: true }")
    bench.occupy()
    bench.submit("a")
    bench.submit("b", timeout_us=1000)
    bench.clock.run()
    bench.clock.advance(1)
    assert bench.answers.order == ["b"]
    bench.clock.advance(9)
    assert bench.answers.order == ["b", "a"]


def test_a_timeout_is_noticed_whatever_waits_at_other_levels():
    bench = Bench(
        "priority_levels: 3 default_priority_level: 3 "
        "priority_queue_policy { key: 1 value { default_timeout_microseconds: 9000 } } "
        "priority_queue_policy { key: 2 value { default_timeout_microseconds: 4000 } }"
    )
    bench.occupy()
    for priority in (3, 1, 2):
        bench.submit(str(priority), priority=priority)
    bench.clock.run()
    bench.clock.advance(4)
    assert bench.answers.order == ["2"]
    bench.clock.advance(5)
    assert bench.answers.order == ["2", "1"]


def test_a_timeout_that_is_over_when_an_instance_becomes_free_is_noticed_before_its_timer():
    bench = Bench("default_queue_policy { default_timeout_microseconds: 1000 }")
    free = bench.occupy()
    bench.submit("a")
    bench.clock.run()
    bench.clock.time_ns += 2 * MS
    free()
    assert not bench.pool.running
    assert bench.answers.error("a") == "Unavailable: Request timeout expired"


def test_delayed_requests_run_after_those_in_time():
    bench = Bench("default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1000 }")
    free = bench.occupy()
    bench.submit("late")
    bench.clock.run()
    bench.clock.advance(2)
    bench.submit("in time")
    bench.clock.run()
    free()
    assert bench.running == [["in time", "late"]]


def test_cancelled_requests_leave_the_batch():
    bench = Bench("preferred_batch_size: [2]")
    free = bench.occupy()
    requests = [bench.submit(id) for id in "abcd"]
    requests[0].cancelled = True
    bench.batcher.cancel(requests[2])
    bench.clock.run()
    free()
    assert bench.running == [["b", "d"]]
    assert bench.answers.error("a") == bench.answers.error("c") == "Cancelled: "
    assert bench.statistics.counts.canceled_count == 2


@pytest.mark.parametrize(("ordering", "expected"), [("true", ["a", "b", "c"]), ("false", ["b", "a", "c"])])
def test_preserved_ordering_holds_back_what_is_done_early(ordering, expected):
    bench = Bench(f"preserve_ordering: {ordering}", max_batch_size=1, instance_count=2)
    for id in "abc":
        bench.submit(id)
    bench.clock.run()
    assert bench.running == [["a"], ["b"]]
    bench.pool.finish(1)
    assert bench.running == [["a"], ["c"]], "the instance goes on all the same"
    bench.pool.finish(0)
    bench.pool.finish(0)
    assert bench.answers.order == expected


def test_ordered_batcher_is_drained_when_the_last_answer_is_out():
    bench = Bench("preserve_ordering: true", max_batch_size=1, instance_count=2)
    bench.submit("a")
    bench.submit("b")
    bench.clock.run()
    bench.batcher.drain(lambda: bench.answers.order.append("drained"))
    bench.clock.run()
    bench.pool.finish(1)
    bench.pool.finish(0)
    assert bench.answers.order == ["a", "b", "drained"]


def test_a_batcher_is_drained_when_the_last_that_waits_is_given_up():
    bench = Bench("preferred_batch_size: [2]")
    bench.occupy()
    request = bench.submit("a")
    drained = []
    bench.batcher.drain(lambda: drained.append(list(bench.answers.order)))
    bench.clock.run()
    assert not drained
    bench.batcher.cancel(request)
    bench.clock.advance(20)
    assert drained == [["a"]]


def test_draining_batcher_does_not_wait_for_company():
    bench = Bench("max_queue_delay_microseconds: 1000000")
    bench.submit("a")
    bench.clock.run()
    bench.batcher.drain(lambda: bench.answers.order.append("drained"))
    bench.clock.run()
    bench.pool.finish()
    assert bench.answers.order == ["a", "drained"]


def test_held_scheduler_starts_when_enough_requests_are_queued(monkeypatch):
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", "3")
    bench = Bench("")
    for id in "ab":
        bench.submit(id)
        bench.clock.run()
    assert not bench.running
    bench.submit("c")
    bench.clock.run()
    assert bench.running == [["a", "b", "c"]]
    bench.submit("d")
    bench.pool.finish()
    assert bench.running == [["d"]]


@pytest.mark.parametrize(
    ("batching", "expected"),
    [
        ("", False),
        ("preferred_batch_size: 8", False),
        ("default_queue_policy { timeout_action: DELAY }", False),
        ("preferred_batch_size: [4, 8]", True),
        ("max_queue_delay_microseconds: 1", True),
        ("preserve_ordering: true", True),
        ("priority_levels: 2 default_priority_level: 1", True),
        ("default_queue_policy { max_queue_size: 1 }", True),
        ("default_queue_policy { default_timeout_microseconds: 1 }", True),
    ],
)
def test_plain_models_are_told_from_those_with_policies(batching, expected):
    assert needs_policies(config_of(f"dynamic_batching {{ {batching} }}").dynamic_batching, 8) is expected


def test_a_queue_is_not_full_of_what_an_idle_instance_could_run():
    bench = Bench("max_queue_delay_microseconds: 100000 default_queue_policy { max_queue_size: 4 }", max_batch_size=4)
    for id in "abcdefghij":  # all in one turn of the loop
        bench.submit(id)
    bench.clock.run()
    assert bench.running == [list("abcd")]
    assert bench.answers.order == ["i", "j"]
    assert bench.answers.error("i") == "QueueFull: [request id: i] Exceeds maximum queue size"
    bench.pool.finish()
    bench.clock.run()
    assert bench.running == [list("efgh")]


def test_clients_that_have_gone_make_room_in_a_full_queue():
    bench = Bench("default_queue_policy { max_queue_size: 2 }")
    free = bench.occupy()
    gone = [bench.submit("gone 0"), bench.submit("gone 1")]
    for request in gone:
        bench.batcher.cancel(request)
    bench.submit("new 0")
    bench.submit("new 1")
    bench.submit("refused")
    bench.clock.run()
    free()
    assert bench.running == [["new 0", "new 1"]]
    assert bench.statistics.counts.canceled_count == 2
    assert bench.statistics.counts.pending_count == 0


def test_a_timeout_costs_what_it_takes_out_and_not_what_waits():
    """4,000 waiting requests with a timeout, one of which is over: looking costs microseconds, not milliseconds."""
    config = config_of(
        "dynamic_batching { default_queue_policy { default_timeout_microseconds: 60000000 allow_timeout_override: true } }"
    )
    queue = PriorityQueue(config.dynamic_batching)
    answers = Answers()
    for index in range(4000):
        request = answers.request(str(index), timeout_us=1000 * (index + 1) if index % 100 == 0 else 0)
        queue.append(request)
    took_ns = []
    for index in range(0, 4000, 100):
        began_ns = time.perf_counter_ns()
        late = queue.expire(1_000_000 * (index + 1))
        took_ns.append(time.perf_counter_ns() - began_ns)
        assert [request.id for request in late] == [str(index)]
    assert len(queue) == 4000 - 40
    assert min(took_ns) < 200_000


def test_deadlines_of_requests_that_have_left_take_no_room():
    config = config_of("dynamic_batching { default_queue_policy { default_timeout_microseconds: 60000000 } }")
    queue = PriorityQueue(config.dynamic_batching)
    answers = Answers()
    for index in range(10_000):
        queue.append(answers.request(str(index)))
        assert queue.popleft().id == str(index)
    (level,) = queue._levels
    assert len(level._deadlines) < 100
    assert queue.next_deadline_ns == NEVER_NS


def test_any_number_of_priority_levels_costs_what_is_in_use():
    levels = 2**64 - 1
    config = config_of(f"dynamic_batching {{ priority_levels: {levels} default_priority_level: {levels // 2} }}")
    queue = PriorityQueue(config.dynamic_batching)
    answers = Answers()
    for priority in (levels, 3, 0, levels - 1, 1):
        queue.append(answers.request(str(priority), priority=priority))
    assert [queue.popleft().id for _ in range(5)] == ["1", "3", "0", str(levels - 1), str(levels)]
    queue.append(answers.request("waits", priority=levels))
    for priority in range(1, 5000):
        queue.append(answers.request(str(priority), priority=priority))
        assert queue.popleft().id == str(priority)
    assert len(queue._levels) <= 64
    assert queue.popleft().id == "waits" and not queue


@pytest.mark.parametrize(
    ("batching", "rows", "reasons"),
    [
        ("max_queue_delay_microseconds: 2000", [8], {"full": 1}),
        ("max_queue_delay_microseconds: 2000", [3], {"delay": 1}),
        ("preferred_batch_size: [4] max_queue_delay_microseconds: 2000", [2, 2], {"preferred": 1}),
        ("preferred_batch_size: [8] max_queue_delay_microseconds: 2000", [5, 5], {"next_differs": 1, "delay": 1}),
        ("priority_levels: 2", [2, 2], {"none_waits": 1}),
    ],
)
def test_each_batch_is_counted_by_why_it_left(batching, rows, reasons):
    bench = Bench(batching)
    for number, count in enumerate(rows):
        bench.submit(str(number), count)
    bench.clock.run()
    while bench.pool.running:
        bench.pool.finish()
    bench.clock.advance(2)
    while bench.pool.running:
        bench.pool.finish()
    assert reasons_of(bench.statistics) == reasons


def test_the_oldest_request_of_all_priorities_tells_how_long_it_has_waited():
    bench = Bench("priority_levels: 2 default_priority_level: 2")
    bench.occupy()
    assert bench.batcher.oldest_queued_ns == 0
    oldest = bench.submit("a", priority=2)
    bench.clock.advance(3)
    bench.submit("b", priority=1)
    assert bench.batcher.oldest_queued_ns == oldest.queued_ns < bench.clock.now_ns()


def test_clients_that_ask_again_when_they_are_answered_do_not_disturb_a_batch_that_is_being_formed():
    bench = Bench(
        "priority_levels: 2 default_priority_level: 1 "
        "priority_queue_policy { key: 1 value { default_timeout_microseconds: 1000 } } "
        "priority_queue_policy { key: 2 value { max_queue_size: 1 } }",
        max_batch_size=1,
    )
    bench.submit("busy")
    bench.clock.run()
    more = iter((("high", 1), ("low", 2)))

    def ask_again(request, result):
        bench.answers(request, result)
        id, priority = next(more)
        bench.submit(id, priority=priority)

    for id in ("late 0", "late 1"):
        bench.submit(id, priority=1).reply = ask_again
    bench.submit("waits", priority=2)
    bench.clock.time_ns += 5 * MS
    while bench.pool.running:
        bench.pool.finish()
    assert sorted(bench.answers.order) == ["busy", "high", "late 0", "late 1", "low", "waits"]
    assert bench.answers.error("low").startswith("QueueFull: ")
