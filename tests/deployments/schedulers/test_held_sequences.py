"""The variables of Triton's tests that hold the first batch of a sequence batcher back."""

from deployments.schedulers.dynamic import HOLD_VARIABLE
from deployments.schedulers.sequence import BACKLOG_HOLD_VARIABLE
from tests.deployments.schedulers.sequences import END, ONLY, START, Sequences, sequence_config


def test_variables_hold_the_first_batch_back(monkeypatch):
    monkeypatch.setenv(HOLD_VARIABLE, "3")
    monkeypatch.setenv(BACKLOG_HOLD_VARIABLE, "2")
    sequences = Sequences(sequence_config("direct { }", 1), instances=2)
    for name, sequence_id, flags in (("a", 1, START), ("b", 2, START), ("c", 1, 0), ("d", 3, START), ("e", 4, START)):
        assert not any(pool.batches for pool in sequences.pools)
        sequences.send(name, sequence_id, flags)
    assert [pool.batches for pool in sequences.pools] == [[[1]], [[2]]]


def test_a_sequence_that_follows_one_of_its_id_is_held_as_one_in_the_backlog(monkeypatch):
    monkeypatch.setenv(HOLD_VARIABLE, "3")
    monkeypatch.setenv(BACKLOG_HOLD_VARIABLE, "2")
    sequences = Sequences(sequence_config("direct { }", 2))
    sent = (("a", 1, START), ("b", 1, END), ("c", 2, ONLY), ("a anew", 1, START), ("b anew", 1, END))
    for name, sequence_id, flags in sent:
        assert not sequences.pools[0].batches
        sequences.send(name, sequence_id, flags)
    sequences.finish_all()
    assert sequences.pools[0].batches == [[1, 2], [1], [1], [1]]
