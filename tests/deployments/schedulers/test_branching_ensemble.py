"""Ensembles with decoupled steps, with conditions, and with limits."""

import numpy as np
import pytest

from deployments.schedulers.scheduler import STOPPING
from protocol.errors import Cancelled, Internal, NotFound
from protocol.infer import SEQUENCE_END, SEQUENCE_START, InferResponse, StreamedResponse
from tests.deployments.schedulers.test_ensemble import Bench, array, ensemble, model, step

DECOUPLED = "model_transaction_policy { decoupled: true }"


def conditional(inputs, outputs, *steps, max_batch_size=4, **parameters):
    config = ensemble(inputs, outputs, *steps, max_batch_size=max_batch_size)
    for key, value in parameters.items():
        config.parameters["eagleray." + key.replace("__", ".")].string_value = value
    return config


class Stream(Bench):
    """Collects every response of one request to an ensemble with decoupled steps."""

    def __init__(self, config, *models):
        config.model_transaction_policy.decoupled = True
        super().__init__(config, *models)
        self.responses = []

    def submit(self, **rest):
        request = self.answers.request("r", **rest)
        request.reply = lambda request, result: self.responses.append(result)
        self.scheduler.submit(request)
        return request

    def respond(self, request, final=False, **outputs):
        request.reply(request, StreamedResponse(outputs, None, final, 0))
        self.clock.run()

    def end(self, request):
        self.respond(request, final=True)

    @property
    def heard(self):
        """The value of each response's outputs, and whether it was the last."""
        self.clock.run()
        return [
            ({name: float(tensor.flat[0]) for name, tensor in response.outputs.items()}, response.final)
            for response in self.responses
        ]


def chain():
    config = ensemble("X", "Y", step("many", "I=X", "O=t"), step("one", "I=t", "O=Y"))
    return Stream(config, model("many", "I", "O", extra=DECOUPLED), model("one", "I", "O"))


def test_each_response_of_a_decoupled_step_starts_the_steps_after_it():
    bench = chain()
    bench.submit()
    many = bench.router.take("many")
    for value in (1, 2):
        bench.respond(many, O=array(1, 2, value=value))
        asked = bench.router.answer("one", O=array(1, 2, value=10 * value))
        np.testing.assert_array_equal(asked.inputs["I"], array(1, 2, value=value))
    assert bench.heard == [({"Y": 10}, False), ({"Y": 20}, False)]
    bench.end(many)
    assert bench.heard[2:] == [({}, True)]
    assert bench.statistics.counts.execution_count == 1 and not bench.scheduler._running


def test_a_step_knows_who_waits_for_the_ensemble():
    bench = chain()
    bench.submit(callers=("asks",))
    assert bench.router.take("many").callers == ("asks",)


def test_the_last_response_ends_the_request_when_nothing_else_is_on_its_way():
    bench = chain()
    bench.submit()
    many = bench.router.take("many")
    bench.respond(many, final=True, O=array(1, 2, value=7))
    bench.router.answer("one", O=array(1, 2, value=8))
    assert bench.heard == [({"Y": 8}, True)]


def test_a_decoupled_step_without_responses_makes_an_ensemble_without_any():
    bench = chain()
    bench.submit()
    bench.end(bench.router.take("many"))
    assert bench.heard == [({}, True)]


def test_responses_leave_in_the_order_in_which_the_steps_after_them_end():
    bench = chain()
    bench.submit()
    many = bench.router.take("many")
    bench.respond(many, O=array(1, 2, value=1))
    bench.respond(many, O=array(1, 2, value=2))
    bench.end(many)
    first, second = (request for _, _, request in bench.router.steps)
    second.reply(second, InferResponse({"O": array(1, 2, value=20)}))
    first.reply(first, InferResponse({"O": array(1, 2, value=10)}))
    assert bench.heard == [({"Y": 20}, False), ({"Y": 10}, True)]


