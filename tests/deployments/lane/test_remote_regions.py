import asyncio
import secrets
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse

from deployments.core.counts import Totals
from deployments.core.refusals import Refusals
from deployments.lane.fleet import Fleet
from deployments.lane.remote_regions import inline, names_region
from deployments.lane.wire import GRPC, GRPC_STREAM, HTTP, WireCodec
from deployments.replica.shared_memory import OwnTable, Regions
from protocol.errors import Internal, InvalidArgument, NotFound, ServingError
from protocol.grpc_infer import GrpcInferCodec
from protocol.http_infer import HttpInferCodec
from protocol.infer import InferRequest, InferResponse
from protocol.shared_memory import RegionRange
from protocol.signature import Signature
from tests.deployments.lane.harness import NODE, Lanes, Replica, Sink

CONFIG = """
name: "echo" max_batch_size: 8
input [ { name: "A" data_type: TYPE_INT32 dims: 4 }, { name: "B" data_type: TYPE_INT32 dims: 4 } ]
output [ { name: "X" data_type: TYPE_INT32 dims: 4 }, { name: "Y" data_type: TYPE_INT32 dims: 4 } ]
"""
SIGNATURE = Signature.from_config(text_format.Parse(CONFIG, ModelConfig()))
A = np.arange(4, dtype=np.int32).reshape(1, 4)
B = A * 10


@pytest.fixture
def regions() -> Iterator[Regions]:
    name = f"eagleray-test-{secrets.token_hex(8)}"
    path = Path("/dev/shm") / name
    path.write_bytes(bytes(256))
    regions = Regions(OwnTable())
    regions.register("in", f"/{name}", 0, 64)
    regions.register("out", f"/{name}", 64, 64)
    yield regions
    path.unlink()


class Client:
    def __init__(self) -> None:
        self.answer: tuple[int | None, bytes] | None = None
        self.error: ServingError | None = None

    def on_response(self, json_length: int | None, parts: Any, final: bool) -> None:
        self.answer = json_length, b"".join(parts)

    def on_error(self, error: ServingError) -> None:
        self.error = error


def serve_far_away(codec: WireCodec, wire: int, body: bytes, json_length: int | None, regions: Regions) -> Client:
    """Answer with X = A and Y = B from a codec that knows no regions, as a replica of another node."""
    client = Client()
    assert names_region([body], json_length, wire)
    parts, length, sink, _ = inline([body], json_length, wire, regions, client, far=True)

    def reply(request: InferRequest, result: Any) -> None:
        response = InferResponse({"X": request.inputs["A"], "Y": request.inputs["B"]})
        answer_length, answer = codec.encode(request, response)
        sink.on_response(answer_length, answer, True)

    request = codec.decode(b"".join(parts), length, reply)
    reply(request, None)
    return client


PLACE = {"shared_memory_region": "in", "shared_memory_byte_size": 16}
OUT = {"shared_memory_region": "out", "shared_memory_offset": 16, "shared_memory_byte_size": 16}


def test_http_inputs_and_outputs_pass_through_this_node(regions: Regions) -> None:
    regions.view("in", 0, 16)[:] = A.tobytes()
    header = {
        "inputs": [
            {"name": "A", "shape": [1, 4], "datatype": "INT32", "parameters": dict(PLACE)},
            {"name": "B", "shape": [1, 4], "datatype": "INT32", "parameters": {"binary_data_size": 16}},
        ],
        "outputs": [{"name": "X", "parameters": dict(OUT)}, {"name": "Y", "parameters": {"binary_data": True}}],
    }
    head = orjson.dumps(header)
    client = serve_far_away(HttpInferCodec(SIGNATURE, "1"), HTTP, head + B.tobytes(), len(head), regions)
    assert client.answer is not None
    length, body = client.answer
    assert length is not None
    described = orjson.loads(body[:length])["outputs"]
    assert described[0] == {"name": "X", "datatype": "INT32", "shape": [1, 4]}
    assert body[length:] == B.tobytes()
    assert bytes(regions.view("out", 16, 16)) == A.tobytes()


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        ("FP32", b"[NaN,-Infinity,0.5,2.0]", b"[NaN,-Infinity,0.5,2.0]"),
        ("BYTES", b'["\\u00e9","","null","d"]', '["é","","null","d"]'.encode()),
        ("BYTES", None, b'["\xff\xfe","","null","d"]'),
    ],
)
def test_json_beside_a_region_holds_what_triton_lets_it_hold(
    datatype: str, data: bytes | None, expected: bytes, regions: Regions
) -> None:
    text = CONFIG.replace("INT32", datatype.replace("BYTES", "STRING"), 1)
    text = text.replace('"X" data_type: TYPE_INT32', f'"X" data_type: TYPE_{datatype.replace("BYTES", "STRING")}')
    codec = HttpInferCodec(Signature.from_config(text_format.Parse(text, ModelConfig())), "1")
    regions.view("in", 0, 16)[:] = B.tobytes()
    binary = b"\2\0\0\0\xff\xfe\0\0\0\0\4\0\0\0null\1\0\0\0d" if data is None else b""
    content = b'"data":' + data if data is not None else b'"parameters":{"binary_data_size":%d}' % len(binary)
    head = (
        b'{"inputs":[{"name":"A","shape":[1,4],"datatype":"%s",%s},' % (datatype.encode(), content)
        + b'{"name":"B","shape":[1,4],"datatype":"INT32","parameters":%s}],' % orjson.dumps(PLACE)
        + b'"outputs":[{"name":"X"},{"name":"Y","parameters":%s}]}' % orjson.dumps(OUT)
    )
    client = serve_far_away(codec, HTTP, head + binary, len(head), regions)
    assert client.error is None and client.answer is not None
    assert client.answer[0] is None and expected in client.answer[1]
    assert bytes(regions.view("out", 16, 16)) == B.tobytes()


