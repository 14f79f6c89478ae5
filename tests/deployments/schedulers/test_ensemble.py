import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import ModelLoadError
from deployments.core.counts import Totals
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.ensemble import ensemble_scheduler
from deployments.schedulers.scheduler import STOPPING
from protocol.errors import Cancelled, NotFound
from protocol.infer import COPIED, SEQUENCE_END, SEQUENCE_START, InferResponse
from protocol.signature import Signature
from tests.deployments.fakes import Answers, FakeClock


class FakeRouter:
    """Holds steps until the test answers them."""

    def __init__(self):
        self.steps = []
        self.cancelled = []
        self.when_cancelled = lambda request: None

    def infer(self, model_name, version, request, interface=""):
        self.steps.append((model_name, version, request))

    def cancel(self, request):
        self.cancelled.append(request)
        self.when_cancelled(request)

    @property
    def names(self):
        return [name for name, _, _ in self.steps]

    def take(self, name):
        index = self.names.index(name)
        return self.steps.pop(index)[2]

    def answer(self, name, parameters=None, **outputs):
        request = self.take(name)
        request.reply(request, InferResponse(outputs, parameters))
        return request

    def fail(self, name, error):
        request = self.take(name)
        request.reply(request, error)


def model(name, inputs, outputs, max_batch_size=4, extra=""):
    def tensor(kind, text):
        tensor_name, _, dims = text.partition(":")
        optional = "optional: true" if tensor_name.endswith("?") else ""
        name = tensor_name.rstrip("?")
        return f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: [{dims or 2}] {optional} }}'

    tensors = [tensor("input", text) for text in inputs.split()] + [tensor("output", text) for text in outputs.split()]
    return text_format.Parse(
        f'name: "{name}" max_batch_size: {max_batch_size} {" ".join(tensors)} {extra}', ModelConfig()
    )


def step(name, inputs, outputs, version=-1):
    def entry(kind, text):
        key, _, value = text.partition("=")
        return f'{kind} {{ key: "{key}" value: "{value}" }}'

    maps = [entry("input_map", text) for text in inputs.split()] + [
        entry("output_map", text) for text in outputs.split()
    ]
    return f'step {{ model_name: "{name}" model_version: {version} {" ".join(maps)} }}'


class Bench:
    def __init__(self, config, *models):
        self.clock = FakeClock()
        self.router = FakeRouter()
        self.answers = Answers()
        self.statistics = ModelStatistics("m", 1, Totals())
        signatures = {each.name: Signature.from_config(each) for each in models}
        self.scheduler = ensemble_scheduler(config, signatures, self.router, self.statistics, self.clock)

    def submit(self, id="r", rows=1, **rest):
        request = self.answers.request(id, rows, **rest)
        self.scheduler.submit(request)
        return request


def ensemble(inputs, outputs, *steps, max_batch_size=4):
    return model("e", inputs, outputs, max_batch_size, f"ensemble_scheduling {{ {' '.join(steps)} }}")


def array(*shape, value=1.0):
    return np.full(shape, value, np.float32)


def diamond():
    """One step, then two at the same time, then one that joins them; only `P` needs the join."""
    config = ensemble(
        "X",
        "P Q",
        step("first", "I=X", "O=a"),
        step("left", "I=a", "O=b"),
        step("right", "I=a", "O=Q"),
        step("join", "I=b J=Q", "O=P"),
    )
    one_to_one = [model(name, "I", "O") for name in ("first", "left", "right")]
    return Bench(config, *one_to_one, model("join", "I J", "O"))


def test_steps_start_when_their_tensors_are_there():
    bench = diamond()
    bench.submit()
    assert bench.router.names == ["first"]
    bench.router.answer("first", O=array(1, 2, value=2))
    assert bench.router.names == ["left", "right"]
    bench.router.answer("right", O=array(1, 2, value=3))
    assert bench.router.names == ["left"]
    bench.router.answer("left", O=array(1, 2, value=4))
    joined = bench.router.answer("join", O=array(1, 2, value=5))
    np.testing.assert_array_equal(joined.inputs["I"], array(1, 2, value=4))
    np.testing.assert_array_equal(joined.inputs["J"], array(1, 2, value=3))
    outputs = bench.answers.results["r"].outputs
    assert list(outputs) == ["P", "Q"]
    np.testing.assert_array_equal(outputs["P"], array(1, 2, value=5))
    assert bench.statistics.counts.success_count == 1 and bench.statistics.counts.execution_count == 1


