"""Much JSON keeps nobody waiting: how long the loop stood still beside it, on real sockets with a real codec."""

import asyncio
import http.client
import json
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from app.http.context import HttpContext
from app.http.front import HttpFront
from app.http.limits import HttpLimits
from app.http.metrics_app import NoModels
from app.json_helper.binary_form import request_in_binary_form
from app.json_helper.json_helper import JsonHelper
from deployments.core.counts import Totals
from deployments.core.refusals import Refusals
from deployments.lane.slow_codec import SlowCodec
from deployments.lane.target import LaneTarget, TargetContext
from deployments.replica.served_model import LocalTarget, ServedModel
from protocol.datatypes import BY_NAME
from protocol.errors import Internal
from protocol.grpc_infer import GrpcInferCodec
from protocol.http_infer import HttpInferCodec
from protocol.infer import InferRequest, InferResponse
from protocol.limits import Limits
from protocol.signature import Signature, TensorSpec
from tests.app.http.stall import stall_s
from tests.app.http.wire import EchoTarget, Wire, hello
from tests.deployments.fakes import slow_queue

STALL_S = 0.05
ATTEMPTS = 5
INPUTS = [{"name": "X", "datatype": "FP32", "shape": [-1]}, {"name": "S", "datatype": "BYTES", "shape": [-1]}]


class Model:
    """Answers with its inputs, or with their sizes."""

    name, version, config, pool, interface = "echo", 1, ModelConfig(), None, ""

    def __init__(self) -> None:
        self.package = self
        self.whole = True
        self.decoded: list[InferRequest] = []

    def submit(self, request: InferRequest) -> None:
        self.decoded.append(request)
        outputs = {name: array if self.whole else np.array([array.size]) for name, array in request.inputs.items()}
        request.reply(request, InferResponse(outputs))

    def cancel(self, request: InferRequest) -> None: ...

    def end_sequence(self, sequence_id: int | str) -> None: ...


