import pytest

from app.trace.sampler import Sampler, Sampling
from protocol.trace import TIMESTAMPS

TURNS = {
    "every request": (Sampling(TIMESTAMPS, 1), [1, 2, 3, 4, 5, 6, 7]),
    "one in three": (Sampling(TIMESTAMPS, 3), [3, 6]),
    "none": (Sampling(TIMESTAMPS, 0), []),
    "two in all": (Sampling(TIMESTAMPS, 2, 2), [2, 4]),
    "one in all, every request": (Sampling(TIMESTAMPS, 1, 1), [1]),
    "none in all": (Sampling(TIMESTAMPS, 1, 0), []),
}


@pytest.mark.parametrize(("sampling", "expected"), TURNS.values(), ids=TURNS)
def test_turns_are_taken(sampling: Sampling, expected: list[int]) -> None:
    sampler = Sampler(sampling)
    turns = []
    for number in range(1, 8):
        sampler.left -= 1
        if not sampler.left:
            sampler.taken()
            turns.append(number)
    assert turns == expected
