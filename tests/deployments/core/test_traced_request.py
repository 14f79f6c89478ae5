import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from deployments.core.core import Core
from deployments.core.counts import Totals
from deployments.core.instance_pool import InstancePool
from deployments.core.model_version import ModelVersion
from deployments.core.statistics import ModelStatistics
from deployments.core.traced_request import follow
from deployments.lane.trace_frames import records, take_records
from deployments.schedulers.ensemble import ensemble_scheduler
from deployments.schedulers.fifo import FifoBatcher
from protocol.datatypes import BY_NAME
from protocol.device_input import DeviceInput
from protocol.errors import Internal
from protocol.infer import InferRequest, InferResponse
from protocol.signature import Signature
from protocol.trace import (
    CONTEXT,
    MAX_RECORDS,
    MAX_TENSOR_BYTES,
    MAX_TEXT,
    RESERVED_RECORDS,
    TENSORS,
    TIMESTAMPS,
    Trace,
    TracedTensor,
    new_trace,
)
from repository_loader.package import ModelPackage
from tests.deployments.fakes import MS, Answers, FakeClock, FakeInstance, config_of
from tests.deployments.schedulers.test_ensemble import model, step


class Bench:
    """A core with the model m, and an ensemble e of two steps of it."""

    def __init__(self):
        self.clock = FakeClock()
        self.core = Core(self.clock)
        self.answers = Answers()
        self.instance = FakeInstance(self.clock, may_run_inline=False)
        self.instance.duration_ns = 5 * MS
        config = config_of('name: "m" max_batch_size: 4 dynamic_batching {}')
        signature = Signature.from_config(config)
        statistics = ModelStatistics("m", 7, Totals())
        pool = InstancePool([self.instance], self.clock)
        scheduler = FifoBatcher(signature, pool, statistics, self.clock)
        self.add(config, signature, statistics, scheduler, pool, 7)
        steps = f"{step('m', 'X=X', 'Y=a')} {step('m', 'X=a', 'Y=Y', 7)}"
        config = model("e", "X", "Y", extra=f'platform: "ensemble" ensemble_scheduling {{ {steps} }}')
        statistics = ModelStatistics("e", 1, Totals())
        scheduler = ensemble_scheduler(config, {"m": signature}, self.core, statistics, self.clock)
        self.add(config, Signature.from_config(config), statistics, scheduler, None, 1)

    def add(self, config, signature, statistics, scheduler, pool, version):
        package = ModelPackage(config.name, version, config, "", "", "")
        self.core.add(ModelVersion(package, signature, statistics, scheduler, pool, self.clock))

    def infer(self, name, flags=TIMESTAMPS, id="r"):
        request = self.answers.request(id)
        request.trace = trace = new_trace(flags)
        self.core.infer(name, -1, request)
        return trace

    def run(self, batch_count=1):
        self.clock.run()
        for _ in range(batch_count):
            self.clock.wait_for_thread()

    def ms(self, trace, start_ns):
        return [(name, (at_ns - start_ns) / MS) for name, at_ns in sorted(trace.timestamps, key=lambda each: each[1])]


@pytest.fixture
def bench():
    return Bench()


def test_a_request_leaves_its_stages(bench):
    start_ns = bench.clock.time_ns
    first, second = bench.infer("m", id="a"), bench.infer("m", id="b")
    bench.clock.time_ns += 2 * MS
    bench.run()
    expected = [
        ("REQUEST_START", 0),
        ("QUEUE_START", 0),
        ("COMPUTE_START", 2),
        ("COMPUTE_INPUT_END", 2),
        ("COMPUTE_OUTPUT_START", 7),
        ("COMPUTE_END", 7),
        ("REQUEST_END", 7),
    ]
    assert sorted(bench.ms(first, start_ns)) == sorted(expected) == sorted(bench.ms(second, start_ns))
    assert (first.model_name, first.version, first.request_id) == ("m", 7, "a")
    assert first.attributes == {"batch_rows": 2, "batch_requests": 2, "batch_reason": "none_waits"}
    assert first.id != second.id and first.trace_id != second.trace_id
    assert bench.answers.order == ["a", "b"]


def test_an_input_in_the_memory_of_a_gpu_is_named_without_what_is_in_it(bench):
    request = bench.answers.request("r")
    request.devices = {"Z": DeviceInput(None, 0, (1, 4), BY_NAME["FP32"])}
    trace = new_trace(TENSORS)
    follow(request, trace, bench.core.resolve("m"), lambda: 0)
    assert ("Z", "FP32", (1, 4), b"") in [(each.name, each.datatype, each.shape, each.data) for each in trace.tensors]


