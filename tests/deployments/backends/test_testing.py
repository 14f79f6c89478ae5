"""The backends of Triton's tests, as Triton configures them."""

import numpy as np
import pytest

from deployments.backends.backend import Batch
from deployments.backends.testing.accumulators import DynaSequenceBackend
from deployments.backends.testing.identity import IdentityBackend
from deployments.backends.testing.repeat import RepeatBackend
from deployments.backends.testing.square import SquareBackend
from protocol.errors import Cancelled, ServingError
from protocol.infer import InferRequest
from repository_loader.package import InstanceSpec, ModelPackage
from tests.deployments.fakes import MS, FakeClock, config_of

IDENTITY = (
    'input { name: "INPUT0" data_type: TYPE_FP32 dims: -1 } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }'
)
STREAMING = "model_transaction_policy { decoupled: true } "
REPEAT = STREAMING + (
    'input { name: "IN" data_type: TYPE_INT32 dims: -1 } input { name: "DELAY" data_type: TYPE_UINT32 dims: -1 } '
    'input { name: "WAIT" data_type: TYPE_UINT32 dims: 1 } output { name: "OUT" data_type: TYPE_INT32 dims: 1 } '
    'output { name: "IDX" data_type: TYPE_UINT32 dims: 1 }'
)
SQUARE = STREAMING + (
    'input { name: "IN" data_type: TYPE_INT32 dims: 1 } output { name: "OUT" data_type: TYPE_INT32 dims: 1 }'
)


def parameter(key, value):
    return f' parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def load(backend, text, count=1, clock=None):
    package = ModelPackage("m", 1, config_of(text), "", "", "")
    return backend(clock).load(package, [InstanceSpec(f"m_{index}", "CPU", 0) for index in range(count)])


def test_identity_answers_with_its_inputs_and_three_parameters():
    (instance,) = load(IdentityBackend, IDENTITY)
    request = InferRequest({"INPUT0": np.array([1, 2], np.float32)}, 1, lambda *_: None)
    instance.execute(batch := Batch([request], 1))
    (response,) = batch.results
    assert response.outputs["OUTPUT0"].tolist() == [1, 2]
    assert response.parameters == {"param0": "an example string parameter", "param1": 42, "param2": False}


OPTIONAL = {
    "variable": ("dims: [-1, 3]", 0, (1, 3)),
    "batched": ("dims: -1", 4, (2, 1)),
    "reshaped": ("dims: 1 reshape { }", 4, (2, 1)),
}


@pytest.mark.parametrize(("dims", "max_batch_size", "shape"), OPTIONAL.values(), ids=OPTIONAL)
@pytest.mark.parametrize(("datatype", "zero"), [("TYPE_STRING", b""), ("TYPE_INT8", 0), ("TYPE_BF16", 0)])
def test_identity_answers_zeros_for_an_optional_input_that_is_left_out(dims, max_batch_size, shape, datatype, zero):
    pair = [f'name: "{name}1" data_type: {datatype} {dims}' for name in ("INPUT", "OUTPUT")]
    text = f"{IDENTITY} max_batch_size: {max_batch_size} input {{ {pair[0]} optional: true }} output {{ {pair[1]} }}"
    (instance,) = load(IdentityBackend, text)
    request = InferRequest({"INPUT0": np.ones((2, 1), np.float32)}, 2, lambda *_: None)
    instance.execute(batch := Batch([request], 2))
    array = batch.results[0].outputs["OUTPUT1"]
    assert array.shape == shape and array.ravel().tolist() == [zero] * array.size
    assert (array.dtype == np.object_) == (datatype == "TYPE_STRING")