class Server:
    """An ingress with an embedded model, whose loop counts how long it stood still."""

    def __init__(self) -> None:
        specs = [TensorSpec(name, BY_NAME[kind], (-1,), (-1,), optional=True) for name, kind in _kinds()]
        tensors = {spec.name: spec for spec in specs}
        signature = Signature("echo", 0, tensors, tensors)
        self.model = Model()
        codecs = (HttpInferCodec(signature, "1"), GrpcInferCodec(signature, "1"), GrpcInferCodec(signature, "1"))
        self.target = LocalTarget(ServedModel(self.model, codecs, SlowCodec(codecs, slow_queue())))  # type: ignore[arg-type]
        self.context = HttpContext(hello, self, HttpLimits(), asyncio.get_running_loop())
        self.front = HttpFront(self.context)
        self.port = 0

    def resolve(self, quoted_name: bytes, version: int) -> LocalTarget:
        return self.target

    def resolve_generate(self, quoted_name: bytes, version: int) -> tuple[LocalTarget, list[dict[str, Any]], bool]:
        return self.target, INPUTS, False

    def ask(self, path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
        """Send a request, from a thread, and return the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(
            "POST", f"/v2/models/echo/{path}", body, {k.replace("_", "-"): v for k, v in headers.items()}
        )
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, content


def _kinds() -> list[tuple[str, str]]:
    return [(str(tensor["name"]), str(tensor["datatype"])) for tensor in INPUTS]


def serve(test: Callable[[Server], Any]) -> None:
    async def run() -> None:
        server = Server()
        server.port = await server.front.listen("127.0.0.1", 0)
        try:
            await test(server)
        finally:
            await server.front.close(1)

    asyncio.run(run())


def numbers(size: int) -> bytes:
    """The text of an array of numbers of about this many bytes."""
    return b"[" + b"0.125,-17,1e3," * (size // 14) + b"0]"


def infer_body(data: bytes, count: int) -> bytes:
    return b'{"id":"7","inputs":[{"name":"X","datatype":"FP32","shape":[%d],"data":%b}]}' % (count, data)


SIZE = 56 << 20
MORE = 4 << 20
COUNT = SIZE // 14 * 3 + 1
LARGE: dict[str, Callable[[], tuple[str, bytes]]] = {
    "numbers": lambda: ("infer", infer_body(numbers(SIZE), COUNT)),
    "nested numbers": lambda: ("infer", infer_body(b"[[" + numbers(MORE) + b"]]", MORE // 14 * 3 + 1)),
    "strings": lambda: (
        "infer",
        b'{"inputs":[{"name":"S","datatype":"BYTES","shape":[%d],"data":["x"%b]}]}'
        % (1 << 20, b',"y"' * ((1 << 20) - 1)),
    ),
    "generate with numbers": lambda: ("generate", b'{"X":' + numbers(MORE) + b"}"),
    "generate with a long string": lambda: ("generate", b'{"S":"' + b"x" * MORE + b'"}'),
    "what is no JSON": lambda: ("infer", b'{"inputs":' + numbers(MORE)),
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE.keys())
def test_large_json_does_not_stop_the_loop(make: Callable[[], tuple[str, bytes]]) -> None:
    path, body = make()
    stalls: list[float] = []

    async def test(server: Server) -> None:
        server.model.whole = False
        server.context.json_helper.submit({"task": "infer", "json_length": None, "limit": 1}, (b"{}",), lambda _: None)
        answers: list[tuple[int, bytes]] = []
        for _ in range(ATTEMPTS):  # others may be at work on this machine
            stalls.append(await stall_s(lambda: answers.append(server.ask(path, body))))
            assert answers[-1][0] == (400 if body.endswith(b"0]") else 200), answers[-1][1][:300]
            if stalls[-1] <= STALL_S:
                return

    serve(test)
    assert min(stalls) <= STALL_S, stalls


@pytest.mark.timeout(400)
@pytest.mark.parametrize("path", ["infer", "generate"])
def test_a_large_json_response_does_not_stop_the_loop(path: str) -> None:
    data = numbers(MORE)
    values = np.array(json.loads(data), np.float32)
    body = infer_body(data, values.size) if path == "infer" else b'{"X":' + data + b"}"
    stalls: list[float] = []

    async def test(server: Server) -> None:
        answers: list[tuple[int, bytes]] = []
        for _ in range(ATTEMPTS):
            stalls.append(await stall_s(lambda: answers.append(server.ask(path, body))))
            document = json.loads(answers[-1][1])
            given = document["outputs"][0]["data"] if path == "infer" else document["X"]
            assert np.array_equal(np.array(given, np.float32), values)
            if stalls[-1] <= STALL_S:
                return

    serve(test)
    assert min(stalls) <= STALL_S, stalls


class Streaming(EchoTarget):
    """Answers with a large response, and then with one without outputs."""

    def submit(self, parts: Any, json_length: int | None, sink: Any, wire: int = 0, trace: Any = None) -> int:
        data = numbers(MORE)
        output = b'{"name":"X","datatype":"FP32","shape":[%d],"data":%b}' % (data.count(b",") + 1, data)
        document = b'{"model_name":"echo","model_version":"1","outputs":[%b]}'
        for part, final in ((document % output, False), (document % b"", True)):
            asyncio.get_running_loop().call_soon(sink.on_response, None, (part,), final)
        return 1


@pytest.mark.timeout(400)
def test_a_large_response_that_is_not_the_last_does_not_stop_the_loop() -> None:
    stalls: list[float] = []

    async def test(server: Server) -> None:
        server.target = Streaming()  # type: ignore[assignment]
        answers: list[tuple[int, bytes]] = []
        for _ in range(ATTEMPTS):
            stalls.append(await stall_s(lambda: answers.append(server.ask("generate_stream", b"{}"))))
            first, second = answers[-1][1].split(b"\n\n", 1)
            assert len(json.loads(first.removeprefix(b"data: "))["X"]) > MORE // 14
            assert b"X" not in second
            if stalls[-1] <= STALL_S:
                return

    serve(test)
    assert min(stalls) <= STALL_S, stalls


def strings_body(strings: bytes, count: int) -> tuple[bytes, bytes]:
    """A request for an identity of strings in binary, and its JSON alone."""
    header = (
        b'{"inputs":[{"name":"S","datatype":"BYTES","shape":[%d],"parameters":{"binary_data_size":%d}}],'
        b'"outputs":[{"name":"S","parameters":{"binary_data":true}}]}' % (count, len(strings))
    )
    return header + strings, header


MANY = 1 << 20
STRINGS = {
    "of one length": b"\3\0\0\0abc" * MANY,
    "empty": b"\0\0\0\0" * MANY,
    "of several lengths": b"\1\0\0\0a\2\0\0\0bc" * (MANY // 2),
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("strings", STRINGS.values(), ids=STRINGS.keys())
def test_many_strings_do_not_stop_the_loop(strings: bytes) -> None:
    body, header = strings_body(strings, MANY)
    stalls: list[float] = []

    async def test(server: Server) -> None:
        length = str(len(header))
        answers: list[tuple[int, bytes]] = []
        for _ in range(ATTEMPTS):
            stalls.append(
                await stall_s(lambda: answers.append(server.ask("infer", body, Inference_Header_Content_Length=length)))
            )
            assert answers[-1][0] == 200, answers[-1][1][:300]
            assert answers[-1][1].endswith(strings)
            if stalls[-1] <= STALL_S:
                return

    serve(test)
    assert min(stalls) <= STALL_S, stalls


def test_large_and_small_json_mean_the_same() -> None:
    async def test(server: Server) -> None:
        loop = asyncio.get_running_loop()
        values = np.arange(50_000, dtype=np.float32)
        inline = json.dumps(values.tolist()).encode()
        header = (
            b'{"id":"7","parameters":{"n":1},"inputs":[{"name":"S","datatype":"BYTES","shape":[1],"parameters":'
            b'{"binary_data_size":6}},{"name":"X","datatype":"FP32","shape":[50000],"data":%b}],"outputs":[{"name":"X",'
            b'"parameters":{"binary_data":true}}]}' % inline
        )
        body = header + b"\2\0\0\0hi"
        status, answer = await loop.run_in_executor(
            None, lambda: server.ask("infer", body, Inference_Header_Content_Length=str(len(header)))
        )
        assert status == 200, answer[:300]
        assert answer.endswith(values.tobytes())
        assert b'"id":"7"' in answer
        (request,) = server.model.decoded
        assert request.parameters == {"n": 1}
        assert request.inputs["S"].tolist() == [b"hi"]
        wrong = header.replace(b"[50000]", b"[50001]") + b"\2\0\0\0hi"
        status, answer = await loop.run_in_executor(
            None, lambda: server.ask("infer", wrong, Inference_Header_Content_Length=str(len(header)))
        )
        assert (status, json.loads(answer)["error"]) == (
            400,
            "Unable to parse 'data': Shape does not match true shape of 'data' field",
        )

    serve(test)


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_a_header_that_would_end_behind_the_body_is_refused_at_any_length(size: int) -> None:
    async def test(server: Server) -> None:
        body = infer_body(numbers(size), size // 14 * 3 + 1)
        for length in (len(body) + 1, 1 << 20, (1 << 31) - 1):
            if length > len(body):
                status, answer = await asyncio.get_running_loop().run_in_executor(
                    None, partial(server.ask, "infer", body, Inference_Header_Content_Length=str(length))
                )
                assert status == 400
                assert f"should be in range (0, {len(body)}), got: {length}" in json.loads(answer)["error"]

    serve(test)


def test_a_helper_that_dies_is_replaced() -> None:
    async def test(server: Server) -> None:
        loop = asyncio.get_running_loop()
        body = infer_body(numbers(1 << 20), (1 << 20) // 14 * 3 + 1)
        for _ in range(2):
            status, _ = await loop.run_in_executor(None, lambda: server.ask("infer", body))
            assert status == 200
            process = server.context.json_helper._process
            assert process is not None
            process.kill()
            process.wait()

    serve(test)


def test_a_task_that_ends_half_way_leaves_nothing_to_the_next() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        helper = JsonHelper(loop)
        head = {"task": "generate", "inputs": INPUTS[1:], "model": "m", "limit": 1 << 20, "forwarded": {}}

        async def do(*parts: Any) -> Any:
            done = loop.create_future()
            helper.submit(head, parts, done.set_result)
            return await asyncio.wait_for(done, 20)

        for _ in range(2):
            result = await do(b'{"S":', b'"next"}')
            assert bytes(result[1]).endswith(b"next")
            cut_short = memoryview(b'"of another"')[::2]  # which cannot be written
            assert isinstance(await do(b'{"S":', cut_short), Internal)
        helper.close()

    asyncio.run(test())


@pytest.mark.parametrize("path", ["infer", "generate"])
def test_what_a_client_that_leaves_has_sent_is_let_go_of(path: str) -> None:
    async def test() -> None:
        first, go_on = Wire(), threading.Event()
        first.target.shared = True
        tasks = first.context.json_helper._tasks
        tasks.submit(lambda: go_on.wait(30), lambda result, error: None)
        wire = Wire()
        wire.share(first)
        body = b'{"note":"%b"}' % (b"x" * (1 << 19))
        await wire.send(b"POST /v2/models/echo/%b HTTP/1.1\r\nHost: a\r\n" % path.encode())
        await wire.send(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert len(tasks) == 1
        wire.connection.connection_lost(None)
        assert len(tasks) == 0
        go_on.set()
        first.context.json_helper.close()

    asyncio.run(test())


class Sink:
    def on_response(self, *_: Any) -> None:
        raise AssertionError("nobody waits for it")

    def on_error(self, error: Exception) -> None:
        raise error


@pytest.mark.parametrize("what", ["requests", "answers"])
def test_strings_that_nobody_waits_for_are_let_go_of(what: str) -> None:
    async def test() -> None:
        server, go_on = Server(), threading.Event()
        slow, target = server.target._served.slow, server.target
        queue = slow._queue
        queue.submit(lambda: go_on.wait(30), lambda result, error: None)
        if what == "requests":
            body, header = strings_body(b"\0\0\0\0" * MANY, MANY)
            token = target.submit((body,), len(header), Sink())
        else:  # of a model that makes many of one
            request = InferRequest({}, 1, target._reply, context=(Sink(), target._served.codecs[0], 0, None, 0))
            token = request
            request.reply(request, InferResponse({"S": np.full(MANY, b"x", object)}))
        assert len(queue) == 1
        target.cancel(token)
        assert len(queue) == slow.decoding_count == slow.encoding_count == 0
        go_on.set()
        queue.close()

    asyncio.run(test())


def test_a_name_as_long_as_a_body_makes_no_long_error() -> None:
    async def test(server: Server) -> None:
        loop = asyncio.get_running_loop()
        body = json.dumps({"inputs": [{"name": "n" * (2 << 20), "datatype": "X", "shape": [1], "data": [1]}]}).encode()
        status, answer = await loop.run_in_executor(None, lambda: server.ask("infer", body))
        assert status == 400
        assert answer.startswith(b'{"error":"invalid datatype for input nnn')

    serve(test)


@pytest.mark.parametrize("shared", [True, False])
def test_a_replica_that_models_share_is_sent_binary_in_place_of_much_json(shared: bool) -> None:
    async def test(server: Server) -> None:
        target = EchoTarget()
        target.shared = shared
        server.target = target  # type: ignore[assignment]
        body = infer_body(numbers(1 << 20), (1 << 20) // 14 * 3 + 1)
        status, _ = await asyncio.get_running_loop().run_in_executor(None, lambda: server.ask("infer", body))
        assert status == 200
        ((sent,), (length,)) = target.bodies, target.json_lengths
        assert (length is not None and length < 1000) if shared else (length is None and sent == body)

    serve(test)


JUNK = b"[" + b"0," * 3_000_000 + b"0]"
PADDED = {
    "member": b'{"note":%b,"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[1]}]}',
    "member of an input": b'{"inputs":[{"note":%b,"name":"X","datatype":"FP32","shape":[1],"data":[1]}]}',
    "parameter of an input": b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[1],"parameters":{"a":%b}}]}',
    "forwarded": b'{"eagleray_forwarded_headers":%b,"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[1]}]}',
    "output": b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[1]}],"outputs":[{"name":"X","note":%b}]}',
}


@pytest.mark.parametrize("padded", PADDED.values(), ids=PADDED.keys())
def test_what_means_nothing_does_not_come_back(padded: bytes) -> None:
    length, parts = request_in_binary_form(memoryview(padded % JUNK), None, "echo", Limits())
    assert length == len(parts[0]) < 1000
    assert bytes(parts[1]) == np.float32(1).tobytes()


class LateHelper:
    """Takes a task and hands back what it was given, later."""

    def __init__(self) -> None:
        self.done: Any = None

    def submit(self, head: dict[str, Any], parts: Any, done: Any) -> None:
        self.done = lambda: done((None, memoryview(b"".join(parts))))


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("path", ["infer", "generate", "generate_stream"])
def test_a_request_goes_where_it_belongs_once_its_json_is_read(path: str, stays: bool) -> None:
    async def test() -> None:
        wire, helper = Wire(), LateHelper()
        wire.context.json_helper = helper  # type: ignore[assignment]
        old, new = wire.target, EchoTarget()
        old.shared = True
        body = b'{"note":"%b"}' % (b"x" * (1 << 19))
        await wire.send(b"POST /v2/models/echo/%b HTTP/1.1\r\nHost: a\r\n" % path.encode())
        await wire.send(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wire.routes.target = new
        if not stays:
            wire.context._routes = NoModels()
        wire.context.routes_changed()
        helper.done()
        assert (len(old.bodies), len(new.bodies)) == (0, int(stays))
        assert (b"HTTP/1.1 404 " in wire.transport.written) is not stays

    asyncio.run(test())


def test_the_sequence_of_a_request_with_much_json_is_not_looked_for_by_the_loop() -> None:
    async def test() -> None:
        wire, helper = Wire(), LateHelper()
        wire.context.json_helper = helper  # type: ignore[assignment]
        target = LaneTarget("echo", 1, TargetContext(10, Refusals(Totals())))
        target.follow_sequences(1_000_000)
        wire.routes.target = target  # type: ignore[assignment]
        body = b'{"note":"%b","parameters":{"sequence_id":7}}' % (b"x" * (1 << 19))
        await wire.send(b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\n")
        await wire.send(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert helper.done is not None

    asyncio.run(test())
