"""Many sequences at a time, through two ingresses to the schedulers of two replicas."""

import random
from dataclasses import dataclass

from deployments.lane.sequence_lanes import SequenceLanes
from protocol.sequence_mark import SequenceMark
from tests.deployments.schedulers.sequences import END, START, Sequences, sequence_config

COUNT = 10_000


@dataclass(eq=False)
class Replica:
    """A replica of two instances; sequences without a slot wait in its backlog."""

    replica_id: str
    near: bool = True

    def __post_init__(self) -> None:
        self.sequences = Sequences(sequence_config("oldest { max_candidate_sequences: 4096 }", 8, 10**12), 2)


def test_ten_thousand_interleaved_sequences_end_with_their_sums():
    chance = random.Random(10)
    ingresses = [SequenceLanes(60, lambda: 0.0) for _ in range(2)]
    replicas = [Replica("one"), Replica("two")]
    left = {number: [chance.randrange(1000) for _ in range(3)] for number in range(1, COUNT + 1)}
    sums = {f"{number}-0": sum(values) + number for number, values in left.items()}
    order = [number for number in left for _ in range(3)]
    chance.shuffle(order)
    for number in order:
        values = left[number]
        flags = (START if len(values) == 3 else 0) | (END if len(values) == 1 else 0)
        mark = SequenceMark(number, bool(flags & START), bool(flags & END))
        replica = chance.choice(ingresses).choose(mark, replicas)
        value = values.pop()
        replica.sequences.send(f"{number}-{len(values)}", number, flags, value=value)
    for replica in replicas:
        replica.sequences.finish_all()
    answers = replicas[0].sequences.answers | replicas[1].sequences.answers
    assert len(answers) == 3 * COUNT
    assert {name: answers[name] for name in sums} == sums
    assert all(len(replica.sequences.answers) > COUNT for replica in replicas)
