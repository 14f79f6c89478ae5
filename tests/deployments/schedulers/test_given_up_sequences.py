"""Sequences that are cancelled, expire, go on elsewhere, or whose server stops."""

import time

import pytest

from deployments.schedulers.scheduler import STOPPING
from deployments.schedulers.sequence import EXPIRED, MOVED
from tests.deployments.fakes import MS
from tests.deployments.schedulers.sequences import END, NO_START, ONLY, START, Sequences, both, sequence_config


def was_cancelled(sequence_id):
    return f"Cancelled: sequence {sequence_id} of model 'm' was cancelled"


def test_a_waiting_sequence_expires_as_a_whole_with_its_earliest_timeout():
    sequences = Sequences(sequence_config())
    sequences.send("a", 1, START)
    sequences.send("b", 2, START)
    sequences.send("c", 2, 0, timeout_us=50_000)
    sequences.clock.advance(49)
    assert not sequences.answers
    sequences.clock.advance(1)
    assert sequences.answers == {"b": f"Unavailable: {EXPIRED}", "c": f"Unavailable: {EXPIRED}"}
    assert sequences.statistics.counts.rejected_count == 2
    sequences.send("d", 2)
    assert sequences.answers["d"] == NO_START.format(2)


def test_waiting_sequences_expire_one_after_the_other():
    sequences = Sequences(sequence_config())
    sequences.send("a", 1, START)
    for sequence_id, timeout_ms in ((2, 30), (3, 10), (4, 20)):
        sequences.send(str(timeout_ms), sequence_id, START, timeout_us=timeout_ms * 1000)
    for expired in ("10", "20", "30"):
        assert expired not in sequences.answers
        sequences.clock.advance(10)
        assert sequences.answers[expired] == f"Unavailable: {EXPIRED}"


def test_a_sequence_goes_on_when_one_of_its_id_before_it_is_cancelled():
    sequences = Sequences(sequence_config())
    sequences.send("other", 1, ONLY)
    before = sequences.send("before", 2, START)
    sequences.send("first", 2, START, value=3)
    sequences.scheduler.cancel(before)
    sequences.send("second", 2, END, value=4)
    sequences.finish_all()
    assert sequences.answers == {"other": 2, "before": was_cancelled(2), "first": 3, "second": 9}


def when_answered(request, call):
    """Make a call from the reply to a request, as a client that gives up does."""
    answer = request.reply

    def reply(request, result):
        answer(request, result)
        call()

    request.reply = reply


ENDS = {
    "they are late": lambda sequences: sequences.clock.advance(5),
    "no instance comes back": lambda sequences: sequences.clock.advance(60_000),
    "the server stops": lambda sequences: sequences.scheduler.abandon(),
}


@pytest.mark.parametrize("end", ENDS)
def test_sequences_may_leave_the_backlog_while_others_in_it_are_given_up(end, caplog):
    sequences = Sequences(sequence_config(idle_us=1_000_000_000))
    sequences.pools[0].idle.clear()
    if end == "no instance comes back":
        sequences.pools[0].died()
    in_slot = sequences.send("a", 1, ONLY)
    timeout_us = 5_000 * (end == "they are late")
    waiting = [sequences.send(name, number, ONLY, timeout_us=timeout_us) for number, name in enumerate("bcd", 2)]
    when_answered(waiting[0], lambda: [sequences.scheduler.cancel(each) for each in (in_slot, waiting[2])])
    ENDS[end](sequences)
    sequences.pools[0].idle.append(object())
    sequences.pools[0].revived()
    sequences.clock.run()
    sequences.finish_all()
    assert sequences.answers.keys() == set("abcd")
    assert not caplog.text and not sequences.statistics.counts.pending_count


