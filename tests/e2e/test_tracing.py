"""Two nodes whose requests are traced: what a collector of OpenTelemetry's spans sends on, and what the log says."""

import json
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.e2e import ray_head
from tests.serving import Process, Server, free_port, infer_path, tensor, wait_until

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from tests.otlp_collector import Collector, Span, collector
from tests.rotel import PACKAGE, forwarding

CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] }
"""
# Only the head has so many CPUs, and only the worker a GPU.
CPU = "instance_group { kind: KIND_CPU }"
ON_HEAD = CPU + 'parameters { key: "eagleray.num_cpus" value { string_value: "1.5" } }'
ON_WORKER = "instance_group { kind: KIND_GPU }"
BATCHED = "dynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 300000 }"
PRELUDE = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

def answer(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)])

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request, request.inputs()[0].as_numpy()) for request in requests]
"""
ADD_ONE = """
    def answer(self, request, x):
        context = json.loads(request.trace().get_context() or "{}")
        pb_utils.Logger.log_info("adds one, as asked by " + context.get("traceparent", "nobody"))
        return answer(x + 1)
"""
ASKS = """
    def answer(self, request, x):
        asked = pb_utils.InferenceRequest(model_name="there", requested_output_names=["Y"],
            inputs=[pb_utils.Tensor("X", x)], trace=request.trace())
        return answer(asked.exec().output_tensors()[0].as_numpy())
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] }
ensemble_scheduling {
  step { model_name: "here" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "Y" value: "between" } }
  step { model_name: "there" model_version: -1
    input_map { key: "X" value: "between" } output_map { key: "Y" value: "Y" } }
}
"""
MODELS = {
    "here": (CONFIG + BATCHED + ON_HEAD, PRELUDE + ADD_ONE),
    "there": (CONFIG + ON_WORKER, PRELUDE + ADD_ONE),
    "asks": (CONFIG + CPU, PRELUDE + ASKS),
    "both": (ENSEMBLE, ""),
}


@dataclass
class Traced:
    """A server over two nodes, what collects its spans, and the file of its log."""

    server: Server
    collected: Collector
    log: Path

    def log_of(self, trace_id: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line.get("trace_id") == trace_id]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = Path(tempfile.mkdtemp(prefix="er-tr-", dir="/tmp"))
    logs = tmp_path_factory.mktemp("tracing")
    env = ray_head.closed_environment(folder)
    for name, (config, code) in MODELS.items():
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "config.pbtxt").write_text(config)
        if code:
            (folder / "models" / name / "1" / "model.py").write_text(code)
    processes: list[Process] = []
    try:
        with collector() as collected, forwarding(logs / "rotel", collected) as url:
            port = free_port()
            processes.append(Process(ray_head.command(folder / "ray", port, free_port()), logs / "head", env, folder))
            processes[-1].wait_for("Ray runtime started")
            address = f"127.0.0.1:{port}"
            processes.append(Process(ray_head.node_command(address, num_gpus=1), logs / "worker", env, folder))
            processes[-1].wait_for("Ray runtime started")
            given = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=0", f"opentelemetry,url={url}")
            given += ("opentelemetry,bsp_schedule_delay=100", "opentelemetry,resource=service.name=two-nodes")
            flags = [part for each in given for part in ("--trace-config", each)]
            flags += ["--log-format", "json", "--log-file", str(logs / "lines"), "--ingresses-per-node", "1"]
            server = Server(
                folder / "models", logs / "log", "--ray-address", address, "--placement", "isolated", *flags, env=env
            )
            processes.append(server)
            yield Traced(server.wait_ready(), collected, logs / "lines")
            server.stop()
    finally:
        for process in reversed(processes):
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def test_an_ensemble_over_two_nodes_is_one_trace(traced: Traced) -> None:
    trace_id, parent_id = secrets.token_hex(16), secrets.token_hex(8)
    with traced.server.client() as client:
        body = {"inputs": [tensor("X", "INT32", [1, 1], [1])], "id": "r7"}
        assert client.infer("both", *body["inputs"]).status == 200
        headers = {"traceparent": f"00-{trace_id}-{parent_id}-01"}
        answer = client.request("POST", infer_path("both"), body, headers)
        assert answer.json["outputs"][0]["data"] == [3]
        assert "traceparent" not in answer.headers
    wait_until(lambda: has(traced, trace_id, "there", "here", "both", "send", "compute", "compute"), "its spans")
    spans = traced.collected.of(trace_id)
    assert {span.trace_id for span in traced.collected.spans} == {trace_id}, "others were not traced"
    senders = {sender.partition("/")[0].partition(" ")[0] for sender in traced.collected.senders}
    assert senders == ({"Rotel"} if PACKAGE else {"OTel-OTLP-Exporter-Python"})
    ensemble, here, there = (one(spans, name) for name in ("both", "here", "there"))
    top = one(spans, "InferRequest")
    assert (top.parent_id, top.kind, top.resource["service.name"]) == (parent_id, 2, "two-nodes")
    assert (ensemble.parent_id, here.parent_id, there.parent_id) == (top.id, ensemble.id, ensemble.id)
    ids = {span.id for span in spans} | {parent_id}
    assert len(ids) == len(spans) + 1 and {span.parent_id for span in spans} <= ids
    computes = {span.parent_id: span for span in spans if span.name == "compute"}
    assert computes.keys() == {here.id, there.id}
    assert {span.attributes["triton.request_id"] for span in (ensemble, here, there)} == {"r7"}
    lanes = [span for span in spans if span.name == "lane"]
    assert {lane.attributes["eagleray.near"] for lane in lanes} == {True, False}, "one model is on the other node"
    # The nodes' clocks are one clock here, so this is in order however the processes were interrupted.
    order = [top.start_ns, ensemble.start_ns, here.start_ns, computes[here.id].end_ns, here.end_ns, there.start_ns]
    order += [computes[there.id].start_ns, there.end_ns, ensemble.end_ns, top.end_ns]
    assert all(later - earlier > -SLACK_NS for earlier, later in pairwise(order)), order