def test_a_batch_begins_to_form_when_the_one_before_it_has_left(bench):
    start_ns, flags = bench.clock.time_ns, TIMESTAMPS | CONTEXT
    traces = [bench.infer("m", each, id="r") for each in (flags, flags, flags, flags, flags, TIMESTAMPS)]
    bench.clock.time_ns += 2 * MS
    traces.append(bench.infer("m", flags, id="r"))
    bench.run(2)
    queued = [trace.at_ns("QUEUE_START") - start_ns for trace in traces]
    assert queued == [0] * 6 + [2 * MS]
    forming = [at_ns and at_ns - start_ns for at_ns in (trace.at_ns("BATCH_START") for trace in traces)]
    assert forming == [0] * 4 + [2 * MS, None, 2 * MS], "only OpenTelemetry is told"
    assert [trace.at_ns("COMPUTE_START") - start_ns for trace in traces] == [2 * MS] * 4 + [7 * MS] * 3
    first, last = ([trace.traceparent() for trace in each] for each in (traces[:4], (traces[4], traces[6])))
    assert [trace.attributes.get("batch_of") for trace in traces] == [first] * 4 + [last, None, last]
    assert [trace.attributes["batch_reason"] for trace in traces] == ["full"] * 4 + ["none_waits"] * 3


def test_an_error_ends_a_trace_and_is_told_in_it(bench):
    bench.instance.error = Internal("broken")
    trace = bench.infer("m")
    bench.run()
    assert trace.attributes["error"] == "broken"
    assert trace.at_ns("REQUEST_END") is not None
    assert bench.answers.error("r") == "Internal: broken"


def test_any_text_can_be_sent_on(bench):
    bench.instance.error = Internal("\ud800" * 5000)
    trace = bench.infer("m", id="r\udfff")
    bench.run()
    sent = b"".join(records(trace, 0))
    take_records(taken := Trace(TIMESTAMPS, trace.trace_id, trace.id), sent, None)
    assert (taken.request_id, taken.attributes["error"]) == ("r?", "?" * MAX_TEXT)


def test_a_refused_request_has_neither_queued_nor_run(bench):
    bench.core.resolve("m").scheduler.drain(lambda: None)
    trace = bench.infer("m")
    bench.clock.run()
    assert {name for name, _ in trace.timestamps} == {"REQUEST_START", "QUEUE_START", "REQUEST_END"}
    assert "stopped accepting" in trace.attributes["error"]


def test_the_steps_of_an_ensemble_are_its_children(bench):
    trace = bench.infer("e")
    bench.run(2)
    assert isinstance(bench.answers.results["r"], InferResponse)
    assert {name for name, _ in trace.timestamps} == {"REQUEST_START", "QUEUE_START", "REQUEST_END"}
    first, second = trace.children
    for child in trace.children:
        assert (child.model_name, child.version, child.parent_id) == ("m", 7, trace.id)
        assert child.trace_id == trace.trace_id
        assert child.at_ns("COMPUTE_END") - child.at_ns("COMPUTE_START") == 5 * MS
    assert first.at_ns("REQUEST_END") <= second.at_ns("REQUEST_START")
    assert len({trace.id, first.id, second.id}) == 3


def test_tensors_are_those_that_came_and_those_that_went(bench):
    trace = bench.infer("m", TENSORS)
    bench.run()
    x, y = trace.tensors
    assert (x.activity, x.name, x.datatype, x.shape) == ("TENSOR_QUEUE_INPUT", "X", "FP32", (1, 2))
    assert (y.activity, y.name, y.datatype, y.shape) == ("TENSOR_BACKEND_OUTPUT", "Y", "FP32", (1, 2))
    assert np.frombuffer(x.data, np.float32).tolist() == [1, 1]
    assert np.frombuffer(y.data, np.float32).tolist() == [2, 2]


def test_what_a_trace_keeps_is_bounded():
    trace = new_trace(TIMESTAMPS)
    large, small = (TracedTensor("A", "t", "INT8", (size,), bytes(size)) for size in (MAX_TENSOR_BYTES + 1, 1000))
    trace.add_tensor(large)
    trace.add_tensor(small)
    assert [len(tensor.data) for tensor in trace.tensors] == [0, 1000]
    for _ in range(20):
        trace.add_tensor(TracedTensor("A", "t", "INT8", (MAX_TENSOR_BYTES,), bytes(MAX_TENSOR_BYTES)))
    assert sum(len(tensor.data) for tensor in trace.tensors) <= 8 * MAX_TENSOR_BYTES
    for number in range(MAX_RECORDS):
        trace.mark("X", number)
        trace.child()
    kept_count = len(trace.timestamps) + len(trace.children) + len(trace.tensors)
    assert MAX_RECORDS - RESERVED_RECORDS <= kept_count <= MAX_RECORDS
    for number in range(MAX_RECORDS):
        trace.mark("REQUEST_END", number)
    assert len(trace.timestamps) + len(trace.children) + len(trace.tensors) == MAX_RECORDS