def test_only_a_step_that_gets_a_tensor_alone_may_write_to_it():
    bench = diamond()
    bench.submit()
    given = array(1, 2)
    first = bench.router.answer("first", O=given)
    assert first.inputs["I"].flags.writeable
    for name in ("left", "right"):  # both get `a`
        (step_request,) = [request for other, _, request in bench.router.steps if other == name]
        assert not step_request.inputs["I"].flags.writeable
    assert given.flags.writeable
    bench.router.answer("left", O=array(1, 2))
    bench.router.answer("right", O=array(1, 2))
    joined = bench.router.answer("join", O=array(1, 2))
    assert joined.inputs["I"].flags.writeable
    assert not joined.inputs["J"].flags.writeable  # `Q` is also the client's
    alone = diamond()
    alone.submit(outputs=("Q",))
    alone.router.answer("first", O=array(1, 2))
    assert alone.router.take("right").inputs["I"].flags.writeable


def test_steps_that_no_requested_output_needs_are_skipped():
    bench = diamond()
    bench.submit(outputs=("Q",))
    bench.router.answer("first", O=array(1, 2))
    assert bench.router.names == ["right"]
    bench.router.answer("right", O=array(1, 2))
    assert list(bench.answers.results["r"].outputs) == ["Q"]


def test_steps_are_asked_only_for_the_outputs_that_are_used():
    config = ensemble("X", "P Q", step("first", "I=X", "O=P R=Q"))
    bench = Bench(config, model("first", "I", "O R"))
    bench.submit(outputs=("Q",))
    assert bench.router.take("first").outputs == ("R",)


def test_first_error_is_the_answer_and_no_step_starts_after_it():
    bench = diamond()
    bench.submit()
    bench.router.answer("first", O=array(1, 2))
    bench.router.fail("left", NotFound("Request for unknown model: 'left' is not found"))
    bench.clock.run()
    assert bench.answers.error("r") == "NotFound: in ensemble 'e', Request for unknown model: 'left' is not found"
    bench.router.answer("right", O=array(1, 2))
    assert bench.router.names == [] and bench.answers.order == ["r"]
    assert bench.statistics.counts.other_count == 1


def test_what_the_client_sent_along_goes_to_every_step():
    bench = diamond()
    bench.submit(
        "id",
        parameters={"k": 1},
        priority=2,
        timeout_us=3,
        sequence_id=4,
        flags=SEQUENCE_START | SEQUENCE_END,
        callers=("asks",),
    )
    child = bench.router.take("first")
    assert (child.id, child.parameters, child.priority, child.timeout_us) == ("id", {"k": 1}, 2, 3)
    assert (child.sequence_id, child.flags, child.rows) == (4, SEQUENCE_START | SEQUENCE_END, 1)
    assert child.callers == ("asks",)


def test_tensors_of_different_batch_sizes_fail_the_step_that_takes_both():
    bench = diamond()
    bench.submit()
    bench.router.answer("first", O=array(1, 2))
    bench.router.answer("left", O=array(1, 2))
    bench.router.answer("right", O=array(2, 2))
    bench.clock.run()
    assert not bench.router.names
    error = bench.answers.error("r")
    assert error.startswith("InvalidArgument: in ensemble 'e', [request id: r] input '")
    assert error.endswith("' batch size does not match other inputs for 'join'")


def test_response_names_the_sequence_of_its_request():
    bench = Bench(ensemble("X", "Y", step("a", "I=X", "O=Y")), model("a", "I", "O"))
    bench.submit("in", sequence_id=4, flags=SEQUENCE_START)
    bench.submit("outside")
    for _ in range(2):
        bench.router.answer("a", O=array(1, 2))
    answered = {id: result.parameters for id, result in bench.answers.results.items()}
    assert answered == {"in": {"sequence_id": 4, "sequence_start": True, "sequence_end": False}, "outside": None}


def test_step_may_change_the_sequence_of_those_after_it():
    bench = diamond()
    bench.submit(sequence_id=4, flags=SEQUENCE_START)
    bench.router.answer("first", {"sequence_id": 7, "sequence_start": False, "other": 1}, O=array(1, 2))
    child = bench.router.answer("right", O=array(1, 2))
    assert (child.sequence_id, child.flags) == (7, 0)
    bench.router.answer("left", O=array(1, 2))
    bench.router.answer("join", O=array(1, 2))
    assert bench.answers.results["r"].parameters == {"sequence_id": 7, "sequence_start": False, "sequence_end": False}