def test_identity_delays_each_instance_by_its_place(monkeypatch):
    slept = []
    monkeypatch.setattr("deployments.backends.testing.identity.time.sleep", slept.append)
    delays = parameter("execute_delay_ms", 100) + parameter("instance_wise_delay_multiplier", 2)
    instances = load(IdentityBackend, IDENTITY + delays + parameter("creation_delay_sec", 3), 3)
    assert slept == [3] and not any(instance.may_run_inline for instance in instances)
    for instance in instances:
        instance.execute(Batch([], 0))
    assert slept[1:] == [0.1, 0.2, 0.4]


class Streams:
    """Runs one request on the fake clock and notes what came and when, in milliseconds."""

    def __init__(self, backend, text, **inputs):
        self.clock = FakeClock()
        self.came = []
        (instance,) = load(backend, text, clock=self.clock)
        self.request = InferRequest(inputs, 1, self.take)
        self.start_ns = self.clock.now_ns()
        instance.execute(Batch([self.request], 1))
        self.clock.wait_for_thread()

    def take(self, request, result):
        at_ms = (self.clock.now_ns() - self.start_ns) // MS
        if isinstance(result, ServingError):
            self.came.append((at_ms, f"{type(result).__name__}: {result}"))
        else:
            outputs = {name: array.tolist() for name, array in result.outputs.items()}
            self.came.append((at_ms, "final" if result.final else outputs))


def test_repeat_sends_each_element_after_its_delay():
    taken = {"IN": np.array([7, 8], np.int32), "DELAY": np.array([10, 30], np.uint32), "WAIT": np.zeros(1, np.uint32)}
    streams = Streams(RepeatBackend, REPEAT, **taken)
    streams.clock.advance(100)
    assert streams.came == [
        (10, {"OUT": [7], "IDX": [0]}),
        (40, {"OUT": [8], "IDX": [1]}),
        (40, "final"),
    ]


def test_repeat_of_nothing_ends_without_a_response():
    none = {"IN": np.zeros(0, np.int32), "DELAY": np.zeros(0, np.uint32), "WAIT": np.zeros(1, np.uint32)}
    assert Streams(RepeatBackend, REPEAT, **none).came == [(0, "final")]


def test_repeat_refuses_shapes_that_differ():
    taken = {"IN": np.zeros(2, np.int32), "DELAY": np.zeros(1, np.uint32), "WAIT": np.zeros(1, np.uint32)}
    error = "InvalidArgument: expected IN and DELAY shape to match, got [2] and [1]"
    assert Streams(RepeatBackend, REPEAT, **taken).came == [(0, error)]


def test_a_cancelled_stream_ends_with_its_next_response():
    taken = {"IN": np.array([1, 2], np.int32), "DELAY": np.array([5, 5], np.uint32), "WAIT": np.zeros(1, np.uint32)}
    streams = Streams(RepeatBackend, REPEAT, **taken)
    streams.clock.advance(5)
    streams.request.cancelled = True
    streams.clock.advance(50)
    assert streams.came[1:] == [(10, f"{Cancelled.__name__}: ")]


def test_square_sends_its_number_that_often_then_fails_then_sends_nothing():
    counts = parameter("CUSTOM_INFER_DELAY_NS", 10 * MS) + parameter("CUSTOM_OUTPUT_DELAY_NS", 5 * MS)
    one_empty = counts + parameter("CUSTOM_EMPTY_COUNT", 1)
    streams = Streams(SquareBackend, SQUARE + one_empty, IN=np.array([3], np.int32))
    streams.clock.advance(100)
    assert streams.came == [(15, {"OUT": [3]}), (30, {"OUT": [3]}), (40, "final")]
    failing = Streams(SquareBackend, SQUARE + one_empty + parameter("CUSTOM_FAIL_COUNT", 1), IN=np.array([3], np.int32))
    failing.clock.advance(100)
    assert failing.came == [(15, {"OUT": [3]}), (30, "Unknown: simulated failure")]