def test_tensors_from_elsewhere_go_with_each_response_whenever_they_come():
    config = ensemble(
        "X", "Y", step("many", "I=X", "O=t"), step("slow", "I=X", "O=s"), step("join", "I=t J=s K=X", "O=Y")
    )
    one = [model("slow", "I", "O"), model("join", "I J K", "O")]
    bench = Stream(config, model("many", "I", "O", extra=DECOUPLED), *one)
    bench.submit()
    many = bench.router.take("many")
    bench.respond(many, O=array(1, 2, value=1))
    assert bench.router.names == ["slow"]
    bench.router.answer("slow", O=array(1, 2, value=5))
    bench.respond(many, O=array(1, 2, value=2))
    for value in (1, 2):
        joined = bench.router.answer("join", O=array(1, 2, value=value))
        assert [float(joined.inputs[name].flat[0]) for name in "IJK"] == [value, 5, 1]
        assert not joined.inputs["J"].flags.writeable, "the next response's step reads it too"
    bench.end(many)
    assert bench.heard == [({"Y": 1}, False), ({"Y": 2}, False), ({}, True)]


def test_a_decoupled_step_behind_another_answers_for_each_of_its_responses():
    config = ensemble("X", "Y", step("many", "I=X", "O=t"), step("more", "I=t", "O=Y"))
    bench = Stream(config, *(model(name, "I", "O", extra=DECOUPLED) for name in ("many", "more")))
    bench.submit()
    many = bench.router.take("many")
    bench.respond(many, O=array(1, 2))
    bench.respond(many, final=True, O=array(1, 2))
    for _ in range(2):
        more = bench.router.take("more")
        for value in (1, 2):
            bench.respond(more, O=array(1, 2, value=value))
        bench.end(more)
    assert bench.heard == [({"Y": 1}, False), ({"Y": 2}, False), ({"Y": 1}, False), ({"Y": 2}, False), ({}, True)]


def test_tensors_of_a_response_are_kept_no_longer_than_they_are_read():
    bench = chain()
    request = bench.submit()
    many = bench.router.take("many")
    run = bench.scheduler._running[request]
    for _ in range(50):
        bench.respond(many, O=array(1, 2))
        bench.router.answer("one", O=array(1, 2))
    assert len(run.tensors) + len(run.unread) + len(run.missing) < 6


def test_an_error_after_some_responses_ends_the_request_and_gives_the_steps_up():
    bench = chain()
    bench.submit()
    many = bench.router.take("many")
    bench.respond(many, O=array(1, 2))
    bench.router.answer("one", O=array(1, 2))
    bench.respond(many, O=array(1, 2))
    bench.router.fail("one", Internal("broken"))
    bench.clock.run()
    assert str(bench.responses[-1]) == "in ensemble 'e', step 'one': broken" and len(bench.responses) == 2
    assert bench.router.cancelled == [many] and bench.statistics.counts.other_count == 1
    bench.respond(many, O=array(1, 2))
    bench.end(many)
    assert len(bench.responses) == 2 and not bench.router.names and not bench.scheduler._running


def test_cancelled_while_a_step_streams():
    bench = chain()
    request = bench.submit()
    many = bench.router.take("many")
    bench.respond(many, O=array(1, 2))
    one = bench.router.take("one")
    bench.scheduler.cancel(request)
    assert set(bench.router.cancelled) == {many, one}
    bench.respond(many, O=array(1, 2))
    assert type(bench.responses[-1]).__name__ == "Cancelled" and not bench.router.names


SCORED = (step("small", "I=X", "O=s L=l"), step("big", "I=X", "O=Y"))
SCORED_MODELS = (model("small", "I", "O L"), model("big", "I", "O"))


def scored(**parameters):
    return Bench(conditional("X", "Y", *SCORED, **parameters), *SCORED_MODELS)


def test_early_exit():
    for score, asked, answer in ((0.9, [], 1), (0.3, ["big"], 2)):
        bench = scored(when__big="s < 0.5", default__Y="l")
        bench.submit()
        bench.router.answer("small", O=array(1, 2, value=score), L=array(1, 2, value=1))
        assert bench.router.names == asked
        if asked:
            bench.router.answer("big", O=array(1, 2, value=2))
        bench.clock.run()
        assert float(bench.answers.results["r"].outputs["Y"].flat[0]) == answer
        assert bench.statistics.counts.success_count == 1


