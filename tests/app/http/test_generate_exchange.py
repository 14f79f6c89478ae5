import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.http.limits import HttpLimits
from protocol.errors import Internal, InvalidArgument, Unavailable
from tests.app.http.test_back_pressure import Port
from tests.app.http.wire import Answer, Wire

GENERATE = "/v2/models/echo/generate"
STREAM = "/v2/models/echo/generate_stream"
INPUTS = [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}]


def on_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


def response(text: str | None) -> bytes:
    outputs = [] if text is None else [{"name": "out", "datatype": "BYTES", "shape": [1], "data": [text]}]
    return json.dumps({"model_name": "echo", "model_version": "1", "outputs": outputs}).encode()


def generate_wire(limits: HttpLimits | None = None) -> Wire:
    wire = Wire(limits)
    wire.routes.inputs = INPUTS
    wire.target.hold = True
    return wire


Step = Callable[[Any], None]


def say(text: str | None, final: bool = False) -> Step:
    return lambda sink: sink.on_response(None, (response(text),), final)


async def answer_with(
    path: str, *steps: Step, body: bytes = b'{"text":"hi"}', decoupled: bool = True, **headers: str
) -> Answer:
    wire = generate_wire()
    wire.routes.decoupled = decoupled
    loop = asyncio.get_running_loop()
    for step in steps:
        loop.call_soon(lambda step=step: step(wire.target.sinks[0]))
    answer = await wire.request("POST", path, body, **headers)
    assert (await wire.request("POST", "/v2/models/nope/infer", b"{}")).status == 404  # the connection goes on
    return answer


def events(answer: Answer) -> list[Any]:
    parts = answer.body.decode().split("\n\n")
    assert parts.pop() == ""
    return [json.loads(part.removeprefix("data: ")) for part in parts]


@on_loop
async def test_generate_answers_with_flat_json() -> None:
    wire = generate_wire()
    asyncio.get_running_loop().call_soon(lambda: say("yes", True)(wire.target.sinks[0]))
    answer = await wire.request("POST", GENERATE, b'{"text":"hi","n":1}')
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == {"model_name": "echo", "model_version": "1", "out": "yes"}
    sent = json.loads(wire.target.bodies[0])
    assert sent == {"parameters": {"n": 1}, "inputs": [{**INPUTS[0], "shape": [1, 1], "data": ["hi"]}]}
    assert wire.target.json_lengths == [None]


@on_loop
async def test_generate_takes_a_last_response_without_outputs() -> None:
    answer = await answer_with(GENERATE, say("yes"), say(None, True))
    assert (answer.status, answer.json["out"]) == (200, "yes")


WITHOUT_OUTPUTS = {
    "of a model that answers once": (False, (say(None, True),)),
    "of a decoupled model that sends more": (True, (say(None), say(None, True))),
}


@pytest.mark.parametrize(("decoupled", "steps"), WITHOUT_OUTPUTS.values(), ids=WITHOUT_OUTPUTS.keys())
def test_a_response_without_outputs_is_one(decoupled: bool, steps: tuple[Step, ...]) -> None:
    only = {"model_name": "echo", "model_version": "1"}
    answer = asyncio.run(answer_with(GENERATE, *steps, decoupled=decoupled))
    assert (answer.status, answer.json) == (200, only)
    streamed = asyncio.run(answer_with(STREAM, *steps, decoupled=decoupled))
    assert (streamed.status, events(streamed)) == (200, [only])


NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
    "number of responses"
)


@pytest.mark.parametrize("steps", [(say(None, True),), (say("a"), say("b", True))], ids=["none", "two"])
def test_generate_wants_exactly_one_response(steps: tuple[Step, ...]) -> None:
    answer = asyncio.run(answer_with(GENERATE, *steps))
    assert (answer.status, answer.error) == (400, NOT_ONE)


@on_loop
async def test_generate_gives_the_request_up_at_the_second_response() -> None:
    wire = generate_wire()
    asyncio.get_running_loop().call_soon(lambda: [say("a")(wire.target.sinks[0]), say("b")(wire.target.sinks[0])])
    assert (await wire.request("POST", GENERATE, b"{}")).error == NOT_ONE
    assert wire.target.cancelled == [1]


@on_loop
async def test_stream_sends_an_event_for_each_response() -> None:
    answer = await answer_with(STREAM, say("a"), say("b"), say(None, True))
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["transfer-encoding"] == "chunked"
    assert [event["out"] for event in events(answer)] == ["a", "b"]


@on_loop
async def test_stream_asks_proxies_to_pass_each_event_on_at_once() -> None:
    """By default nginx speaks HTTP/1.0 to a server, and holds its answer back until a buffer is full."""
    answer = await answer_with(STREAM, say("a"), say(None, True))
    assert answer.headers["x-accel-buffering"] == "no"
    assert "x-accel-buffering" not in (await answer_with(GENERATE, say("a", True))).headers


@on_loop
async def test_stream_works_for_a_model_with_one_response() -> None:
    assert [event["out"] for event in events(await answer_with(STREAM, say("a", True)))] == ["a"]


