"""The sequence batcher, rule by rule."""

import numpy as np
import pytest

from deployments.schedulers.sequence_controls import SequenceControls
from protocol.errors import Internal, InvalidArgument
from protocol.infer import COPIED, RESCHEDULED, InferRequest
from protocol.trace import CONTEXT, TIMESTAMPS, new_trace
from tests.deployments.fakes import MS
from tests.deployments.schedulers.sequences import (
    CONTROLS,
    END,
    NO_START,
    OLDEST,
    ONLY,
    START,
    InstanceOfPool,
    Sequences,
    both,
    sequence_config,
)


@both
def test_interleaved_sequences_end_with_their_own_sums(config):
    sequences = Sequences(config)
    for step in range(3):
        for sequence_id in (5, 7, 9):
            flags = START if step == 0 else END if step == 2 else 0
            sequences.send(f"{sequence_id}.{step}", sequence_id, flags, value=sequence_id * 10**step)
    sequences.finish_all()
    assert {name: answer for name, answer in sequences.answers.items() if name.endswith("2")} == {
        f"{sequence_id}.2": sequence_id * 111 + sequence_id for sequence_id in (5, 7, 9)
    }
    assert sequences.statistics.counts.success_count == 9
    assert sequences.statistics.counts.inference_count == 9
    assert sequences.statistics.counts.pending_count == 0


@both
def test_a_slot_that_is_free_again_is_used_again(config):
    sequences = Sequences(config)
    for turn in range(3):
        for sequence_id in range(1, 6):
            sequences.send(f"{turn}.{sequence_id}", sequence_id, ONLY, value=turn)
    sequences.finish_all()
    assert sequences.answers == {f"{turn}.{number}": turn + number for turn in range(3) for number in range(1, 6)}


REFUSED = {
    "two rows": (
        {"sequence_id": 1, "flags": START, "rows": 2},
        "must specify batch-size 1 due to requirements of sequence batcher",
    ),
    "no rows": (
        {"sequence_id": 1, "flags": START, "rows": 0},
        "must specify batch-size 1 due to requirements of sequence batcher",
    ),
    "no id": ({"sequence_id": 0, "flags": START}, "must specify a non-zero or non-empty correlation ID"),
    "an empty id": ({"sequence_id": "", "flags": START}, "must specify a non-zero or non-empty correlation ID"),
}