def test_if_and_else():
    config = conditional(
        "X",
        "Y",
        step("a", "I=X", "O=p"),
        step("b", "I=X", "O=Y"),
        when__a="X > 0",
        when__1="all X <= 0",
        default__Y="p",
    )
    for value, branch in ((1, "a"), (-1, "b")):
        bench = Bench(config, model("a", "I", "O"), model("b", "I", "O"))
        bench.submit(inputs={"X": array(1, 2, value=value)})
        assert bench.router.names == [branch]
        bench.router.answer(branch, O=array(1, 2, value=value))
        bench.clock.run()
        assert float(bench.answers.results["r"].outputs["Y"].flat[0]) == value


def test_what_depends_on_a_skipped_step_is_skipped_and_its_outputs_are_left_out():
    config = conditional(
        "X", "Y Z", step("a", "I=X", "O=p"), step("b", "I=p", "O=Y"), step("c", "I=X J=p", "O=Z"), when__a="X > 5"
    )
    bench = Bench(config, model("a", "I", "O"), model("b", "I", "O"), model("c", "I J?", "O"))
    bench.submit()
    assert bench.router.names == ["c"], "which can do without"
    assert list(bench.router.take("c").inputs) == ["I"]
    bench = Bench(config, model("a", "I", "O"), model("b", "I", "O"), model("c", "I J", "O"))
    bench.submit()
    bench.clock.run()
    assert not bench.router.names and bench.answers.results["r"].outputs == {}


def test_hundreds_of_steps_in_a_row_are_skipped():
    names = [f"t{number}" for number in range(500)]
    steps = [step("a", f"I={taken}", f"O={made}") for taken, made in zip(["X", *names], [*names, "Y"], strict=True)]
    bench = Bench(conditional("X", "Y", *steps, when__0="X > 5", default__Y="1"), model("a", "I", "O"))
    bench.submit()
    bench.clock.run()
    assert not bench.router.names and float(bench.answers.results["r"].outputs["Y"].flat[0]) == 1


def test_a_request_may_be_answered_without_any_step():
    bench = Bench(conditional("X", "Y", step("a", "I=X", "O=Y"), when__a="X > 5"), model("a", "I", "O"))
    bench.submit()
    assert not bench.answers.order, "no reply before submit returns"
    bench.clock.run()
    assert bench.answers.results["r"].outputs == {} and bench.answers.results["r"].final


FILLED = {
    "batch": (4, (3, 2), 3, "Y:2", (3, 2)),
    "variable size": (4, (3, 2), 3, "Y:-1", (3, 1)),
    "no batch": (0, (2,), 1, "Y:2", (2,)),
}


@pytest.mark.parametrize(("batch", "sent", "rows", "output", "shape"), FILLED.values(), ids=FILLED)
def test_a_default_value_fills_the_tensor(batch, sent, rows, output, shape):
    config = conditional("X", output, step("a", "I=X", "O=Y"), max_batch_size=batch, when__a="X > 5", default__Y="0.25")
    bench = Bench(config, model("a", "I", output.replace("Y", "O"), batch))
    bench.submit(rows=rows, inputs={"X": array(*sent)})
    bench.clock.run()
    filled = bench.answers.results["r"].outputs["Y"]
    assert filled.dtype == np.float32
    np.testing.assert_array_equal(filled, array(*shape, value=0.25))


HOLDS = {
    "any row": ("X > 1", [[0, 0], [0, 2]], True),
    "no row": ("X > 2", [[0, 0], [0, 2]], False),
    "any said": ("any X > 1", [[0, 0], [0, 2]], True),
    "not all": ("all X > 1", [[0, 0], [0, 2]], False),
    "all": ("all X >= 2", [[2, 3], [2, 2]], True),
    "equal": ("X == 3", [[2, 3]], True),
    "unequal": ("all X != 3", [[2, 3]], False),
    "not a number": ("X < 1", [[np.nan, np.nan]], False),
}