@on_loop
async def test_stream_may_be_empty() -> None:
    answer = await answer_with(STREAM, say(None, True))
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_an_error_before_the_first_response_decides_the_status(path: str) -> None:
    answer = asyncio.run(answer_with(path, lambda sink: sink.on_error(Unavailable("Exceeds maximum queue size"))))
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    if path == STREAM:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert events(answer) == [{"error": "Exceeds maximum queue size"}]
    else:
        assert answer.headers["content-type"] == "application/json"
        assert answer.error == "Exceeds maximum queue size"


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_what_the_model_has_not_taken_is_told_in_plain_json(path: str) -> None:
    refused = Unavailable("Exceeds maximum queue size")
    refused.refused = True
    answer = asyncio.run(answer_with(path, lambda sink: sink.on_error(refused)))
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.headers["content-type"] == "application/json"
    assert answer.error == "Exceeds maximum queue size"


@on_loop
async def test_an_error_after_the_first_response_is_an_event() -> None:
    answer = await answer_with(STREAM, say("a"), lambda sink: sink.on_error(Internal("the model failed")))
    assert answer.status == 200
    assert events(answer)[1] == {"error": "the model failed"}


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_a_client_that_leaves_cancels(path: str) -> None:
    async def run() -> None:
        wire = generate_wire()
        await wire.send(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        sink = wire.target.sinks[0]
        sink.on_response(None, (response("a"),), False)
        wire.connection.connection_lost(None)
        assert wire.target.cancelled == [1]
        sink.on_response(None, (response("b"),), True)  # too late, and harmless

    asyncio.run(run())


def large_response(sink: Any) -> None:
    sink.on_response(None, (response("a" * (1 << 19)),), True)


def failure_behind_a_large_response(sink: Any) -> None:
    sink.on_response(None, (response("a" * (1 << 19)),), False)
    sink.on_error(Internal("the model failed"))


@pytest.mark.parametrize("answer", [large_response, failure_behind_a_large_response])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_client_that_leaves_cancels_nothing_that_its_model_has_answered(answer: Step, at_once: bool) -> None:
    async def run() -> None:
        wire, go_on = generate_wire(), threading.Event()
        wire.context.json_helper._tasks.submit(lambda: go_on.wait(30), lambda result, error: None)  # it is busy
        submit = wire.target.submit

        def submit_and_answer(parts: Any, json_length: int | None, sink: Any) -> int:
            token = submit(parts, json_length, sink)
            if at_once:
                answer(sink)
            return token

        wire.target.submit = submit_and_answer  # type: ignore[method-assign,assignment]
        await wire.send(f"POST {STREAM} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        if not at_once:
            answer(wire.target.sinks[0])
        wire.connection.connection_lost(None)
        assert wire.target.cancelled == []
        go_on.set()
        wire.context.json_helper.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("unsent", "taken", "later_s", "given_up"),
    [
        (100, 0, 5.0, False),
        (101, 0, 5.0, True),
        (101, 0, 4.0, False),
        (400, 1, 5.0, False),
        (400, 0, 0.0, False),
        (401, 0, 0.0, True),
        (402, 1, 5.0, True),
    ],
)
def test_a_client_that_takes_nothing_or_very_little_is_given_up(
    unsent: int, taken: int, later_s: float, given_up: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        wire = generate_wire(HttpLimits(max_stream_buffer_bytes=100))
        await wire.send(f"POST {STREAM} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        now_s = wire.loop.time()
        wire.loop.time = lambda: now_s  # type: ignore[method-assign]
        sink = wire.target.sinks[0]
        sink.on_response(None, (response("a"),), False)
        wire.transport.unsent_bytes = unsent
        sink.on_response(None, (response("b"),), False)
        await wire.send()
        if not wire.transport.closed:
            now_s += later_s
            wire.transport.unsent_bytes -= taken
            sink.on_response(None, (response("c"),), False)
            await wire.send()
        if given_up:
            wire.connection.connection_lost(None)
        assert (wire.transport.aborted, wire.target.cancelled) == ((True, [1]) if given_up else (False, []))

    with caplog.at_level("INFO"):
        asyncio.run(run())
    assert (
        "HTTP close for a local client: the client reads its events more slowly than they come" in caplog.text
    ) is given_up


@pytest.mark.parametrize("final", [False, True])
def test_an_event_of_any_size_reaches_a_client_that_reads(final: bool) -> None:
    async def run() -> None:
        async with Port(HttpLimits(max_stream_buffer_bytes=1 << 16)) as port:
            port.routes.inputs = INPUTS
            port.routes.target.hold = True
            head = f"POST {STREAM} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{{}}".encode()
            await port.loop.sock_sendall(port.client, head)
            async with asyncio.timeout(20):
                while not port.routes.target.sinks:
                    await asyncio.sleep(0)
            (sink,) = port.routes.target.sinks
            large = "x" * (8 << 20)
            reading = asyncio.create_task(port.read(lambda received: received.endswith(b"\r\n0\r\n\r\n")))
            sink.on_response(None, (response(large),), final)
            if not final:
                await asyncio.sleep(0)
                sink.on_response(None, (response("last"),), True)
            received = Answer(await reading)
            assert [event["out"] for event in events(received)] == [large, "last"][: 1 if final else 2]

    asyncio.run(run())


LARGE = "x" * (1 << 20)


@pytest.mark.parametrize("end", ["response", "error"])
def test_what_comes_behind_a_large_response_stays_behind_it(end: str) -> None:
    last = say("last", True) if end == "response" else lambda sink: sink.on_error(Internal("the model failed"))
    answer = asyncio.run(answer_with(STREAM, say("first"), say(LARGE), say("small"), say(LARGE), last))
    told = [event.get("out", event.get("error")) for event in events(answer)]
    assert told == ["first", LARGE, "small", LARGE, "last" if end == "response" else "the model failed"]


@pytest.mark.parametrize(
    ("then", "status"), [("small", 400), (LARGE, 400), (None, 200)], ids=["small", "large", "none"]
)
def test_generate_counts_large_responses_as_any(then: str | None, status: int) -> None:
    assert asyncio.run(answer_with(GENERATE, say(LARGE), say(then, True))).status == status


@on_loop
async def test_too_much_behind_a_large_response_ends_the_stream() -> None:
    wire = generate_wire(HttpLimits(max_stream_buffer_bytes=100_000))
    await wire.send(f"POST {STREAM} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{{}}".encode())
    (sink,) = wire.target.sinks
    say(LARGE)(sink)
    for _ in range(5):
        say("y" * 100_000)(sink)
    assert b"too many responses are waiting behind a large one" in wire.transport.written
    assert wire.target.cancelled == [1]


@on_loop
async def test_stream_to_an_old_client_ends_with_the_connection() -> None:
    wire = generate_wire()
    await wire.send(f"POST {STREAM} HTTP/1.0\r\nContent-Length: 2\r\n\r\n{{}}".encode())
    wire.target.sinks[0].on_response(None, (response("a"),), True)
    answer = Answer(wire.transport.written)
    assert "transfer-encoding" not in answer.headers
    assert len(events(answer)) == 1
    assert wire.transport.closed


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_compressed_bodies_are_refused(path: str) -> None:
    answer = asyncio.run(answer_with(path, Content_Encoding="gzip", Accept_Encoding="gzip"))
    assert (answer.status, answer.error) == (400, "Unsupported content-encoding, only 'identity' is supported.")


@on_loop
async def test_answers_are_not_compressed() -> None:
    answer = await answer_with(GENERATE, say("a", True), Accept_Encoding="gzip", Content_Encoding="identity")
    assert answer.json["out"] == "a"


@on_loop
async def test_unknown_model_is_404() -> None:
    answer = await Wire().request("POST", "/v2/models/nope/generate_stream", b"{}")
    assert (answer.status, answer.error) == (404, "Request for unknown model: 'nope' is not found")


@on_loop
async def test_a_value_that_fits_no_shape_never_reaches_the_model() -> None:
    wire = generate_wire()
    wire.routes.inputs = [{"name": "text", "datatype": "BYTES", "shape": [2]}]
    answer = await wire.request("POST", GENERATE, b'{"text":"a"}')
    assert (answer.status, answer.error) == (
        400,
        "The schema can not convert input 'text' to tensor with proper shape",
    )
    assert wire.target.bodies == []


@on_loop
async def test_an_error_of_the_target_may_come_at_once() -> None:
    wire = generate_wire()
    wire.target.submit = lambda parts, json_length, sink: sink.on_error(InvalidArgument("no"))  # type: ignore[assignment]
    assert events(await wire.request("POST", STREAM, b"{}")) == [{"error": "no"}]


TWICE = {
    "at the top": b'{"text":"a","text":"b"}',
    "escaped": b'{"text":"a","te\\u0078t":"b"}',
    "among the parameters": b'{"text":"a","parameters":{"text":"b"}}',
    "twice among the parameters": b'{"parameters":{"text":"a","text":"b"}}',
}


@pytest.mark.parametrize("path", [GENERATE, STREAM])
@pytest.mark.parametrize("body", TWICE.values(), ids=TWICE.keys())
def test_an_input_that_is_given_twice_is_refused(path: str, body: bytes) -> None:
    answer = asyncio.run(answer_with(path, body=body))
    assert answer.status == 400
    assert answer.error.endswith("[request id: <id_unknown>] input 'text' already exists in request")


@on_loop
async def test_a_value_may_be_called_as_the_input_is() -> None:
    answer = await answer_with(GENERATE, say("yes", True), body=b'{"text":"text","n":1,"n":2,"m":"\\u0078"}')
    assert answer.status == 200


@on_loop
async def test_an_output_without_elements_is_an_empty_list() -> None:
    output = {"name": "out", "datatype": "FP32", "shape": [0]}
    for fields in ({}, {"data": []}):
        body = json.dumps({"model_name": "echo", "model_version": "1", "outputs": [output | fields]}).encode()
        answer = await answer_with(GENERATE, lambda sink, body=body: sink.on_response(None, (body,), True))
        assert (answer.status, answer.json["out"]) == (200, [])