def test_a_sequence_that_comes_while_others_expire_expires_too():
    sequences = Sequences(sequence_config())
    sequences.send("a", 1, START)
    late = sequences.send("b", 2, ONLY, timeout_us=5_000)
    when_answered(late, lambda: sequences.send("c", 3, ONLY, timeout_us=5_000))
    sequences.clock.advance(9)
    assert sequences.answers == {"b": f"Unavailable: {EXPIRED}"}
    sequences.clock.advance(1)
    assert sequences.answers == dict.fromkeys("bc", f"Unavailable: {EXPIRED}")


@both
def test_to_cancel_a_request_that_waits_is_to_end_its_sequence(config):
    sequences = Sequences(config)
    sequences.send("a", 1, START)
    sequences.send("b", 1)
    waiting = sequences.send("c", 1)
    sequences.scheduler.cancel(waiting)
    sequences.send("d", 1)
    sequences.finish_all()
    assert sequences.answers == {"a": 1, "b": was_cancelled(1), "c": was_cancelled(1), "d": NO_START.format(1)}
    assert sequences.statistics.counts.canceled_count == 2
    sequences.send("e", 2, ONLY)
    sequences.finish_all()
    assert sequences.answers["e"] == 3


@both
@pytest.mark.parametrize(("cancelled", "left"), [("b", {"c": 3, "d": 5}), ("c", {"b": 3})])
def test_to_cancel_one_sequence_is_not_to_end_another_of_its_id(config, cancelled, left):
    sequences = Sequences(config)
    sequences.send("a", 1, START)
    sent = {"b": sequences.send("b", 1, END), "c": sequences.send("c", 1, START, value=3)}
    sequences.send("d", 1, END)
    sequences.scheduler.cancel(sent[cancelled])
    sequences.finish_all()
    gone = {"b": ("b",), "c": ("c", "d")}[cancelled]
    assert sequences.answers == {"a": 1, **left, **dict.fromkeys(gone, was_cancelled(1))}
    assert not sequences.scheduler.sequence_count


def test_to_cancel_a_request_that_waits_for_the_instance_is_not_to_end_another_sequence_of_its_id():
    sequences = Sequences(sequence_config("oldest { max_candidate_sequences: 2 }"))
    sequences.send("a", 1, START)
    waiting = sequences.send("b", 2, START)
    for name, flags in (("c", END), ("d", START), ("e", END)):
        sequences.send(name, 2, flags)
    sequences.scheduler.cancel(waiting)
    sequences.clock.advance(20)
    sequences.finish_all()
    assert sequences.answers == {"b": "Cancelled: ", "c": was_cancelled(2), "a": 1, "d": 1, "e": 4}


def test_to_give_up_a_sequence_in_the_backlog_is_not_to_end_another_of_its_id():
    sequences = Sequences(sequence_config())
    sequences.send("a", 1, START)
    late = [sequences.send("b", 2, ONLY, timeout_us=9_000), sequences.send("c", 2, ONLY, timeout_us=5_000)]
    for name in ("d", "e"):
        sequences.send(name, 2, ONLY)
    sequences.scheduler.cancel(late[0])
    sequences.clock.advance(6)
    sequences.send("f", 1, END)
    sequences.finish_all()
    assert sequences.answers == {"b": was_cancelled(2), "c": f"Unavailable: {EXPIRED}", "a": 1, "f": 3, "d": 3, "e": 3}
    assert sequences.statistics.counts.pending_count == 0


def test_to_cancel_a_request_takes_no_longer_where_there_are_many_slots():
    sequences = Sequences(sequence_config("oldest { max_candidate_sequences: 65536 }"))
    answered = sequences.send("a", 1, ONLY)
    sequences.finish_all()
    began_ns = time.perf_counter_ns()
    for _ in range(100):
        sequences.scheduler.cancel(answered)
    assert time.perf_counter_ns() - began_ns < 100 * MS


def test_a_sequence_of_which_all_is_cancelled_before_any_has_run_leaves_its_slot():
    sequences = Sequences(sequence_config(max_batch_size=2))
    sequences.send("a", 1, START)
    sequences.scheduler.cancel(sequences.send("b", 2, START))
    sequences.send("c", 3, ONLY)
    sequences.finish_all()
    assert sequences.answers == {"b": was_cancelled(2), "a": 1, "c": 4}