@pytest.mark.parametrize(("text", "values", "runs"), HOLDS.values(), ids=HOLDS)
def test_a_condition_is_on_all_rows_of_the_request(text, values, runs):
    bench = Bench(conditional("X", "Y", step("a", "I=X", "O=Y"), when__a=text), model("a", "I", "O"))
    given = np.array(values, np.float32)
    bench.submit(rows=len(values), inputs={"X": given})
    assert bench.router.names == (["a"] if runs else [])


@pytest.mark.parametrize(
    ("datatype", "text", "given", "runs"),
    [
        ("TYPE_STRING", "X == 'yes'", np.array([[b"no"], [b"yes"]], object), True),
        ("TYPE_STRING", "all X == 'yes'", np.array([[b"no"], [b"yes"]], object), False),
        ("TYPE_BOOL", "X == true", np.array([[False]]), False),
        ("TYPE_UINT8", "X < 300", np.array([[255]], np.uint8), True),
    ],
)
def test_conditions_on_other_types(datatype, text, given, runs):
    config = conditional("X:1", "Y", step("a", "I=X", "O=Y"), when__a=text)
    inner = model("a", "I:1", "O")
    for tensor in (config.input[0], inner.input[0]):
        tensor.data_type = datatype
    bench = Bench(config, inner)
    bench.submit(rows=len(given), inputs={"X": given})
    assert bench.router.names == (["a"] if runs else [])


def test_a_condition_on_a_tensor_that_is_not_there_does_not_hold():
    bench = Bench(conditional("X Z?", "Y", step("a", "I=X J=Z", "O=Y"), when__a="Z < 9"), model("a", "I J?", "O"))
    bench.submit()
    bench.clock.run()
    assert not bench.router.names and bench.answers.results["r"].outputs == {}


def test_conditions_hold_for_each_response_of_a_decoupled_step():
    config = conditional("X", "Y", step("many", "I=X", "O=t"), step("one", "I=t", "O=Y"), when__one="t > 1")
    bench = Stream(config, model("many", "I", "O", extra=DECOUPLED), model("one", "I", "O"))
    bench.submit()
    many = bench.router.take("many")
    for value in (1, 2):
        bench.respond(many, O=array(1, 2, value=value))
    bench.router.answer("one", O=array(1, 2, value=9))
    bench.end(many)
    assert bench.heard == [({}, False), ({"Y": 9}, False), ({}, True)]


def test_what_is_skipped_for_one_response_is_missing_in_that_one():
    config = conditional("X", "Y Z", step("many", "I=X", "O=Z"), step("one", "I=Z", "O=Y"), when__one="Z < 2")
    bench = Stream(config, model("many", "I", "O", extra=DECOUPLED), model("one", "I", "O"))
    bench.submit()
    many = bench.router.take("many")
    for value in (1, 2):
        bench.respond(many, O=array(1, 2, value=value))
    assert bench.heard == [({"Z": 2}, False)]
    bench.router.answer("one", O=array(1, 2, value=9))
    bench.end(many)
    assert bench.heard[1:] == [({"Y": 9, "Z": 1}, False), ({}, True)]


def test_a_step_may_change_the_sequence_of_those_after_it():
    bench = scored(when__big="s < 0.5")
    bench.submit(sequence_id=4, flags=SEQUENCE_START)
    bench.router.answer("small", {"sequence_id": 7, "sequence_end": True}, O=array(1, 2, value=0), L=array(1, 2))
    child = bench.router.answer("big", O=array(1, 2))
    assert (child.sequence_id, child.flags) == (7, SEQUENCE_END)
    bench.clock.run()
    assert bench.answers.results["r"].parameters == {"sequence_id": 7, "sequence_start": False, "sequence_end": True}


def test_an_ensemble_that_goes_answers_what_it_has_taken_and_takes_nothing_more():
    bench = scored(when__big="s < 0.5", default__Y="l")
    for name in ("first", "second"):
        bench.submit(name)
    drained = []
    bench.scheduler.drain(lambda: drained.append(sorted(bench.answers.order)))
    bench.submit("late")
    for expected in ([], [["first", "late", "second"]]):
        bench.router.answer("small", O=array(1, 2, value=0.9), L=array(1, 2))
        bench.clock.run()
        assert drained == expected
    assert bench.answers.error("late") == f"Unavailable: [request id: late] {STOPPING}"