def test_an_answer_that_cannot_be_read_is_an_error_of_its_request(regions: Regions) -> None:
    header = {
        "inputs": [{"name": name, "shape": [1, 4], "datatype": "INT32", "data": [1, 2, 3, 4]} for name in ("A", "B")],
        "outputs": [{"name": "X", "parameters": dict(OUT)}],
    }
    client = Client()
    sink = inline([orjson.dumps(header)], None, HTTP, regions, client, far=True).sink
    sink.on_response(3, (b"{ ]rest",), True)
    assert type(client.error) is Internal and client.answer is None


def test_grpc_inputs_and_outputs_pass_through_this_node(regions: Regions) -> None:
    regions.view("in", 0, 16)[:] = B.tobytes()
    request = ModelInferRequest(model_name="echo")
    for name in ("A", "B"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 4])
    request.inputs[1].parameters["shared_memory_region"].string_param = "in"
    request.inputs[1].parameters["shared_memory_byte_size"].int64_param = 16
    request.raw_input_contents.append(A.tobytes())
    request.outputs.add(name="X")
    request.outputs.add(name="Y")
    request.outputs[1].parameters["shared_memory_region"].string_param = "out"
    request.outputs[1].parameters["shared_memory_byte_size"].int64_param = 16
    client = serve_far_away(GrpcInferCodec(SIGNATURE, "1"), GRPC, request.SerializeToString(), None, regions)
    assert client.answer is not None
    response = ModelInferResponse.FromString(client.answer[1])
    assert list(response.raw_output_contents) == [A.tobytes(), b""]
    assert bytes(regions.view("out", 0, 16)) == B.tobytes()


@pytest.mark.parametrize(
    ("first", "written_by_http", "written_by_grpc"), [(OUT, True, True), ({}, False, True)], ids=["region", "inline"]
)
def test_an_output_that_is_named_twice_goes_where_a_replica_of_this_node_has_it(
    first: dict[str, Any], written_by_http: bool, written_by_grpc: bool, regions: Regions
) -> None:
    second = OUT if not first else {**OUT, "shared_memory_offset": 32}
    inputs = [{"name": name, "shape": [1, 4], "datatype": "INT32", "data": B.tolist()} for name in ("A", "B")]
    named = [{"name": "X", "parameters": dict(place or {"binary_data": True})} for place in (first, second)]
    header = {"inputs": inputs, "outputs": named}
    request = ModelInferRequest(model_name="echo", raw_input_contents=[B.tobytes()] * 2)
    for name in ("A", "B"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 4])
    for place in (first, second):
        parameters = request.outputs.add(name="X").parameters
        for key, value in place.items():
            setattr(parameters[key], "string_param" if isinstance(value, str) else "int64_param", value)
    out = regions.view("out", 0, 64)
    for codec, wire, body, written in (
        (HttpInferCodec(SIGNATURE, "1"), HTTP, orjson.dumps(header), written_by_http),
        (GrpcInferCodec(SIGNATURE, "1"), GRPC, request.SerializeToString(), written_by_grpc),
    ):
        out[:] = bytes(64)
        client = serve_far_away(codec, wire, body, None, regions)
        assert client.error is None
        assert bytes(out) == (bytes(16) + B.tobytes() if written else bytes(32)) + bytes(32)


