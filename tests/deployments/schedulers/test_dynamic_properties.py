"""The queue of a model against a plain model of its rules: random requests, times, cancellations and instances."""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.core.counts import Totals
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.default import DefaultScheduler
from deployments.schedulers.dynamic import DynamicBatcher
from deployments.schedulers.fifo import FifoBatcher
from protocol.errors import ServingError
from protocol.signature import Signature
from tests.deployments.fakes import Answers, FakeClock, FakePool, config_of

MAX_ROWS = 4


@dataclass(frozen=True)
class Policy:
    """What `dynamic_batching` says, in milliseconds."""

    preferred: tuple[int, ...] = (MAX_ROWS,)
    delay_ms: int = 0
    preserve_ordering: bool = False
    levels: int = 1
    queue_size: int = 0
    timeout_ms: int = 0
    override: bool = False
    delays_late: bool = False

    def text(self):
        action = "DELAY" if self.delays_late else "REJECT"
        parts = [
            f"preferred_batch_size: {list(self.preferred)} max_queue_delay_microseconds: {self.delay_ms * 1000}",
            "preserve_ordering: true" if self.preserve_ordering else "",
            f"priority_levels: {self.levels} default_priority_level: {self.levels}" if self.levels > 1 else "",
            f"default_queue_policy {{ max_queue_size: {self.queue_size} timeout_action: {action} "
            f"default_timeout_microseconds: {self.timeout_ms * 1000} allow_timeout_override: {str(self.override).lower()} }}",
        ]
        return f"max_batch_size: {MAX_ROWS} {VARIABLE} dynamic_batching {{ {' '.join(parts)} }}"


@dataclass(eq=False)
class Waiting:
    name: str
    rows: int
    width: int
    level: int
    came_ms: int
    ends_ms: float
    late: bool = False


@dataclass
class Rules:
    """The rules without queues per level, timers and turns: one list, looked at from its beginning every time."""

    policy: Policy
    idle: int
    waiting: list[Waiting] = field(default_factory=list)
    formed: list[list[str]] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    now_ms: int = 0

    def submit(self, name, rows, width, priority, timeout_ms):
        policy = self.policy
        level = priority if 0 < priority <= policy.levels else policy.levels
        if policy.queue_size and sum(each.level == level for each in self.waiting) >= policy.queue_size:
            self.answers[name] = "full"
            return
        allowed_ms = policy.timeout_ms
        if policy.override and 0 < timeout_ms < allowed_ms:
            allowed_ms = timeout_ms
        ends_ms = self.now_ms + allowed_ms if allowed_ms else float("inf")
        self.waiting.append(Waiting(name, rows, width, level, self.now_ms, ends_ms))

    def cancel(self, name):
        for each in [each for each in self.waiting if each.name == name]:
            self.waiting.remove(each)
            self.answers[name] = "cancelled"

    def form_all(self):
        while self.idle and (batch := self._form()):
            self.idle -= 1
            self.formed.append([each.name for each in batch])
            for each in batch:
                self.waiting.remove(each)

    def expire(self):
        for each in [each for each in self.waiting if each.ends_ms <= self.now_ms and not each.late]:
            self.waiting.remove(each)
            if self.policy.delays_late:
                each.late = True
                self.waiting.append(each)
            else:
                self.answers[each.name] = "expired"

    def _form(self):
        policy = self.policy
        queue = sorted(self.waiting, key=lambda each: (each.level, each.late))  # sorted keeps the order of arrival
        whole = [each for end, each in enumerate(queue, 1) if self._fits(queue[:end])]
        if not whole:
            return []
        closed = len(whole) < len(queue)
        age_ms = self.now_ms - min(each.came_ms for each in whole)
        if policy.delay_ms and age_ms >= policy.delay_ms:
            return whole
        prefixes = [whole[:end] for end in range(1, len(whole) + 1)]
        preferred = [prefix for prefix in prefixes if _rows(prefix) in policy.preferred]
        if preferred:
            return preferred[-1]
        if _rows(whole) > max(policy.preferred) and len(whole) > 1:
            return next(p for p, longer in pairwise(prefixes) if _rows(longer) > max(policy.preferred))
        if closed or not policy.delay_ms or _rows(whole) >= max(policy.preferred):
            return whole
        return []

    def _fits(self, batch):
        alike = len({each.width for each in batch}) == 1
        return len(batch) == 1 or (alike and _rows(batch) <= MAX_ROWS)


def _rows(batch):
    return sum(each.rows for each in batch)


VARIABLE = 'input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }'
SEND = st.tuples(
    st.just("send"), st.integers(1, MAX_ROWS), st.integers(1, 2), st.integers(0, 3), st.sampled_from([0, 0, 3])
)
OPERATION = st.one_of(
    SEND,
    SEND,
    st.tuples(st.just("finish"), st.integers(0, 1)),
    st.tuples(st.just("cancel"), st.integers(0, 60)),
    st.tuples(st.just("advance"), st.sampled_from([1, 4, 11])),
)
POLICY = st.builds(
    Policy,
    preferred=st.sampled_from([(MAX_ROWS,), (2,), (1, 3), (2, 4)]),
    delay_ms=st.sampled_from([0, 0, 5]),
    preserve_ordering=st.booleans(),
    levels=st.just(1),
    queue_size=st.sampled_from([0, 0, 2]),
    timeout_ms=st.sampled_from([0, 0, 8]),
    override=st.booleans(),
) | st.builds(
    Policy,
    preferred=st.sampled_from([(MAX_ROWS,), (2,), (2, 4)]),
    delay_ms=st.sampled_from([0, 5]),
    levels=st.integers(2, 3),
    queue_size=st.sampled_from([0, 2]),
    timeout_ms=st.sampled_from([0, 8]),
    override=st.booleans(),
    delays_late=st.booleans(),
)


