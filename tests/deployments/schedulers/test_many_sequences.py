"""What many sequences cost those who have one of them."""

import time

import pytest

from tests.deployments.schedulers.sequences import START, Sequences, sequence_config

COUNT, WAITING_COUNT = 20_000, 1_000


@pytest.mark.parametrize("slot_count", [COUNT, COUNT // 2], ids=["in slots", "in the backlog"])
def test_to_give_requests_up_costs_the_same_however_many_sequences_there_are(slot_count: int) -> None:
    sequences = Sequences(sequence_config(f"oldest {{ max_candidate_sequences: {slot_count} }}", 8, 10**12))
    for number in range(1, COUNT + 1):
        sequences.send(f"{number}", number, START)
        sequences.finish_all()
    sequences.send("keeps the instance", 1)
    numbers = range(COUNT - WAITING_COUNT + 1, COUNT + 1)
    waiting = [sequences.send(f"{number} again", number) for number in numbers]
    began_s = time.thread_time()
    for request in waiting:
        sequences.scheduler.cancel(request)
    assert time.thread_time() - began_s < 0.2
    sequences.clock.advance(200)
    assert all(str(sequences.answers[request.id]).startswith("Cancelled: ") for request in waiting)
    assert sequences.scheduler.sequence_count == COUNT - WAITING_COUNT


def test_sequences_that_are_idle_end_at_the_same_cost_however_many_wait() -> None:
    sequences = Sequences(sequence_config("oldest { max_candidate_sequences: 400 }", 8, 1_000_000))
    for number in range(1, 401):
        sequences.send(f"{number}", number, START)
        sequences.finish_all()
        sequences.clock.advance(1)
    for number in range(1_000, 1_000 + COUNT):
        sequences.send(f"{number}", number, START)
    began_s = time.thread_time()
    sequences.clock.advance(999)
    assert time.thread_time() - began_s < 0.4
    sequences.finish_all()
    assert len(sequences.answers) == 800
