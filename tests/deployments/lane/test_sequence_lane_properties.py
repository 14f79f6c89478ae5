"""Sequences through two ingresses to replicas that die at random: the right sum, or one clear error, and never another."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.lane.sequence_lanes import SequenceLanes
from protocol.sequence_mark import SequenceMark


@dataclass(eq=False)
class Replica:
    """What the model of sums does: START sets, and a sequence that it does not know is refused."""

    replica_id: str
    near: bool = True
    calls: dict[int, SequenceMark] = field(default_factory=dict)
    sums: dict[int, int] = field(default_factory=dict)

    def add(self, mark, value):
        if not mark.starts and mark.sequence_id not in self.sums:
            return "START"
        total = self.sums[mark.sequence_id] = (0 if mark.starts else self.sums[mark.sequence_id]) + value
        if mark.ends:
            del self.sums[mark.sequence_id]
        return total


OPERATION = st.one_of(
    st.tuples(
        st.just("send"),
        st.integers(1, 6),
        st.sampled_from([0, 0, 0, 1]),
        st.sampled_from([0, 0, 0, 1]),
        st.integers(0, 1),
    ),
    st.tuples(st.just("die"), st.integers(0, 3)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(OPERATION, max_size=60))
def test_a_sequence_has_its_sum_until_its_replica_dies(operations):
    ingresses = [SequenceLanes(60, lambda: 0.0) for _ in range(2)]
    alive = [Replica(f"replica-{number}") for number in range(4)]
    sums = {}  # the plain model: one dictionary, from which a death takes what its replica held
    holder = {}
    for number, (what, *arguments) in enumerate(operations):
        if what == "die":
            if len(alive) > 1:
                dead = alive.pop(arguments[0] % len(alive))
                sums = {each: total for each, total in sums.items() if holder[each] is not dead}
            continue
        sequence_id, starts, ends, ingress = arguments
        mark = SequenceMark(sequence_id, bool(starts), bool(ends))
        replica = ingresses[ingress].choose(mark, alive)
        assert replica in alive
        if not starts and sequence_id not in sums:
            expected = "START"
        else:
            expected = sums[sequence_id] = (0 if starts else sums[sequence_id]) + number
            holder[sequence_id] = replica
            if ends:
                del sums[sequence_id]
        assert replica.add(mark, number) == expected


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(OPERATION, st.tuples(st.just("come"))), max_size=60))
def test_a_sequence_through_one_ingress_has_its_sum_though_replicas_come_and_die(operations):
    ingress = SequenceLanes(60, lambda: 0.0)
    alive = [Replica(f"replica-{number}") for number in range(2)]
    sums, holder = {}, {}
    for number, (what, *arguments) in enumerate(operations):
        if what == "come":
            alive.append(Replica(f"late-{number}"))
            continue
        if what == "die":
            if len(alive) > 1:
                dead = alive.pop(arguments[0] % len(alive))
                sums = {each: total for each, total in sums.items() if holder[each] is not dead}
            continue
        sequence_id, starts, ends, _ = arguments
        mark = SequenceMark(sequence_id, bool(starts), bool(ends))
        replica = ingress.choose(mark, alive)
        if starts or sequence_id in sums:
            total = sums[sequence_id] = (0 if starts else sums[sequence_id]) + number
            holder[sequence_id] = replica
            assert replica.add(mark, number) == total
            if ends:
                del sums[sequence_id]


class Scanned(SequenceLanes):
    """The plain model: looks at every call of the lane."""

    def _is_under_way(self, sequence_id, lane):
        return any(mark.sequence_id == sequence_id for mark in lane.calls.values())


STEP = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 4), st.booleans(), st.booleans()),
    st.tuples(st.sampled_from(["answer", "respond", "give up"]), st.integers(0, 30)),
    st.tuples(st.just("lose"), st.integers(0, 1)),
    st.tuples(st.just("wait"), st.sampled_from([1, 50, 70])),
)


@settings(max_examples=500, deadline=None)
@given(st.lists(STEP, max_size=80))
def test_a_sequence_is_idle_when_none_of_all_calls_of_its_lane_is_its_own(steps):
    now_s, call_id = 0.0, 0
    lanes = [Replica("one"), Replica("other")]
    both = SequenceLanes(60, lambda: now_s), Scanned(60, lambda: now_s)
    for what, number, *more in steps:
        under_way = [(lane, each) for lane in lanes for each in lane.calls]
        if what == "wait":
            now_s += number
        elif what == "lose":
            lane = lanes[number]
            lost, lane.calls = lane.calls, {}
            for mark in lost.values():
                for each in both:
                    each.answered(mark, lane)
        elif what == "send":
            mark = SequenceMark(number, *more)
            lane, expected = (each.choose(mark, lanes) for each in both)
            assert lane is expected
            call_id += 1
            lane.calls[call_id] = mark
            both[0].sent(mark, lane, call_id)
        elif under_way:
            lane, each = under_way[number % len(under_way)]
            mark = lane.calls[each] if what == "respond" else lane.calls.pop(each)
            for known in both:
                (known.left if what == "give up" else known.answered)(mark, lane)
        for sequence_id in range(1, 5):
            assert len({each.holds(sequence_id, lanes[:1]) for each in both}) == 1
            assert len({each.holds(sequence_id, lanes[1:]) for each in both}) == 1
    for lane in lanes:
        for each, mark in tuple(lane.calls.items()):
            del lane.calls[each]
            both[0].left(mark, lane)
    assert not both[0]._under_way