def test_only_steps_for_the_requested_outputs_and_their_conditions_run():
    bench = Bench(
        conditional("X", "Y Q", *SCORED, step("c", "I=X", "O=Q"), when__big="s < 0.5"),
        *SCORED_MODELS,
        model("c", "I", "O"),
    )
    bench.submit(outputs=("Q",))
    assert bench.router.names == ["c"]
    bench.submit("other", outputs=("Y",))
    assert bench.router.names == ["c", "small"]


def test_a_step_has_no_more_requests_under_way_than_the_limit_allows():
    config = ensemble("X", "Y", step("a", "I=X", "O=t"), step("b", "I=t", "O=Y"))
    config.ensemble_scheduling.max_inflight_requests = 2
    bench = Bench(config, model("a", "I", "O"), model("b", "I", "O"))
    requests = [bench.submit(f"r{number}") for number in range(5)]
    assert bench.router.names == ["a", "a"]
    bench.router.answer("a", O=array(1, 2))
    assert sorted(bench.router.names) == ["a", "a", "b"]
    bench.scheduler.cancel(requests[4])
    bench.clock.run()
    assert bench.answers.error("r4") == "Cancelled: ", "it waited, and waits no more"
    bench.router.fail("a", NotFound("gone"))
    bench.router.answer("a", O=array(1, 2))
    assert sorted(bench.router.names) == ["a", "b", "b"]
    while bench.router.names:
        bench.router.answer(bench.router.names[0], O=array(1, 2))
    bench.clock.run()
    assert sorted(bench.answers.order) == ["r0", "r1", "r2", "r3", "r4"]


def test_an_ensemble_answers_without_an_output_that_its_step_did_not_give():
    bench = Bench(ensemble("X", "Y Z", step("a", "I=X", "O=Y P=Z")), model("a", "I", "O P"))
    bench.submit()
    bench.router.answer("a", O=array(1, 2))
    assert list(bench.answers.results["r"].outputs) == ["Y"]


def test_a_tensor_that_cannot_be_compared_fails_the_request():
    config = conditional("X", "Y", step("a", "I=X", "O=t"), step("b", "I=t", "O=Y"), when__b="t > 0")
    bench = Bench(config, model("a", "I", "O"), model("b", "I", "O"))
    bench.submit()
    bench.router.answer("a", O=np.array([[b"no", b"number"]], object))
    bench.clock.run()
    assert bench.answers.error("r") == (
        "InvalidArgument: in ensemble 'e', step 'b': a tensor of BYTES cannot be compared with 0"
    )


def test_what_stands_for_two_tensors_is_written_to_by_none_of_their_readers():
    steps = step("a", "I=X", "O=t R=u"), step("b", "I=t", "O=P"), step("c", "I=u", "O=Q")
    config = conditional("X", "P Q", *steps, when__a="X > 5", default__t="X", default__u="X")
    bench = Bench(config, model("a", "I", "O R"), model("b", "I", "O"), model("c", "I", "O"))
    bench.submit(inputs={"X": array(1, 2)})
    assert not any(bench.router.take(name).inputs["I"].flags.writeable for name in "bc")


def test_a_stream_that_has_not_ended_in_time_is_told_that_the_server_stops():
    bench = chain()
    bench.submit()
    many = bench.router.take("many")
    bench.respond(many, O=array(1, 2))
    one = bench.router.take("one")
    ended = []
    bench.scheduler.drain(lambda: ended.append(True))
    bench.scheduler.abandon()
    assert set(bench.router.cancelled) == {many, one}
    for step_request in (many, one):
        step_request.reply(step_request, Cancelled(""))
    bench.clock.run()
    assert [str(response) for response in bench.responses] == [f"[request id: r] {STOPPING}"] and ended == [True]