class Bench:
    """A scheduler over a pool that the test finishes, and every batch that it has formed."""

    def __init__(self, text, make, instances):
        config = config_of(text)
        self.clock = FakeClock()
        self.pool = FakePool(self.clock, instances)
        self.statistics = ModelStatistics("m", 1, Totals())
        self.answers = Answers()
        self.formed = []
        run = self.pool.run

        def note(batch):
            self.formed.append([request.id for request in batch.requests])
            run(batch)

        self.pool.run = note
        self.scheduler = make(config, Signature.from_config(config), self.pool, self.statistics, self.clock)
        self.requests = {}

    def send(self, name, rows, width, priority, timeout_ms):
        x = np.zeros((rows, width), np.float32)
        request = self.answers.request(name, rows, inputs={"X": x}, priority=priority, timeout_us=timeout_ms * 1000)
        self.requests[name] = request
        self.scheduler.submit(request)
        self.clock.run()

    def outcome(self, name):
        result = self.answers.results[name]
        if not isinstance(result, ServingError):
            return "done"
        told = {"": "cancelled", "Request timeout expired": "expired"}
        return told.get(result.message, "full" if "Exceeds maximum queue size" in result.message else result.message)


def compare(bench, rules, operations):
    """Do the same with both; every batch is the same, at the same moment, and so is every answer in the end."""
    formed_count = finished = 0
    order = []
    running = []
    done = set()

    def look():
        nonlocal formed_count
        rules.form_all()
        running.extend(rules.formed[formed_count:])
        formed_count = len(rules.formed)
        assert bench.formed == rules.formed

    def finish(index):
        nonlocal finished
        batch = running.pop(index)
        done.add(tuple(batch))
        if rules.policy.preserve_ordering:
            while finished < len(rules.formed) and tuple(rules.formed[finished]) in done:
                order.extend(rules.formed[finished])
                finished += 1
        else:
            order.extend(batch)
        rules.idle += 1
        bench.pool.finish(index)

    def pass_a_millisecond():
        rules.now_ms += 1
        bench.clock.advance(1)
        rules.expire()

    for number, (what, *arguments) in enumerate(operations):
        if what == "send":
            rules.submit(str(number), *arguments)
            bench.send(str(number), *arguments)
        elif what == "finish" and arguments[0] < len(running):
            finish(arguments[0])
        elif (
            what == "cancel" and str(arguments[0]) in bench.requests and str(arguments[0]) not in bench.answers.results
        ):
            rules.cancel(str(arguments[0]))
            bench.scheduler.cancel(bench.requests[str(arguments[0])])
        elif what == "advance":
            for _ in range(arguments[0]):
                pass_a_millisecond()
                look()
        look()
    while running or rules.waiting:
        if running:
            finish(0)
        else:
            pass_a_millisecond()
        look()
    bench.scheduler.drain(lambda: None)
    bench.clock.run()
    expected = rules.answers | dict.fromkeys(order, "done")
    got = {name: bench.outcome(name) for name in bench.requests}
    # Whether one that was given up, and was late too, hears the one or the other is nobody's concern.
    assert {name: got[name] for name in got if expected[name] != "cancelled"} == {
        name: each for name, each in expected.items() if each != "cancelled"
    }
    assert all(got[name] in ("cancelled", "expired") for name in got if expected[name] == "cancelled")
    assert [name for name in bench.answers.order if got[name] == "done"] == order
    counts = bench.statistics.counts
    assert counts.success_count == len(order) and counts.execution_count == len(rules.formed)
    assert counts.pending_count == 0
    assert counts.canceled_count + counts.rejected_count == sum(
        each in ("cancelled", "expired", "full") for each in got.values()
    )


@settings(max_examples=400, deadline=None)
@given(POLICY, st.integers(1, 2), st.lists(OPERATION, max_size=40))
def test_the_dynamic_batcher_does_what_the_rules_say(policy, instances, operations):
    bench = Bench(policy.text(), lambda config, *rest: DynamicBatcher(config.dynamic_batching, *rest), instances)
    compare(bench, Rules(policy, instances), operations)


PLAIN = st.one_of(
    st.tuples(st.just("send"), st.integers(1, MAX_ROWS), st.integers(1, 2), st.just(0), st.just(0)),
    st.tuples(st.just("finish"), st.integers(0, 1)),
    st.tuples(st.just("cancel"), st.integers(0, 60)),
)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 2), st.lists(PLAIN, max_size=40))
def test_the_fifo_batcher_follows_the_same_rules_without_policies(instances, operations):
    bench = Bench(f"max_batch_size: {MAX_ROWS} {VARIABLE}", lambda config, *rest: FifoBatcher(*rest), instances)
    compare(bench, Rules(Policy(), instances), operations)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 2), st.lists(PLAIN, max_size=40))
def test_without_a_batcher_every_request_is_a_batch(instances, operations):
    bench = Bench(
        f"max_batch_size: {MAX_ROWS} {VARIABLE}", lambda config, signature, *rest: DefaultScheduler(*rest), instances
    )

    class Alone(Rules):
        def _form(self):
            return self.waiting[:1]

    compare(bench, Alone(Policy(), instances), operations)