ONE_RESPONSE = {
    "repeat": (RepeatBackend, REPEAT, {"IN": [7], "DELAY": [20], "WAIT": [10]}, {"OUT": [7], "IDX": [0]}),
    "repeat of two": (
        RepeatBackend,
        REPEAT,
        {"IN": [7, 8], "DELAY": [1, 1], "WAIT": [0]},
        "expected a single response, got 2",
    ),
    "repeat of none": (
        RepeatBackend,
        REPEAT,
        {"IN": [], "DELAY": [], "WAIT": [0]},
        "expected a single response, got 0",
    ),
    "repeat of shapes that differ": (
        RepeatBackend,
        REPEAT,
        {"IN": [7], "DELAY": [1, 1], "WAIT": [0]},
        "expected IN and DELAY shape to match, got [1] and [2]",
    ),
    "square": (SquareBackend, SQUARE, {"IN": [1]}, {"OUT": [1]}),
    "square that fails": (SquareBackend, SQUARE + parameter("CUSTOM_FAIL_COUNT", 1), {"IN": [1]}, "simulated failure"),
}


@pytest.mark.parametrize(("backend", "text", "taken", "expected"), ONE_RESPONSE.values(), ids=ONE_RESPONSE)
def test_a_model_that_is_not_decoupled_has_one_response(monkeypatch, backend, text, taken, expected):
    monkeypatch.setattr("deployments.backends.testing.timed_responses.time.sleep", lambda _: None)
    (instance,) = load(backend, text.removeprefix(STREAMING), clock=FakeClock())
    inputs = {name: np.array(values, np.int32 if name == "IN" else np.uint32) for name, values in taken.items()}
    instance.execute(batch := Batch([InferRequest(inputs, 1, lambda *_: None)], 1))
    (result,) = batch.results
    if isinstance(result, ServingError):
        assert str(result) == expected
    else:
        assert {name: array.tolist() for name, array in result.outputs.items()} == expected


def test_a_response_and_the_time_after_it_are_waited_for_where_there_is_only_one(monkeypatch):
    slept = []
    monkeypatch.setattr("deployments.backends.testing.timed_responses.time.sleep", slept.append)
    monkeypatch.setattr(
        "deployments.backends.testing.timed_responses.time.monotonic_ns", lambda: round(sum(slept) * 1e9)
    )
    (instance,) = load(RepeatBackend, REPEAT.removeprefix(STREAMING), clock=FakeClock())
    taken = {"IN": np.ones(1, np.int32), "DELAY": np.array([20], np.uint32), "WAIT": np.array([50], np.uint32)}
    instance.execute(Batch([InferRequest(taken, 1, lambda *_: None)], 1))
    assert slept == pytest.approx([0.02, 0.03])


CONTROLS = " ".join(
    f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{name} {values} }} }}'
    for name, values in (
        ("START", "int32_false_true: [0, 1]"),
        ("END", "int32_false_true: [0, 1]"),
        ("READY", "int32_false_true: [0, 1]"),
        ("CORRID", "data_type: TYPE_STRING"),
    )
)
DYNA_SEQUENCE = (
    'max_batch_size: 8 input { name: "INPUT" data_type: TYPE_INT32 dims: 1 } '
    'output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 } '
    f"sequence_batching {{ oldest {{ }} {CONTROLS} }}"
)


def test_a_long_correlation_id_is_added_as_int32_adds():
    (instance,) = load(DynaSequenceBackend, DYNA_SEQUENCE)
    one = np.ones((1, 1), np.int32)
    requests = [
        InferRequest(
            {"INPUT": one, "START": one, "END": one, "READY": one, "CORRID": np.array([[text]], object)},
            1,
            lambda *_: None,
        )
        for text in (b"99999999999999999999", b"7")
    ]
    instance.execute(batch := Batch(requests, 2))
    wrapped = np.array([(10**20) % 2**32], np.uint32).astype(np.int32)
    assert [response.outputs["OUTPUT"].tolist() for response in batch.results] == [[wrapped.tolist()], [[8]]]