def test_what_others_are_part_of_ends_however_many_there_are():
    trace = new_trace(TIMESTAMPS)
    calls = trace.child("calls")
    for number in range(MAX_RECORDS):
        called = calls.child("called")
        called.mark("REQUEST_START", number)
        called.mark("REQUEST_END", number)
    for part in (calls, trace):
        for name in ("REQUEST_START", "COMPUTE_START", "REQUEST_END"):
            part.mark(name, 0)
        assert part.at_ns("REQUEST_START") == part.at_ns("REQUEST_END") == part.at_ns("COMPUTE_START") == 0
    sent = b"".join(records(trace, 0))
    take_records(taken := Trace(TIMESTAMPS, trace.trace_id, trace.id), sent, None)
    taken.mark("LANE_RECEIVE", 1)
    assert taken.at_ns("REQUEST_END") == 0 and taken.at_ns("LANE_RECEIVE") == 1
    assert taken.children[0].at_ns("REQUEST_END") == 0
    assert 1000 < len(taken.children[0].children) < MAX_RECORDS


def test_a_request_of_many_batches_has_its_end():
    trace = new_trace(TIMESTAMPS)
    for number in range(MAX_RECORDS):
        trace.mark("COMPUTE_START", number)
    trace.mark("REQUEST_END", 1)
    assert trace.at_ns("REQUEST_END") == 1


def keeping_peak_bytes(trace, datatype, array):
    """Return how much memory it takes to keep an input of a request, or to find that it is not kept."""
    model = config_of(f'name: "s" input {{ name: "X" data_type: TYPE_{datatype} dims: [ -1 ] }}')
    version = SimpleNamespace(name="s", version=1, signature=Signature.from_config(model), pool=None)
    request = InferRequest({"X": array}, 1, lambda *_: None)
    tracemalloc.start()
    try:
        follow(request, trace, version, lambda: 0)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("element", "count"), [("x" * (8 * MAX_TENSOR_BYTES), 1), (b"xy", 200_000)])
def test_strings_that_are_too_large_to_be_kept_are_not_encoded(element, count):
    trace = new_trace(TENSORS)
    array = np.array([element] * count, object)
    assert keeping_peak_bytes(trace, "STRING", array) < MAX_TENSOR_BYTES // 4
    assert [(tensor.shape, tensor.data) for tensor in trace.tensors] == [((count,), b"")]


def test_strings_that_have_room_are_kept():
    trace = new_trace(TENSORS)
    keeping_peak_bytes(trace, "STRING", np.array([b"", "ü", b"abc"] * 50_000, object))
    (tensor,) = trace.tensors
    assert len(tensor.data) == 50_000 * (12 + 5)


@pytest.mark.parametrize(
    ("configured", "array", "datatype", "data"),
    [
        ("FP32", np.array(3.5), "FP64", np.array(3.5).tobytes()),
        ("FP32", np.array([1.5], np.float16), "FP16", np.array([1.5], np.float16).tobytes()),
        ("FP32", np.array([1.5], ">f4"), "FP32", np.array([1.5], "<f4").tobytes()),
        ("FP32", np.array(True), "BOOL", b"\x01"),
        ("FP32", np.array([b"\xff"], object), "BYTES", b"\x01\0\0\0\xff"),
        ("STRING", np.array([1, 2], np.int8), "INT8", b"\x01\x02"),
        ("BF16", np.array([1], np.uint16), "BF16", b"\x01\0"),
    ],
)
def test_a_tensor_is_kept_with_the_datatype_that_it_is_sent_with(configured, array, datatype, data):
    trace = new_trace(TENSORS)
    keeping_peak_bytes(trace, configured, array)
    assert [(tensor.datatype, tensor.data) for tensor in trace.tensors] == [(datatype, data)]


def test_a_tensor_that_cannot_be_sent_is_not_kept():
    trace = new_trace(TENSORS)
    keeping_peak_bytes(trace, "FP32", np.array([1j]))
    assert trace.tensors == []


def test_a_tensor_that_there_is_no_more_room_for_is_not_copied():
    trace = new_trace(TENSORS)
    trace.room.tensor_bytes = 1000
    assert keeping_peak_bytes(trace, "INT8", np.zeros(MAX_TENSOR_BYTES, np.int8)) < MAX_TENSOR_BYTES // 4
    trace.room.records = 0
    array = np.array([b"x" * 500], object)
    assert keeping_peak_bytes(trace, "STRING", array) < MAX_TENSOR_BYTES // 4
    assert [tensor.data for tensor in trace.tensors] == [b""]
