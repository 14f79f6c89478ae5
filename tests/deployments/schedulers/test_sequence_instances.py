"""Sequences whose instance dies and comes back, and what a scheduler that is drained leaves behind."""

import pytest

from tests.deployments.schedulers.sequences import ONLY, START, Sequences, sequence_config

STRATEGIES = ["direct { }", "oldest { max_candidate_sequences: 1 }"]


def died(sequences: Sequences, pool: int) -> None:
    sequences.pools[pool].idle.clear()
    sequences.pools[pool].died()
    sequences.clock.run()


def came_back(sequences: Sequences, pool: int) -> None:
    sequences.pools[pool].idle.append(object())
    sequences.pools[pool].revived()
    sequences.clock.run()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sequence_waits_for_an_instance_that_is_back_only_where_no_other_has_a_slot(strategy: str) -> None:
    sequences = Sequences(sequence_config(strategy), instances=2)
    died(sequences, 0)
    for name, sequence_id in (("a", 1), ("b", 2), ("c", 3)):
        sequences.send(name, sequence_id, START)
    sequences.finish_all()
    assert sequences.answers == {"a": 1}
    came_back(sequences, 0)
    sequences.finish_all()
    assert sequences.answers == {"a": 1, "b": 1}
    sequences.clock.advance(2000)  # both are idle
    sequences.finish_all()
    assert sequences.answers == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_slots_of_an_instance_that_died_with_a_sequence_are_free_when_it_is_back(strategy: str) -> None:
    sequences = Sequences(sequence_config(strategy))
    sequences.send("a", 1, START)
    sequences.finish_all()
    died(sequences, 0)
    sequences.send("b", 2, START)
    assert not sequences.pools[0].running
    came_back(sequences, 0)
    sequences.finish_all()
    assert sequences.answers == {"a": 1, "b": 1}


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 2 }"])
def test_the_oldest_request_is_one_that_waits_in_a_slot_or_for_the_instance(strategy: str) -> None:
    sequences = Sequences(sequence_config(strategy, max_batch_size=2), instances=1)
    sequences.send("a", 1, START)
    assert not sequences.scheduler.oldest_queued_ns
    sequences.clock.advance(1)
    came_ns = sequences.clock.now_ns()
    sequences.send("b", 2, START)
    sequences.clock.advance(1)
    sequences.send("c", 1)
    assert sequences.scheduler.oldest_queued_ns == came_ns
    sequences.finish_all()
    assert not sequences.scheduler.oldest_queued_ns


def test_nothing_waits_for_sequences_of_a_model_that_is_gone() -> None:
    sequences = Sequences(sequence_config(idle_us=3_600_000_000))
    sequences.send("a", 1, START)
    sequences.finish_all()
    drained = []
    sequences.scheduler.drain(lambda: drained.append(True))
    sequences.clock.run()
    assert drained
    assert all(timer.cancelled for timer in sequences.clock.timers)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_of_a_model_that_is_gone_who_waits_for_a_slot_waits_for_no_client(strategy: str) -> None:
    sequences = Sequences(sequence_config(strategy, idle_us=3_600_000_000), instances=2)
    for name, sequence_id in (("idle", 1), ("busy", 2)):
        sequences.send(name, sequence_id, START)
    sequences.finish()
    for name, sequence_id, flags in (("a", 3, START), ("b", 3, 0), ("c", 4, ONLY), ("d", 5, START)):
        sequences.send(name, sequence_id, flags)
    drained = []
    sequences.scheduler.drain(lambda: drained.append(True))
    sequences.finish_all()
    assert sequences.answers == {"idle": 1, "busy": 1, "a": 1, "b": 2, "c": 5, "d": 1}
    assert drained == [True]
    assert not sequences.scheduler.sequence_count