SLACK_NS = 1_000_000
"""What reading two clocks one after the other may be wrong by."""


def test_a_models_call_of_a_model_on_another_node_is_its_child(traced: Traced) -> None:
    trace_id, parent_id = secrets.token_hex(16), secrets.token_hex(8)
    address = traced.server.wait_for(r"gRPC\s+(\S+)")[1]
    with grpcclient.InferenceServerClient(address) as client:
        given = grpcclient.InferInput("X", [1, 1], "INT32")
        given.set_data_from_numpy(np.array([[1]], np.int32))
        for flags in ("00", "01"):
            header = {"traceparent": f"00-{trace_id}-{parent_id}-{flags}"}
            result = client.infer("asks", [given], headers=header, client_timeout=60)
            assert result.as_numpy("Y").tolist() == [[2]]
    wait_until(lambda: has(traced, trace_id, "asks", "there", "send"), "its spans")
    spans = traced.collected.of(trace_id)
    asks, there = one(spans, "asks"), one(spans, "there")
    assert there.parent_id == asks.id
    assert asks.start_ns - SLACK_NS < there.start_ns and there.end_ns < asks.end_ns + SLACK_NS
    assert one(spans, "InferRequest").events.keys() >= {"GRPC_WAITREAD_START", "GRPC_SEND_END"}
    # The line that `there` logs has its own span's id, and so has the context that it was given.
    (line,) = wait_until(lambda: traced.log_of(trace_id), "the line in the log")
    assert (line["model"], line["span_id"]) == ("there", there.id)
    assert line["message"] == f"adds one, as asked by 00-{trace_id}-{there.id}-01"


def test_a_stream_that_its_client_wants_traced_is_traced_request_by_request(traced: Traced) -> None:
    trace_id, parent_id = secrets.token_hex(16), secrets.token_hex(8)
    address = traced.server.wait_for(r"gRPC\s+(\S+)")[1]
    given = service_pb2.ModelInferRequest.InferInputTensor(name="X", datatype="INT32", shape=[1, 1])
    message = service_pb2.ModelInferRequest(model_name="here", inputs=[given], raw_input_contents=[bytes(4)])
    with grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        header = (("traceparent", f"00-{trace_id}-{parent_id}-01"),)
        answers = list(stub.ModelStreamInfer(iter([message, message]), metadata=header, timeout=60))
    assert [answer.error_message for answer in answers] == ["", ""]
    wait_until(lambda: len([each for each in traced.collected.of(trace_id) if each.name == "here"]) == 2, "both")
    tops = [each for each in traced.collected.of(trace_id) if each.name == "InferRequest"]
    assert [top.parent_id for top in tops] == [parent_id] * 2
    wait_until(lambda: has(traced, trace_id, "batch", "batch"), "the spans of their batch")
    spans = traced.collected.of(trace_id)
    models = {span.id for span in spans if span.name == "here"}
    batches = [span for span in spans if span.name == "batch"]
    assert {link for batch in batches for link in batch.links} == {(trace_id, each) for each in models}
    about = {"rows": 2, "requests": 2, "reason": "preferred"}
    assert all(
        batch.attributes == {f"eagleray.batch_{name}": value for name, value in about.items()} for batch in batches
    )


def has(traced: Traced, trace_id: str, *names: str) -> bool:
    return Counter(span.name for span in traced.collected.of(trace_id)) >= Counter(names)


def one(spans: list[Span], name: str) -> Span:
    (span,) = [each for each in spans if each.name == name]
    return span