def test_the_steps_of_a_copy_are_copies_whatever_a_step_says_of_its_sequence():
    bench = diamond()
    bench.submit(sequence_id=4, flags=SEQUENCE_START | COPIED)
    first = bench.router.answer("first", {"sequence_id": 7, "sequence_end": True}, O=array(1, 2))
    assert first.flags == SEQUENCE_START | COPIED
    assert bench.router.take("right").flags == SEQUENCE_END | COPIED


def test_cancellation_reaches_the_steps_and_starts_no_new_ones():
    bench = diamond()
    request = bench.submit()
    child = bench.router.steps[0][2]
    bench.scheduler.cancel(request)
    assert bench.router.cancelled == [child]
    bench.router.answer("first", O=array(1, 2))
    bench.clock.run()
    assert bench.answers.error("r") == "Cancelled: " and bench.router.names == []


VERSIONS = {"highest": (-1, -1), "zero": (0, 0), "given": (3, 3)}


@pytest.mark.parametrize(("configured", "asked"), VERSIONS.values(), ids=VERSIONS)
def test_version_of_a_step(configured, asked):
    bench = Bench(ensemble("X", "Y", step("a", "I=X", "O=Y", configured)), model("a", "I", "O"))
    bench.submit()
    assert bench.router.steps[0][1] == asked


CONVERSIONS = {
    "batch to batch": (4, "2", 4, (3, 2), (3, 2), 3),
    "batch of one loses its batch dimension": (4, "2", 0, (1, 2), (2,), 1),
    "batch is an ordinary dimension": (4, "-1,2", 0, (3, 2), (3, 2), 1),
    "gains a batch dimension": (0, "2", 4, (2,), (1, 2), 1),
    "has a dimension for the batch": (0, "2", 4, (3, 2), (3, 2), 3),
}


@pytest.mark.parametrize(
    ("ensemble_batch", "dims", "step_batch", "sent", "expected", "rows"), CONVERSIONS.values(), ids=CONVERSIONS
)
def test_batch_dimension_between_ensemble_and_step(ensemble_batch, dims, step_batch, sent, expected, rows):
    ensemble_dims = "2" if ensemble_batch or len(sent) == 1 else "-1,2"
    config = ensemble(f"X:{ensemble_dims}", "Y:-1", step("a", "I=X", "O=Y"), max_batch_size=ensemble_batch)
    bench = Bench(config, model("a", f"I:{dims}", "O:-1", step_batch))
    bench.submit(rows=sent[0] if ensemble_batch else 1, inputs={"X": array(*sent)})
    child = bench.router.take("a")
    assert (child.inputs["I"].shape, child.rows) == (expected, rows)


def test_tensor_that_does_not_fit_its_step_fails_with_the_steps_text():
    config = ensemble("X:-1", "Y", step("a", "I=X", "O=Y"))
    bench = Bench(config, model("a", "I:3", "O"))
    bench.submit(inputs={"X": array(1, 2)})
    bench.clock.run()
    assert bench.answers.error("r").startswith(
        "InvalidArgument: in ensemble 'e', [request id: r] unexpected shape for input 'I' for model 'a'. "
        "Expected [-1,3], got [1,2]. "
    )


def test_batch_that_a_step_made_too_large_is_refused():
    config = ensemble("X", "Y", step("a", "I=X", "O=Y"), max_batch_size=0)
    config.input[0].dims[:] = [-1, 2]
    bench = Bench(config, model("a", "I", "O", 4))
    bench.submit(inputs={"X": array(5, 2)})
    bench.clock.run()
    assert bench.answers.error("r").endswith("inference request batch-size must be <= 4 for 'a'")


def test_absent_optional_tensor_is_left_out_of_a_step_that_does_without():
    config = ensemble("X Z?", "Y", step("a", "I=X J=Z", "O=Y"))
    bench = Bench(config, model("a", "I J?", "O", 4))
    bench.submit()
    assert list(bench.router.take("a").inputs) == ["I"]