@both
@pytest.mark.parametrize(("request_", "told"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_request_of_a_sequence_is_refused_with_tritons_text(config, request_, told):
    sequences = Sequences(config)
    sequences.send("r", **request_)
    assert sequences.answers == {"r": f"InvalidArgument: inference request to model 'm' {told}"}
    assert sequences.statistics.counts.pending_count == 0


@both
def test_a_copy_and_a_sequence_of_the_same_id_do_not_go_on_with_each_other(config):
    sequences = Sequences(config)
    for name, flags, value in (
        ("copy", START | COPIED, 1),
        ("goes on with no copy", 0, 10),
        ("copy goes on", COPIED, 100),
        ("starts", START, 1000),
        ("copy goes on with none", COPIED, 10000),
        ("copy starts beside it", START | COPIED, 10000),
        ("goes on", 0, 2000),
    ):
        sequences.send(name, 7, flags, value=value)
        sequences.finish_all()
    refused = NO_START.format(7)
    assert sequences.answers == {
        "copy": 1,
        "goes on with no copy": refused,
        "copy goes on": 101,
        "starts": 1000,
        "copy goes on with none": refused,
        "copy starts beside it": refused,
        "goes on": 3000,
    }


def test_a_copy_that_has_waited_for_a_slot_is_still_one():
    sequences = Sequences(sequence_config())
    sequences.send("first", 1, START)
    sequences.send("copy", 7, START | COPIED, value=1)
    sequences.send("ends", 1, END)
    sequences.finish_all()
    sequences.send("goes on", 7)
    sequences.send("copy goes on", 7, COPIED, value=1)
    sequences.finish_all()
    assert (sequences.answers["goes on"], sequences.answers["copy goes on"]) == (NO_START.format(7), 2)


@both
def test_a_sequence_must_start(config):
    sequences = Sequences(config)
    sequences.send("first", 42)
    sequences.send("text", 42, END)
    assert set(sequences.answers.values()) == {NO_START.format(42)}


@both
def test_a_sequence_that_has_ended_must_start_anew(config):
    sequences = Sequences(config)
    sequences.send("a", 1, ONLY)
    sequences.send("b", 1)
    sequences.finish_all()
    assert sequences.answers["b"] == NO_START.format(1)


@both
def test_a_start_within_a_sequence_begins_it_anew(config):
    sequences = Sequences(config)
    for name, flags in (("a", START), ("b", START), ("c", END)):
        sequences.send(name, 3, flags, value=10)
    sequences.finish_all()
    assert sequences.answers == {"a": 10, "b": 10, "c": 23}


@both
def test_the_kind_of_the_id_must_be_what_the_model_takes(config):
    sequences = Sequences(config)
    sequences.send("x", "name", START)
    assert sequences.answers == {
        "x": "InvalidArgument: [request id: x] sequence batching control 'CORRID' data-type is 'BYTES', but model 'm' "
        "expects 'UINT64'"
    }


@both
def test_an_idle_sequence_loses_its_slot(config):
    sequences = Sequences(config)
    sequences.send("a", 1, START)
    sequences.finish_all()
    sequences.clock.advance(999)
    sequences.send("b", 1)
    sequences.finish_all()
    sequences.clock.advance(1000)
    sequences.send("c", 1)
    assert sequences.answers == {"a": 1, "b": 2, "c": NO_START.format(1)}


@both
def test_a_sequence_goes_on_with_what_was_sent_while_the_replica_stood_still(config):
    sequences = Sequences(config)
    for name, sequence_id in (("a", 1), ("b", 2)):
        sequences.send(name, sequence_id, START)
    sequences.finish_all()
    sequences.clock.advance(300)
    sequences.clock.stand_still(5000)
    sequences.send("c", 1)  # which lay in the socket
    sequences.finish_all()
    sequences.clock.advance(999)
    sequences.send("d", 1)
    sequences.finish_all()
    sequences.clock.advance(1)
    sequences.send("e", 2)  # of which nothing was there
    sequences.clock.advance(1000)
    sequences.send("f", 1)
    assert sequences.answers == {"a": 1, "b": 1, "c": 2, "d": 3, "e": NO_START.format(2), "f": NO_START.format(1)}


def test_a_replica_that_stands_still_again_and_again_ends_idle_sequences_all_the_same():
    sequences = Sequences(sequence_config())
    sequences.send("a", 1, START)
    sequences.finish_all()
    for _ in range(3):
        sequences.clock.stand_still(1500)
    assert sequences.scheduler.sequence_count == 0


def test_of_several_sequences_each_is_idle_by_itself():
    sequences = Sequences(sequence_config("oldest { max_candidate_sequences: 2 }"))
    for name, sequence_id, flags in (("a", 1, START), ("b", 2, START)):
        sequences.send(name, sequence_id, flags)
        sequences.finish_all()
    sequences.clock.advance(900)
    sequences.send("c", 1)
    sequences.finish_all()
    sequences.clock.advance(100)
    sequences.send("d", 2)
    sequences.send("e", 1)
    sequences.finish_all()
    assert sequences.answers == {"a": 1, "b": 1, "c": 2, "d": NO_START.format(2), "e": 3}


def test_a_sequence_that_waits_in_the_backlog_is_not_idle():
    sequences = Sequences(sequence_config())
    sequences.send("a", 1, START)
    sequences.send("b", 2, START)
    sequences.clock.advance(1500)
    sequences.send("c", 2, END)
    assert "c" not in sequences.answers
    sequences.finish_all()
    sequences.clock.advance(1000)  # 1 has had no request since, and its only one has run
    sequences.finish_all()
    assert sequences.answers == {"a": 1, "b": 1, "c": 4}


def test_the_backlog_is_first_come_first_served_and_holds_whole_sequences():
    sequences = Sequences(sequence_config())
    for name, sequence_id, flags in (("a", 1, START), ("b", 2, START), ("c", 3, ONLY), ("d", 2, END), ("e", 1, END)):
        sequences.send(name, sequence_id, flags)
    sequences.finish_all()
    assert list(sequences.answers) == ["a", "e", "b", "d", "c"]


def test_an_id_may_start_again_while_its_last_sequence_still_waits():
    sequences = Sequences(sequence_config())
    sequences.send("a", 9, START)
    sequences.send("b", 1, ONLY, value=5)
    sequences.send("c", 1, ONLY, value=7)
    sequences.send("d", 9, END)
    sequences.finish_all()
    assert sequences.answers == {"a": 1, "b": 6, "c": 8, "d": 11}


@pytest.mark.parametrize("config", [sequence_config("direct { }", 2), sequence_config(OLDEST, 2)])
def test_two_sequences_of_one_id_never_run_at_the_same_time(config):
    sequences = Sequences(config)
    for turn in range(4):
        sequences.send(f"{turn}", 5, ONLY, value=turn)
    sequences.finish_all()
    assert sequences.answers == {f"{turn}": turn + 5 for turn in range(4)}
    assert sequences.pools[0].batches == [[5]] * 4


@both
def test_a_request_that_fails_does_not_end_its_sequence(config):
    sequences = Sequences(config)
    sequences.send("a", 1, START)
    sequences.send("b", 1)
    sequences.finish(error=Internal("no"))
    sequences.finish_all()
    assert sequences.answers == {"a": "Internal: no", "b": 1}


def test_sequences_spread_over_instances_before_they_fill_a_batch():
    sequences = Sequences(sequence_config("direct { }", 2), instances=2)
    for sequence_id in (1, 2, 3, 4):
        sequences.send(f"{sequence_id}", sequence_id, START)
    sequences.finish_all()
    assert [pool.batches for pool in sequences.pools] == [[[1], [None, 3]], [[2], [None, 4]]]


def test_direct_keeps_each_sequence_in_its_row():
    sequences = Sequences(sequence_config("direct { }", 4))
    for sequence_id in (1, 2, 3):
        sequences.send(f"{sequence_id}", sequence_id, START)
    sequences.send("3 again", 3)
    sequences.finish_all()
    sequences.send("2 again", 2)
    sequences.finish_all()
    assert sequences.pools[0].batches == [[1], [None, 2, 3], [None, None, 3], [None, 2]]
    assert sequences.statistics.counts.inference_count == 5
    assert sorted(sequences.statistics.batches) == [1, 2, 3]


def test_direct_waits_only_with_both_a_delay_and_a_utilization():
    waiting = "direct { max_queue_delay_microseconds: 20000 minimum_slot_utilization: 0.5 }"
    for strategy in ("direct { max_queue_delay_microseconds: 20000 }", "direct { minimum_slot_utilization: 0.5 }"):
        sequences = Sequences(sequence_config(strategy, 4))
        sequences.send("a", 1, START)
        assert sequences.pools[0].batches == [[1]]
    sequences = Sequences(sequence_config(waiting, 4))
    sequences.send("a", 1, START)
    sequences.clock.advance(19)
    assert not sequences.pools[0].batches
    sequences.send("b", 2, START)
    assert sequences.pools[0].batches == [[1, 2]]
    sequences.finish_all()
    sequences.send("c", 1)
    sequences.clock.advance(20)
    assert sequences.pools[0].batches[1:] == [[1]]


def test_direct_runs_inputs_of_another_shape_in_a_batch_of_their_own():
    sequences = Sequences(sequence_config("direct { }", 4))
    sequences.send("busy", 9, START)
    for sequence_id, width in ((1, 1), (2, 2), (3, 1)):
        sequences.send(f"{sequence_id}", sequence_id, START, width=width)
    sequences.finish_all()
    assert sequences.answers == {"busy": 1, "1": 1, "2": 2, "3": 1}
    assert sequences.pools[0].batches == [[9], [None, 1, None, 3], [None, None, 2]]


def test_direct_keeps_the_rows_of_slots_that_wait_for_their_own_shape():
    sequences = Sequences(sequence_config("direct { }", 4))
    sequences.send("busy", 9, START)
    for sequence_id, width in ((1, 1), (2, 2)):
        sequences.send(f"{sequence_id}", sequence_id, START, width=width)
    sequences.finish_all()
    assert sequences.pools[0].batches == [[9], [None, 1, None], [None, None, 2]]


def test_oldest_holds_more_sequences_than_a_batch_and_takes_one_request_of_each():
    sequences = Sequences(sequence_config("oldest { max_candidate_sequences: 3 }", 2))
    for sequence_id in (1, 2, 3, 4):
        sequences.send(f"{sequence_id}", sequence_id, START)
        sequences.send(f"{sequence_id} again", sequence_id, END)
    sequences.finish_all()
    # 4 comes from the backlog when the first of the others has ended.
    assert sequences.pools[0].batches == [[1], [2, 3], [1, 2], [3, 4], [4]]


def test_oldest_waits_for_a_preferred_size_or_the_delay():
    strategy = "oldest { max_candidate_sequences: 4 preferred_batch_size: 2 max_queue_delay_microseconds: 10000 }"
    sequences = Sequences(sequence_config(strategy, 4))
    sequences.send("a", 1, START)
    sequences.clock.advance(9)
    assert not sequences.pools[0].batches
    sequences.send("b", 2, START)
    assert sequences.pools[0].batches == [[1, 2]]
    sequences.finish_all()
    sequences.send("c", 1)
    sequences.clock.advance(10)
    assert sequences.pools[0].batches[1:] == [[1]]


def test_oldest_counts_the_whole_wait_of_a_request():
    sequences = Sequences(sequence_config(OLDEST, 1))
    sequences.send("a", 1, START)
    sequences.send("b", 1)
    sequences.clock.advance(30)
    sequences.finish_all()
    assert sequences.statistics.counts.queue_ns == 30_000_000


CONTROL_TYPES = {
    "int32": ("int32_false_true: [ -1, 5 ]", np.int32, -1, 5),
    "fp32": ("fp32_false_true: [ 0.5, 2 ]", np.float32, 0.5, 2.0),
    "bool": ("bool_false_true: [ true, false ]", np.bool_, True, False),
}


@pytest.mark.parametrize("max_batch_size", [0, 2])
@pytest.mark.parametrize("kind", ["START", "END", "READY"])
@pytest.mark.parametrize(("values", "dtype", "false", "true"), CONTROL_TYPES.values(), ids=CONTROL_TYPES)
def test_every_control_in_every_type(values, dtype, false, true, kind, max_batch_size):
    control = f'control_input {{ name: "C" control {{ kind: CONTROL_SEQUENCE_{kind} {values} }} }}'
    controls = SequenceControls(sequence_config(controls=control, max_batch_size=max_batch_size))
    shape = (1, 1) if max_batch_size else (1,)
    for flags, truth in ((0, kind == "READY"), (ONLY, True)):
        controls.set(request := InferRequest({}, 1, None, sequence_id=1, flags=flags))
        array = request.inputs["C"]
        assert array.dtype == dtype and array.shape == shape and array.flat[0] == (true if truth else false)
    assert controls.not_ready()["C"].flat[0] == false


IDS = {
    "UINT64": (2**64 - 1, 2**64 - 1),
    "INT64": (2**64 - 1, -1),
    "UINT32": (2**32 + 7, 7),
    "INT32": (2**32 - 2, -2),
    "STRING": ("seq-é", "seq-é".encode()),
}


@pytest.mark.parametrize(("kind", "given", "seen"), [(kind, *row) for kind, row in IDS.items()], ids=IDS)
def test_the_id_in_every_type(kind, given, seen):
    control = f'control_input {{ name: "ID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_{kind} }} }}'
    controls = SequenceControls(sequence_config(controls=control))
    request = InferRequest({}, 1, None, sequence_id=given)
    controls.check(request)
    controls.set(request)
    assert request.inputs["ID"].tolist() == [[seen]]
    assert controls.not_ready()["ID"].tolist() == [[b"" if kind == "STRING" else 0]]
    with pytest.raises(InvalidArgument):
        controls.check(InferRequest({}, 1, None, sequence_id=1 if kind == "STRING" else "one"))


def test_a_model_without_controls_gets_its_inputs_alone():
    sequences = Sequences(sequence_config(controls=""))
    request = InferRequest({}, 1, None, sequence_id="any", flags=START)
    sequences.scheduler._controls.check(request)
    sequences.scheduler._controls.set(request)
    assert request.inputs == {} and CONTROLS


@both
def test_requests_of_sequences_are_traced(config):
    sequences = Sequences(config)
    traces = [new_trace(TIMESTAMPS) for _ in range(2)]
    for trace, (name, flags) in zip(traces, {"first": START, "second": END}.items(), strict=True):
        sequences.send(name, 5, flags, trace=trace)
        sequences.clock.advance(1)
        sequences.finish_all()
    stages = [
        "REQUEST_START",
        "QUEUE_START",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
    ]
    for trace in traces:
        assert [name for name, _ in trace.timestamps] == stages
        assert trace.at_ns("COMPUTE_END") - trace.at_ns("COMPUTE_START") == MS
        assert trace.attributes["batch_requests"] == 1


WAITING = {
    "direct": "direct { max_queue_delay_microseconds: 20000 minimum_slot_utilization: 0.5 }",
    "oldest": "oldest { max_candidate_sequences: 4 preferred_batch_size: 2 max_queue_delay_microseconds: 20000 }",
}


@pytest.mark.parametrize("strategy", WAITING.values(), ids=WAITING)
def test_what_waits_for_other_sequences_knows_with_whom_and_why(strategy):
    sequences = Sequences(sequence_config(strategy, 4))
    start_ns, traces = sequences.clock.time_ns, [new_trace(TIMESTAMPS | CONTEXT) for _ in range(3)]
    sequences.send("a", 1, START, trace=traces[0])
    sequences.clock.advance(5)
    sequences.send("b", 2, START, trace=traces[1])
    sequences.finish_all()
    sequences.send("c", 1, trace=traces[2])
    sequences.clock.advance(20)
    sequences.finish_all()
    forming = [(trace.at_ns("BATCH_START") - start_ns) / MS for trace in traces]
    assert forming == [0, 5, 5]
    parents = [trace.traceparent() for trace in traces]
    assert [trace.attributes["batch_of"] for trace in traces] == [parents[:2], parents[:2], parents[2:]]
    assert [trace.attributes["batch_reason"] for trace in traces] == ["preferred", "preferred", "delay"]


def test_direct_says_why_a_batch_has_left():
    sequences = Sequences(sequence_config("direct { }", 2))
    sequences.send("alone", 1, START)
    sequences.send("beside", 2, START)
    sequences.send("second", 1)
    sequences.finish_all()
    assert sequences.pools[0].batches == [[1], [1, 2]]
    reasons = sequences.statistics._reasons
    assert (reasons.none_waits, reasons.full) == (1, 1)


class ReschedulingPool(InstanceOfPool):
    """Its model has the first request run twice; `starts` are the values of START that it was given."""

    def __init__(self, clock):
        super().__init__(clock)
        self.starts = []

    def finish(self, index=0, error=None):
        (request,) = self.running[index].requests
        self.starts.append(int(request.inputs["START"].item()))
        if len(self.starts) == 1:
            request.flags |= RESCHEDULED
        super().finish(index, error)


def test_a_request_that_runs_again_starts_no_sequence_the_second_time():
    sequences = Sequences(sequence_config(more="iterative_sequence: true"), pool=ReschedulingPool)
    sequences.send("a", 0)
    sequences.finish_all()
    assert sequences.pools[0].starts == [1, 0] and sequences.answers == {"a": 2}


@pytest.mark.parametrize("strategy", ["direct { }", OLDEST], ids=["direct", "oldest"])
def test_a_request_that_is_cancelled_while_it_runs_does_not_run_again(strategy):
    sequences = Sequences(sequence_config(strategy, more="iterative_sequence: true"), pool=ReschedulingPool)
    request = sequences.send("a", 0)
    sequences.scheduler.cancel(request)
    sequences.finish_all()
    assert sequences.pools[0].starts == [1]
    assert sequences.answers == {"a": "Cancelled: sequence 1 of model 'm' was cancelled"}
    assert sequences.statistics.counts.pending_count == sequences.scheduler.sequence_count == 0