def test_a_request_that_waits_for_the_instance_is_cancelled_while_that_is_busy():
    sequences = Sequences(sequence_config("oldest { max_candidate_sequences: 2 }"))
    sequences.send("a", 1, START)
    waiting = sequences.send("b", 2, START)
    sequences.send("c", 2)
    sequences.scheduler.cancel(waiting)
    sequences.clock.advance(20)
    assert sequences.answers == {"b": "Cancelled: ", "c": was_cancelled(2)}
    sequences.send("d", 3, ONLY)
    sequences.finish_all()
    assert sequences.answers == {"b": "Cancelled: ", "c": was_cancelled(2), "a": 1, "d": 4}


@both
def test_a_sequence_that_has_started_elsewhere_ends_here(config):
    sequences = Sequences(config)
    sequences.send("a", 1, START)
    for name, number, flags in (("b", 1, 0), ("c", 2, START)):
        sequences.send(name, number, flags)
    for number in (1, 7):
        sequences.scheduler.end_sequence(number)
    sequences.finish_all()
    sequences.send("d", 1)
    sequences.send("e", 2)
    sequences.finish_all()
    moved = f"Unavailable: {MOVED.format(1, 'm')}"
    assert sequences.answers == {"a": 1, "b": moved, "c": 1, "d": NO_START.format(1), "e": 2}


def test_a_sequence_in_the_backlog_that_has_started_elsewhere_ends_here():
    sequences = Sequences(sequence_config())
    sequences.send("a", 1, START)
    sequences.send("b", 2, START)
    sequences.scheduler.end_sequence(2)
    assert sequences.answers == {"b": f"Unavailable: {MOVED.format(2, 'm')}"}


def test_to_cancel_a_request_in_the_backlog_is_to_end_its_sequence():
    sequences = Sequences(sequence_config())
    sequences.send("a", 1, START)
    sequences.send("b", 2, START)
    sequences.scheduler.cancel(sequences.send("c", 2))
    assert sequences.answers == {"b": was_cancelled(2), "c": was_cancelled(2)}


@both
def test_a_stopping_server_takes_no_new_sequences_and_finishes_the_others(config):
    sequences = Sequences(config)
    drained = []
    sequences.send("a", 1, START)
    sequences.scheduler.drain(lambda: drained.append(True))
    sequences.send("b", 1, END)
    sequences.send("c", 2, START)
    assert not drained
    sequences.finish_all()
    assert drained == [True]
    assert sequences.answers == {
        "a": 1,
        "b": 3,
        "c": "Unavailable: Server is stopping, scheduler for model has stopped accepting new inference requests",
    }


@both
@pytest.mark.parametrize("running", [False, True], ids=["nothing runs", "what runs is abandoned"])
def test_a_server_that_has_stopped_takes_nothing_more_of_sequences_that_have_not_ended(config, running):
    sequences = Sequences(config)
    sequences.send("a", 1, START)
    sequences.finish_all()
    if running:
        sequences.send("b", 1)
    drained = []
    sequences.scheduler.drain(lambda: drained.append(True))
    sequences.clock.run()
    assert bool(drained) != running
    if running:
        sequences.scheduler.abandon()
    sequences.send("c", 1)  # which no instance would run any more
    assert sequences.answers == {"a": 1, "c": f"Unavailable: {STOPPING}"}


@both
def test_what_is_abandoned_is_answered(config):
    sequences = Sequences(config)
    for sequence_id in range(1, 7):
        sequences.send(f"{sequence_id}", sequence_id, START)
        sequences.send(f"{sequence_id} more", sequence_id)
    sequences.scheduler.abandon()
    sequences.finish_all()
    assert len(sequences.answers) == 12
    assert sequences.statistics.counts.pending_count == 0