def test_absent_tensor_fails_a_step_that_needs_it():
    config = ensemble("X Z?", "Y", step("a", "I=X J=Z", "O=Y"))
    bench = Bench(config, model("a", "I J", "O", 4))
    bench.submit()
    assert not bench.answers.order, "no reply before submit returns"
    bench.clock.run()
    assert bench.answers.error("r") == (
        "InvalidArgument: in ensemble 'e', [request id: r] expected 2 inputs but got 1 inputs for model 'a'. "
        "Got input(s) ['I'], but missing required input(s) ['J']. Please provide all required input(s)."
    )


def test_output_that_its_step_leaves_out_is_left_out():
    bench = Bench(ensemble("X", "Y", step("a", "I=X", "O=Y")), model("a", "I", "O"))
    bench.submit()
    bench.router.answer("a")
    bench.clock.run()
    assert bench.answers.results["r"].outputs == {}


def test_reshape_of_a_step_is_applied():
    inner = model("a", "I:4", "O", 4)
    inner.input[0].reshape.shape[:] = [2, 2]
    bench = Bench(ensemble("X:4", "Y", step("a", "I=X", "O=Y")), inner)
    bench.submit(rows=3, inputs={"X": array(3, 4)})
    assert bench.router.take("a").inputs["I"].shape == (3, 2, 2)


def test_drained_when_the_last_step_is_back():
    bench = diamond()
    drained = []
    bench.submit()
    bench.router.answer("first", O=array(1, 2))
    bench.scheduler.drain(lambda: drained.append(True))
    bench.submit("late")
    bench.router.fail("left", NotFound("gone"))
    bench.clock.run()
    assert "Server is stopping" in bench.answers.error("late") and not drained
    bench.router.answer("right", O=array(1, 2))
    bench.clock.run()
    assert drained == [True]


def test_ensemble_over_an_unknown_model_does_not_load():
    with pytest.raises(ModelLoadError, match="ensemble e contains models that are not available or ambiguous: b, c"):
        Bench(ensemble("X", "Y", step("c", "I=X", "O=y"), step("b", "I=y", "O=Y")))


def test_an_output_that_is_an_input_comes_after_submit_has_returned_and_needs_no_step():
    config = ensemble("X", "X Y", step("m", "I=X", "O=Y"))
    bench = Bench(config, model("m", "I", "O"))
    bench.submit(inputs={"X": array(1, 2)}, outputs=("X",))
    assert not bench.answers.order and not bench.router.steps
    drained = []
    bench.scheduler.drain(lambda: drained.append(True))
    bench.clock.run()
    assert bench.answers.order == ["r"] and drained == [True]
    np.testing.assert_array_equal(bench.answers.results["r"].outputs["X"], array(1, 2))
    assert bench.statistics.counts.success_count == 1


def test_what_has_not_ended_in_time_is_told_that_the_server_stops():
    bench = diamond()
    bench.submit()
    first = bench.router.steps[0][2]
    ended = []
    bench.scheduler.drain(lambda: ended.append(True))
    bench.scheduler.abandon()
    assert bench.router.cancelled == [first]
    bench.router.fail("first", Cancelled(""))
    bench.clock.run()
    assert bench.answers.error("r") == f"Unavailable: [request id: r] {STOPPING}"
    assert ended == [True] and bench.statistics.counts.canceled_count == 0


def test_a_step_that_says_at_once_that_it_is_cancelled_is_not_heard_when_the_server_stops():
    bench = diamond()
    bench.submit()
    bench.router.when_cancelled = lambda child: bench.router.fail("first", Cancelled(""))  # as a sequence that waits
    bench.scheduler.drain(lambda: None)
    bench.scheduler.abandon()
    bench.clock.run()
    assert bench.answers.order == ["r"]
    assert bench.answers.error("r") == f"Unavailable: [request id: r] {STOPPING}"
    assert bench.statistics.counts.other_count == 1


def test_what_waits_for_the_limit_is_not_sent_after_an_error():
    config = ensemble("X", "Y", step("a", "I=X", "O=t"), step("b", "I=X", "O=u"), step("c", "I=t J=u", "O=Y"))
    config.ensemble_scheduling.max_inflight_requests = 1
    bench = Bench(config, model("a", "I", "O"), model("b", "I", "O"), model("c", "I J", "O"))
    bench.submit("r0")
    bench.submit("r1")
    bench.router.answer("a", O=array(1, 2))
    bench.router.fail("a", NotFound("gone"))
    bench.clock.run()
    assert bench.answers.order == ["r1"]
    bench.router.answer("b", O=array(1, 2))
    assert bench.router.names == ["c"]
