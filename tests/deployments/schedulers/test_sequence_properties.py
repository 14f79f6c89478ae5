"""The sequence batcher against a plain model of its rules: random requests, batches, cancellations and times."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.core.counts import Totals
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.sequence import SequenceScheduler
from protocol.errors import Internal
from protocol.infer import RESCHEDULED, SEQUENCE_END, SEQUENCE_START
from tests.deployments.fakes import Answers, FakeClock, FakePool, config_of
from tests.deployments.schedulers.sequences import END, START, InstanceOfPool, Sequences, sequence_config

IDLE_MS = 100


class Sequence:
    """A sequence that may go on or whose requests still wait or run."""

    def __init__(self, sequence_id):
        self.id = sequence_id
        self.open = True
        self.left = deque()
        self.used_ms = 0
        self.sum = 0


class Rules:
    """What the catalog says, without instances and batches: slots, a backlog, and who is in which."""

    def __init__(self, slot_count):
        self.slots = [None] * slot_count
        self.backlog = []
        self.now_ms = 0
        self.expected = {}

    def submit(self, name, sequence_id, flags, value):
        sequence = next((each for each in self._all() if each.id == sequence_id), None)
        if not flags & START and (sequence is None or not sequence.open):
            self.expected[name] = "START"
            return
        if sequence is None:
            sequence = Sequence(sequence_id)
            if None in self.slots:
                self.slots[self.slots.index(None)] = sequence
            else:
                self.backlog.append(sequence)
        sequence.left.append((name, flags, value))
        sequence.used_ms = self.now_ms
        sequence.open = not flags & END

    def answered(self, name):
        """Take one request out of its sequence, which is the first that waits there."""
        sequence = next(each for each in self._all() if any(name == left[0] for left in each.left))
        first, flags, value = sequence.left.popleft()
        assert first == name, "out of order"
        assert sequence in self.slots, "ran without a slot"
        sequence.sum = (0 if flags & START else sequence.sum) + value
        self.expected[name] = sequence.sum + (sequence.id if flags & END else 0)
        self._release()

    def advance(self, ms):
        self.now_ms += ms
        for sequence in self.slots:
            if sequence is not None and self.now_ms - sequence.used_ms >= IDLE_MS:
                if sequence.left:
                    sequence.used_ms = self.now_ms
                else:
                    sequence.open = False
        self._release()

    def _release(self):
        for index, sequence in enumerate(self.slots):
            if sequence is not None and not sequence.open and not sequence.left:
                self.slots[index] = self.backlog.pop(0) if self.backlog else None
                if self.slots[index] is not None:
                    self.slots[index].used_ms = self.now_ms

    def _all(self):
        return [each for each in self.slots if each is not None] + self.backlog


FLAGS = st.sampled_from([0, 0, 0, START, START, END, START | END])
OPERATION = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 4), FLAGS),
    st.tuples(st.just("finish"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("advance"), st.sampled_from([10, 60, 110]), st.just(0)),
)

STRATEGIES = st.sampled_from(
    [("direct { }", 1), ("direct { }", 2), ("oldest { max_candidate_sequences: 2 }", 2), ("oldest { }", 1)]
)


@settings(max_examples=300, deadline=None)
@given(STRATEGIES, st.integers(1, 2), st.lists(OPERATION, max_size=40))
def test_every_request_gets_what_the_rules_say(strategy, instances, operations):
    text, max_batch_size = strategy
    slots = 2 if "max_candidate" in text else max_batch_size
    real = Sequences(sequence_config(text, max_batch_size, idle_us=IDLE_MS * 1000), instances)
    rules = Rules(slots * instances)
    compared = 0

    def follow():
        nonlocal compared
        for name in list(real.answers)[compared:]:
            if rules.expected.get(name) != "START":
                rules.answered(name)
            compared += 1

    def advance(ms):
        for _ in range(0, ms, 10):
            rules.advance(10)
            real.clock.advance(10)
            follow()

    for number, (what, one, flags) in enumerate(operations):
        if what == "send":
            rules.submit(str(number), one, flags, number)
            real.send(str(number), one, flags, value=number)
        elif what == "finish":
            if one < instances and real.pools[one].running:
                real.finish(one)
        else:
            advance(one)
        follow()
    for _ in range(len(operations) + 1):  # sequences that nobody ends leave their slots to those in the backlog
        while any(pool.running for pool in real.pools):
            next(pool for pool in real.pools if pool.running).finish()
            follow()
        advance(IDLE_MS)
    answers = {name: "START" if "START flag" in str(answer) else answer for name, answer in real.answers.items()}
    assert answers == rules.expected
    counts = real.statistics.counts
    assert counts.success_count == sum(answer != "START" for answer in answers.values())
    assert counts.pending_count == 0
    for pool in real.pools:
        for batch in pool.batches:
            ran = [sequence_id for sequence_id in batch if sequence_id is not None]
            assert len(ran) == len(set(ran)) and len(batch) <= max_batch_size


@settings(max_examples=100, deadline=None)
@given(STRATEGIES, st.lists(st.tuples(st.integers(1, 4), FLAGS, st.booleans()), max_size=30), st.data())
def test_whatever_is_cancelled_every_request_is_answered_once(strategy, requests, data):
    text, max_batch_size = strategy
    real = Sequences(sequence_config(text, max_batch_size, idle_us=IDLE_MS * 1000), 1)
    sent = []
    for number, (sequence_id, flags, finishes) in enumerate(requests):
        sent.append(real.send(str(number), sequence_id, flags, value=1))
        if data.draw(st.booleans()):
            real.scheduler.cancel(data.draw(st.sampled_from(sent)))
            real.clock.run()
        if finishes and real.pools[0].running:
            real.finish()
    for _ in range(len(requests) + 1):
        real.finish_all()
        real.clock.advance(IDLE_MS)
    assert real.answers.keys() == {request.id for request in sent}
    assert real.statistics.counts.pending_count == 0
    real.send("last", 99, START | END)
    real.finish_all()
    assert real.answers["last"] == 100


class MortalPool(InstanceOfPool):
    """A pool whose instance forgets its sequences when it dies; it refuses to go on with one that it does not know."""

    def __init__(self, clock):
        super().__init__(clock)
        self.known = set()
        self.dead = False

    def run(self, batch):
        super().run(batch)
        for request in batch.requests:
            if request.sequence_id and request.inputs["READY"].flat[0]:
                assert request.flags & START or request.sequence_id in self.known, "goes on with what it does not know"
                self.known.add(request.sequence_id)

    def die(self):
        """End as a process does: first its sequences are over, then the batch that it ran fails."""
        self.dead = True
        self.idle.clear()
        self.known.clear()
        self.died()
        for batch in self.running:
            batch.infer_start_ns = batch.infer_end_ns = batch.end_ns = self.clock.now_ns()
            batch.results = [Internal("died")] * len(batch.requests)
            self.finished(batch)
        self.running.clear()
        self.clock.run()

    def revive(self):
        """Come back as a new process."""
        self.dead = False
        self.idle.append(object())
        self.revived()
        self.clock.run()


LIFE = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 2), st.sampled_from([0, START])),
    st.tuples(st.sampled_from(["finish", "finish", "die", "revive"]), st.integers(0, 1), st.just(0)),
)


@settings(max_examples=300, deadline=None)
@given(STRATEGIES, st.integers(1, 2), st.lists(LIFE, min_size=10, max_size=40))
def test_no_instance_goes_on_with_a_sequence_of_one_that_has_died(strategy, instances, operations):
    text, max_batch_size = strategy
    real = Sequences(sequence_config(text, max_batch_size, idle_us=IDLE_MS * 1000), instances, pool=MortalPool)
    for number, (what, one, flags) in enumerate(operations):
        pool = real.pools[one % instances]
        if what == "send":
            real.send(str(number), one, flags, value=number)
        elif what == "finish" and pool.running:
            pool.finish()
        elif what == "die" and not pool.dead:
            pool.die()
        elif what == "revive" and pool.dead:
            pool.revive()
    for pool in real.pools:
        if pool.dead:
            pool.revive()
    for _ in range(len(operations) + 1):
        real.finish_all()
        real.clock.advance(IDLE_MS)
    sent = {str(number) for number, (what, *_) in enumerate(operations) if what == "send"}
    assert real.answers.keys() == sent
    assert real.statistics.counts.pending_count == 0


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { }"])
def test_the_only_request_of_a_sequence_runs_again_too_and_is_answered(strategy):
    config = config_of(f"sequence_batching {{ {strategy} iterative_sequence: true max_sequence_idle_microseconds: 9 }}")
    clock, answers = FakeClock(), Answers()
    pool = FakePool(clock)
    scheduler = SequenceScheduler(config, [pool], ModelStatistics("m", 1, Totals()), clock)
    request = answers.request("r", sequence_id=7, flags=SEQUENCE_START | SEQUENCE_END)
    scheduler.submit(request)
    clock.run()
    for _ in range(2):
        request.flags |= RESCHEDULED
        pool.finish()
        assert not answers.order and pool.running
    pool.finish()
    assert answers.order == ["r"] and not scheduler._slots.has(7)
    drained = []
    scheduler.drain(lambda: drained.append(1))
    clock.run()
    assert drained