def test_an_output_that_does_not_fit_its_region_is_an_error(regions: Regions) -> None:
    header = {
        "inputs": [{"name": name, "shape": [1, 4], "datatype": "INT32", "data": [1, 2, 3, 4]} for name in ("A", "B")],
        "outputs": [{"name": "X", "parameters": {"shared_memory_region": "out", "shared_memory_byte_size": 8}}],
    }
    client = serve_far_away(HttpInferCodec(SIGNATURE, "1"), HTTP, orjson.dumps(header), None, regions)
    assert type(client.error) is Internal
    assert "(8 bytes) should be at least 16 bytes to hold the results" in client.error.message


def test_an_answer_that_does_not_fit_its_region_ends_a_stream(regions: Regions) -> None:
    class Stream(Client):
        responses = 0

        def on_response(self, json_length: int | None, parts: Any, final: bool) -> None:
            assert self.error is None, "an answer after the error"
            self.responses += 1

    request = ModelInferRequest(model_name="echo", outputs=[{"name": "X"}])
    parameters = request.outputs[0].parameters
    parameters["shared_memory_region"].string_param = "out"
    parameters["shared_memory_byte_size"].int64_param = 8
    client = Stream()
    _, _, sink, _ = inline([request.SerializeToString()], None, GRPC_STREAM, regions, client, far=True)
    for size, final in (8, False), (16, False), (8, False), (8, True):
        response = ModelInferResponse(outputs=[{"name": "X"}], raw_output_contents=[bytes(size)])
        message = ModelStreamInferResponse(infer_response=response).SerializeToString()
        sink.on_response(None, [message], final)
    assert isinstance(client.error, Internal)
    assert client.responses == 1


@pytest.mark.parametrize("of_output", [False, True], ids=["input", "output"])
@pytest.mark.parametrize(
    ("offset", "size", "text"),
    [
        (-32, 16, "Invalid offset for shared memory region: 'in'"),
        (0, -16, "Invalid offset + byte size for shared memory region: 'in'"),
        (0, None, "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for"),
    ],
)
def test_grpc_ranges_are_refused_as_by_a_replica_of_this_node(
    offset: int, size: int | None, text: str, of_output: bool, regions: Regions
) -> None:
    request = ModelInferRequest(model_name="echo")
    for name in ("A", "B"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 4])
    request.outputs.add(name="X")
    parameters = (request.outputs[0] if of_output else request.inputs[0]).parameters
    parameters["shared_memory_region"].string_param = "in"
    parameters["shared_memory_offset"].int64_param = offset
    if size is not None:
        parameters["shared_memory_byte_size"].int64_param = size
    request.raw_input_contents.extend([A.tobytes()] * (1 + of_output))
    body = request.SerializeToString()
    with pytest.raises(InvalidArgument) as near:
        GrpcInferCodec(SIGNATURE, "1", shared_memory=regions).decode(body, None, lambda *_: None)
    with pytest.raises(InvalidArgument) as far:
        inline([body], None, GRPC, regions, Client(), far=True)
    assert near.value.message == far.value.message
    assert text in far.value.message


def test_an_unknown_region_is_not_found(regions: Regions) -> None:
    place = {"shared_memory_region": "nowhere", "shared_memory_byte_size": 16}
    body = orjson.dumps({"inputs": [{"name": "A", "shape": [1, 4], "datatype": "INT32", "parameters": place}]})
    with pytest.raises(NotFound, match="Unable to find shared memory region: 'nowhere'"):
        inline([body], None, HTTP, regions, Client(), far=True)


@pytest.mark.parametrize(
    "body", [b"shared_memory_region", b"[1]", b'{"inputs": 3}', b'{"inputs": [3, {"parameters": []}], "outputs": {}}']
)
def test_what_is_malformed_is_left_for_the_replica_to_judge(body: bytes, regions: Regions) -> None:
    parts, _, _, _ = inline([body], None, HTTP, regions, Client(), far=True)
    assert b"".join(parts)
    inline([b"\xff\xff\xff"], None, GRPC, regions, Client(), far=True)


@pytest.mark.parametrize("depth", [150, 1_000, 5_000, 100_000])
def test_json_that_nests_too_deep_is_left_for_the_replica_to_judge(depth: int, regions: Regions) -> None:
    tensor = {"name": "A", "datatype": "INT32", "shape": [1, 4], "parameters": PLACE}
    body = b'{"inputs":[%s],"x":%s}' % (orjson.dumps(tensor), b"[" * depth + b"]" * depth)
    parts, length, _, _ = inline([body], None, HTTP, regions, Client(), far=True)
    with pytest.raises(InvalidArgument):
        HttpInferCodec(SIGNATURE, "1").decode(b"".join(parts), length, lambda *_: None)


class OneOnDevice(Regions):
    """`in` lies where this process alone can read it."""

    def is_on_device(self, region: str) -> bool:
        return region == "in"


def test_what_a_model_of_this_node_can_reach_is_left_to_it(regions: Regions) -> None:
    regions.__class__ = OneOnDevice
    regions.view("in", 0, 16)[:] = A.tobytes()
    header = {
        "inputs": [
            {"name": "A", "shape": [1, 4], "datatype": "INT32", "parameters": dict(PLACE)},
            {"name": "B", "shape": [1, 4], "datatype": "INT32", "parameters": dict(OUT)},
        ],
        "outputs": [{"name": "X", "parameters": dict(OUT)}],
    }
    client = Client()
    parts, length, sink, _ = inline([orjson.dumps(header)], None, HTTP, regions, client, far=False)
    assert sink is client
    assert b"".join(parts)[length:] == A.tobytes()
    kept = orjson.loads(b"".join(parts)[:length])
    assert kept["inputs"][0]["parameters"] == {"binary_data_size": 16}
    assert kept["inputs"][1] == header["inputs"][1]
    assert kept["outputs"] == header["outputs"]


async def near_and_far(folder: str, loop: asyncio.AbstractEventLoop) -> tuple[Replica, Replica]:
    """Return a replica of this node and one of another."""
    near, far = (Replica(folder, name, loop) for name in ("near", "far"))
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    await near.server.listen([near.sock])
    await far.server.listen([far.sock, listener])
    far.address = replace(far.address, node_id="node-2", tcp_host="127.0.0.1", tcp_port=listener.getsockname()[1])
    return near, far


def test_large_json_for_another_node_is_parsed_elsewhere_where_it_may_name_a_region(regions: Regions) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        with tempfile.TemporaryDirectory() as folder:
            near, far = await near_and_far(folder, loop)
            fleet = Fleet(NODE, loop, lambda: None, Refusals(Totals()), regions=regions)
            fleet.set_replicas("echo#v1", {"near": near.address})
            await Lanes.until(lambda: fleet.target("echo") is not None)
            target: Any = fleet.target("echo")
            assert not target.shared
            fleet.set_replicas("echo#v1", {"near": near.address, "far": far.address})
            await Lanes.until(lambda: len(target.choice.lanes) == 2)
            assert target.shared
            regions.unregister()
            assert not target.shared
            await fleet.close()
            for replica in (near, far):
                await replica.server.drain(0.0)

    asyncio.run(run())


@pytest.mark.parametrize("asleep", [False, True], ids=["", "of a model that may have none"])
def test_a_request_whose_replica_of_this_node_dies_goes_to_another_node_with_what_is_in_its_region(
    asleep: bool, regions: Regions
) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        with tempfile.TemporaryDirectory() as folder:
            near, far = await near_and_far(folder, loop)
            fleet = Fleet(NODE, loop, lambda: None, Refusals(Totals()), regions=regions, away_s=0.0)
            if asleep:
                fleet.set_sleepers({("echo", 1): 60.0}, lambda: None)
            fleet.set_replicas("echo#v1", {replica.address.replica_id: replica.address for replica in (near, far)})
            await Lanes.until(lambda: fleet.lane_count == 2 and all(lane.welcome for lane in fleet._open))
            near.model.hold = True
            sink = Sink()
            tensor = {"name": "A", "datatype": "INT32", "shape": [1, 4], "parameters": PLACE}
            target = fleet.target("echo")
            assert target is not None
            target.submit((orjson.dumps({"inputs": [tensor]}),), None, sink)
            regions.open(RegionRange("in", 0, 16)).write(A.tobytes())
            await Lanes.until(lambda: bool(near.model.held))
            near.die()
            await asyncio.wait_for(sink.done.wait(), 5)
            assert sink.error is None
            (body,) = sink.responses
            assert body.endswith(A.tobytes())
            assert b"shared_memory_region" not in body
            await fleet.close()
            for replica in (near, far):
                await replica.server.drain(0.0)

    asyncio.run(run())


@pytest.mark.parametrize("at", [0, 1, (1 << 18) - 10, 1 << 18, 3 << 18])
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_a_region_is_found_wherever_json_names_it(at: int, kind: type) -> None:
    body = b" " * at + b'"shared_memory_region"' + b" " * 1000
    assert names_region((kind(body),), None, HTTP)
    assert names_region((kind(body),), at + 22, HTTP)
    assert not names_region((kind(body),), at + 20, HTTP)
    assert not names_region((kind(b"x" * at),), None, HTTP)


def test_large_tensors_in_binary_name_no_region() -> None:
    message = ModelInferRequest(model_name="echo", raw_input_contents=[b"shared_memory_region" * 1000])
    assert not names_region((message.SerializeToString(),), None, GRPC)
    message.inputs.add(name="A").parameters["shared_memory_region"].string_param = "in"
    assert names_region((memoryview(message.SerializeToString()),), None, GRPC)
    assert not names_region((b"\xff" + message.SerializeToString(),), None, GRPC)
