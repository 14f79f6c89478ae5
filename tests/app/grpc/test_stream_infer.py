"""ModelStreamInfer: order, finality, errors, half-close, cancellation, limits."""

import asyncio
import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from app.grpc.options import GrpcOptions
from app.http2 import frames
from app.http2.limits import Http2Limits
from tests.app.grpc.server import Server, request, serving
from tests.app.grpc.test_wire import STREAM, Wire, on_loop, prefixed
from tests.app.http2.wire import bodies, data
from tests.serving import wait_until

UNBOUNDED = [("grpc.max_receive_message_length", -1)]


class Requests:
    """Requests that a client sends one by one."""

    def __init__(self, *first: Any) -> None:
        self._queue: queue.Queue[Any] = queue.Queue()
        for each in first:
            self._queue.put(each)

    def put(self, each: Any) -> None:
        self._queue.put(each)

    def end(self) -> None:
        self._queue.put(None)

    def __iter__(self) -> Iterator[Any]:
        while (each := self._queue.get(timeout=30)) is not None:
            yield each


def final(response: Any) -> bool:
    return bool(response.infer_response.parameters["triton_final_response"].bool_param)


def test_answers_in_the_order_of_requests(server: Server, stub: Any) -> None:
    ids = ["hold-1", "2", "hold-3", "4", "5"]
    requests = Requests(*(request(request_id=each) for each in ids))
    call = stub.ModelStreamInfer(iter(requests))
    server.wait_arrived(2)
    server.release("hold-3")
    server.release("hold-1")
    got = [next(call) for _ in ids]
    assert [response.infer_response.id for response in got] == ids
    assert all(final(response) for response in got)
    requests.end()
    assert list(call) == []
    assert call.code() == grpc.StatusCode.OK


def test_decoupled_models_answer_as_they_like(server: Server, stub: Any) -> None:
    first = request("decoupled", request_id="hold")
    requests = Requests(first, request("decoupled", request_id="many:3"), request(request_id="x"))
    call = stub.ModelStreamInfer(iter(requests))
    got = [next(call) for _ in range(4)]
    assert [response.infer_response.id for response in got] == ["many:3"] * 3 + ["x"]
    assert [final(response) for response in got] == [False, False, False, True]
    server.wait_arrived()
    server.release("hold")
    assert next(call).infer_response.id == "hold"
    requests.end()
    assert list(call) == []


def test_errors_are_responses_and_the_stream_goes_on(stub: Any) -> None:
    bad = [request(request_id="fail"), request("nope", request_id="lost"), request(version="x")]
    got = list(stub.ModelStreamInfer(iter([*bad, request(request_id="good")])))
    assert [response.error_message for response in got] == [
        "räksmörgås: 100 % wrong",
        "Request for unknown model: 'nope' is not found",
        "failed to get model version from specified version string 'x' (details: stol), "
        "version should be an integral value > 0",
        "",
    ]
    assert [response.infer_response.id for response in got] == ["fail", "lost", "", "good"]
    assert [response.infer_response.model_name for response in got[:3]] == [bad[0].model_name, "", ""]
    assert final(got[0]) and final(got[3])
    assert not got[1].infer_response.parameters, "Triton says no more of what no model has taken"


def test_errors_that_tell_long_names_are_shortened(stub: Any) -> None:
    (answer,) = stub.ModelStreamInfer(iter([request("é" * 20_000)]))
    assert answer.error_message.startswith("Request for unknown model: 'é")
    assert len(answer.error_message.encode()) <= 960


@pytest.mark.parametrize("field", ["model_name", "model_version", "id"])
def test_a_name_version_or_id_over_64_kib_is_refused(stub: Any, field: str) -> None:
    longest, longer = request("decoupled", request_id="many:1"), request("decoupled", request_id="many:1")
    setattr(longest, field, "7" * 65_536)
    setattr(longer, field, "7" * 65_537)
    within, above = stub.ModelStreamInfer(iter([longest, longer]))
    refused = f"{field} of a ModelInferRequest has more than 65536 bytes"
    assert (within.error_message != refused, above.error_message) == (True, refused)


def test_errors_keep_their_place(server: Server, stub: Any) -> None:
    call = stub.ModelStreamInfer(iter([request(request_id="hold"), request("nope"), request(request_id="3")]))
    server.wait_arrived()
    server.release("hold")
    assert [bool(response.error_message) for response in call] == [False, True, False]


def test_errors_are_the_status_if_the_client_wants_that(server: Server, stub: Any) -> None:
    requests = Requests(request(request_id="hold"), request(request_id="fail"))
    call = stub.ModelStreamInfer(iter(requests), metadata=[("triton_grpc_error", "true")])
    with pytest.raises(grpc.RpcError):
        list(call)
    assert (call.code(), call.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "räksmörgås: 100 % wrong")
    server.wait_cancelled()
    assert server.service.cancelled == ["hold"]
    requests.end()


def test_a_message_that_is_none_is_an_error_of_its_own(channel: grpc.Channel) -> None:
    call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    (answer,) = list(call(iter([b"\xff\xff"])))
    assert b"failed to parse" in answer


def test_half_close_waits_for_what_is_under_way(server: Server, stub: Any) -> None:
    call = stub.ModelStreamInfer(iter([request(request_id="hold")]))
    server.wait_arrived()
    server.release("hold")
    assert [response.infer_response.id for response in call] == ["hold"]


def test_a_stream_without_requests(stub: Any) -> None:
    call = stub.ModelStreamInfer(iter([]))
    assert list(call) == []
    assert call.code() == grpc.StatusCode.OK


def test_cancelling_cancels_every_request(server: Server, stub: Any) -> None:
    requests = Requests(*(request(request_id=f"hold{i}") for i in range(3)))
    call = stub.ModelStreamInfer(iter(requests))
    server.wait_arrived(3)
    call.cancel()
    server.wait_cancelled(3)
    assert sorted(server.service.cancelled) == ["hold0", "hold1", "hold2"]
    requests.end()


def test_a_deadline_ends_the_stream(server: Server, stub: Any) -> None:
    requests = Requests(request(request_id="hold"))
    call = stub.ModelStreamInfer(iter(requests), timeout=0.2)
    with pytest.raises(grpc.RpcError):
        list(call)
    assert call.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    server.wait_cancelled()
    requests.end()


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
@pytest.mark.parametrize("elements", [1, 30_000, 1_000_000])
def test_many_messages_flow(stub: Any, elements: int, compression: grpc.Compression) -> None:
    count = max(8, 30_000 // elements) if elements > 1 else 3000
    each = request(values=[float(i % 10007) for i in range(elements)])
    got = list(stub.ModelStreamInfer(iter([each] * count), compression=compression))
    assert len(got) == count
    assert all(response.infer_response.raw_output_contents[0] == each.raw_input_contents[0] for response in got)


def test_reads_no_further_while_too_much_is_under_way() -> None:
    options = GrpcOptions(max_stream_inflight_count=50, http2=Http2Limits(initial_window_bytes=65_535))
    with serving(options) as server, grpc.insecure_channel(server.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        sent = [request(values=[0.0] * 250, request_id=f"hold{i}") for i in range(500)]
        call = stub.ModelStreamInfer(iter(sent))
        server.wait_arrived(50)
        for i in range(500):
            if i >= 50:
                server.service.arrived.acquire(timeout=0.01)
            while f"hold{i}" not in server.service.held:
                assert server.service.arrived.acquire(timeout=10)
            # A window of 65,535 bytes holds 62 of these beyond what is under way.
            assert len(server.service.held) <= 50 + 63
            server.release(f"hold{i}")
        assert len(list(call)) == 500


@pytest.mark.parametrize(
    ("options", "elements"),
    [(GrpcOptions(max_stream_inflight_count=50), 250), (GrpcOptions(max_stream_inflight_bytes=200_000), 4000)],
    ids=["count", "bytes"],
)
def test_reads_no_further_while_too_much_waits_for_the_answer_to_an_earlier_request(
    options: GrpcOptions, elements: int
) -> None:
    async def run() -> None:
        wire = Wire(replace(options, http2=Http2Limits(initial_window_bytes=65_535)))
        await wire.send(wire.headers(1, STREAM), data(1, prefixed(request(request_id="hold").SerializeToString())))
        stream, sent = wire.connection.streams[1], 0
        each = prefixed(request(values=[0.0] * elements).SerializeToString())
        while stream.credit_bytes >= len(each) and sent < 1_000_000:
            await wire.send(data(1, each))
            sent += len(each)
        assert sent < 200_000 + 65_535 + 16_384
        wire.service.held["hold"]()
        await wire.send(frames.window_update(0, 1 << 20), frames.window_update(1, 1 << 20))
        assert stream.credit_bytes >= 65_535 // 2
        while wire.connection.streams[1].queued_bytes:
            await wire.send()
        await wire.send(data(1, b"", end=True))
        assert not wire.connection.streams

    asyncio.run(run())


def small_messages(names: Sequence[str], model: str = "identity") -> bytes:
    return b"".join(prefixed(request(model, request_id=each).SerializeToString()) for each in names)


def answered_ids(answer: bytes) -> list[str]:
    found = []
    while answer:
        size = int.from_bytes(answer[1:5], "big")
        found.append(pb.ModelStreamInferResponse.FromString(answer[5 : 5 + size]).infer_response.id)
        answer = answer[5 + size :]
    return found


@pytest.mark.parametrize("model", ["identity", "decoupled"])
def test_small_messages_beyond_what_may_be_under_way_wait_and_are_answered_in_order(model: str) -> None:
    async def run() -> None:
        wire = Wire(GrpcOptions(max_stream_inflight_count=10))
        names = [f"hold{number}" for number in range(100)]
        sent, got = small_messages(names, model), b""
        await wire.send(wire.headers(1, STREAM), *(data(1, sent[at : at + 1000]) for at in range(0, len(sent), 1000)))
        answer = await wire.send(data(1, b"", end=True))
        for number, name in enumerate(names):
            assert list(wire.service.held) == names[number : number + 10]
            wire.service.held.pop(name)()
            answer = await wire.send()
            got += bodies(answer)[1]
        assert answered_ids(got) == names
        assert answer[-1].flags & frames.END_STREAM and not wire.connection.streams

    asyncio.run(run())


@on_loop
async def test_a_message_that_waits_goes_on_when_any_of_a_decoupled_model_is_answered() -> None:
    wire = Wire(GrpcOptions(max_stream_inflight_count=3))
    await wire.send(wire.headers(1, STREAM), data(1, small_messages(["hold0", "hold1", "hold2", "hold3"], "decoupled")))
    assert list(wire.service.held) == ["hold0", "hold1", "hold2"]
    wire.service.held.pop("hold1")()
    await wire.send()
    assert list(wire.service.held) == ["hold0", "hold2", "hold3"]


@on_loop
async def test_errors_that_wait_for_the_answer_to_an_earlier_request_count_as_under_way() -> None:
    wire = Wire(GrpcOptions(max_stream_inflight_count=5))
    await wire.send(wire.headers(1, STREAM), data(1, small_messages(["hold", *["fail"] * 60])))
    assert len(wire.service.requests) == 6
    wire.service.held.pop("hold")()
    await wire.send()
    assert len(wire.service.requests) == 61


@pytest.mark.parametrize("by", ["the client", "its deadline", "the connection"])
def test_a_stream_that_ends_drops_the_messages_that_wait(by: str) -> None:
    async def run() -> None:
        wire = Wire(GrpcOptions(max_stream_inflight_count=3))
        head = wire.headers(1, STREAM, grpc_timeout="20m" if by == "its deadline" else "1M")
        await wire.send(head, data(1, small_messages([f"hold{number}" for number in range(9)])))
        if by == "the client":
            await wire.send(frames.rst_stream(1, frames.CANCEL))
        elif by == "the connection":
            wire.connection.connection_lost(None)
        else:
            while wire.connection.streams:
                await wire.send()
        await wire.send()
        assert sorted(wire.service.cancelled) == ["hold0", "hold1", "hold2"]
        assert len(wire.service.requests) == 3

    asyncio.run(run())


@on_loop
async def test_messages_that_wait_are_answered_before_a_connection_that_is_to_end_ends() -> None:
    wire = Wire(GrpcOptions(max_stream_inflight_count=2))
    names = [f"hold{number}" for number in range(5)]
    await wire.send(wire.headers(1, STREAM), data(1, small_messages(names), end=True))
    wire.connection.shut()
    await wire.send(frames.frame(frames.PING, frames.ACK, 0, b"goodbye!"))
    got = []
    for name in names:
        wire.service.held.pop(name)()
        got += await wire.send()
    assert wire.status(got)["grpc-status"] == "0"


def closing(server: Server, timeout_s: float = 20.0) -> Future[None]:
    return asyncio.run_coroutine_threadsafe(server.front.close(timeout_s), server.front.loop)


def test_a_stream_without_a_request_ends_when_the_server_stops() -> None:
    """As a client has one that is done, or has not begun: it would hold the server up for all the time that it has."""
    with serving() as server, grpc.insecure_channel(server.url) as channel:
        requests = Requests(request(request_id="1"))
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(requests))
        assert next(call).infer_response.id == "1"
        closing(server).result(5)
        with pytest.raises(grpc.RpcError) as ended:
            next(call)
        assert (ended.value.code(), ended.value.details()) == (grpc.StatusCode.UNAVAILABLE, "server is shutting down")
        requests.end()


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_stream_takes_nothing_more_and_is_answered_when_the_server_stops(compression: Any) -> None:
    with (
        serving(GrpcOptions(infer_response_compression_level="high")) as server,
        grpc.insecure_channel(server.url, compression=compression) as channel,
    ):
        requests = Requests(request(request_id="hold", values=[0.0] * 100_000))
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(requests), timeout=10)
        server.wait_arrived()
        closed = closing(server)
        (stream,) = [each for connection in server.front.connections for each in connection.streams.values()]
        wait_until(lambda: stream.full, "the stream takes nothing more")
        requests.put(request(request_id="late"))
        wait_until(lambda: stream._unread, "more has come")
        server.release("hold")
        assert next(call).infer_response.id == "hold"
        with pytest.raises(grpc.RpcError) as ended:
            next(call)
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
        closed.result(5)
        requests.end()
        assert [each.id for each in server.service.requests] == ["hold"]


@on_loop
async def test_what_waits_for_room_has_no_time_to_arrive() -> None:
    wire = Wire(GrpcOptions(max_stream_inflight_count=1))
    sent = small_messages(["hold0", "hold1"])
    await wire.send(wire.headers(1, STREAM), data(1, sent[:-5]))
    wire.connection.sweep(wire.front.loop.time() + 100)
    assert wire.connection.streams
    wire.service.held.pop("hold0")()
    await wire.send()
    wire.connection.sweep(wire.front.loop.time() + 100)
    assert wire.status(await wire.send())["grpc-status"] == "4"


@pytest.mark.parametrize("over", [0, 1])
def test_more_responses_at_once_than_four_times_what_may_wait_end_a_stream(over: int) -> None:
    size = 1_000_000
    options = GrpcOptions(max_stream_queued_bytes=5_000_000 if over else 8_000_000)
    with serving(options) as server, grpc.insecure_channel(server.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        requests = Requests(request("decoupled", [0.0] * (size // 4), request_id="many:30"))
        call = stub.ModelStreamInfer(iter(requests))
        requests.end()
        if over:
            with pytest.raises(grpc.RpcError):
                list(call)
            assert call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert call.details() == "the client reads its responses more slowly than they come"
        else:
            assert len(list(call)) == 30


@pytest.mark.parametrize("level", ["none", "low"])
def test_a_response_of_any_size_reaches_a_client_that_reads(level: Any) -> None:
    options = GrpcOptions(max_stream_queued_bytes=1000, infer_response_compression_level=level)
    with serving(options) as server, grpc.insecure_channel(server.url, UNBOUNDED) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        values = np.random.default_rng(0).random(2_000_000, np.float32)
        (answer,) = stub.ModelStreamInfer(iter([request(values=values)]))  # type: ignore[arg-type]
        assert answer.infer_response.raw_output_contents[0] == values.tobytes()


@pytest.mark.parametrize("idle_s", [0.0, 5.0])
def test_a_client_that_stops_reading_loses_its_stream_with_the_next_response(idle_s: float) -> None:
    async def run() -> None:
        wire = Wire(GrpcOptions(max_stream_queued_bytes=10_000))
        await wire.send(frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 0}))
        sent = request("decoupled", [0.0] * 5000, request_id="many:1").SerializeToString()
        await wire.send(wire.headers(1, STREAM), data(1, prefixed(sent)[:16_384]), data(1, prefixed(sent)[16_384:]))
        assert wire.connection.streams[1].queued_bytes > 20_000
        wire.connection.streams[1].progress_s -= idle_s
        got = await wire.send(data(1, prefixed(request(request_id="next").SerializeToString())))
        if idle_s:
            assert wire.status(got)["grpc-status"] == "8"
        assert (1 in wire.connection.streams) is not bool(idle_s)

    asyncio.run(run())


def test_compressed_responses() -> None:
    options = GrpcOptions(infer_response_compression_level="low")
    with serving(options) as server, grpc.insecure_channel(server.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        counts = (1000, 100_000, 10, 50_000, 1)
        answers = list(stub.ModelStreamInfer(iter([request(values=[0.0] * count) for count in counts])))
        outputs = [answer.infer_response.raw_output_contents[0] for answer in answers]
        assert outputs == [bytes(4 * count) for count in counts]


def test_answers_that_waited_for_an_earlier_one_and_are_too_many_end_the_stream_alone() -> None:
    async def run() -> None:
        wire = Wire(GrpcOptions(max_stream_queued_bytes=20_000))
        closed = frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 0})
        sent = [request(values=[0.0] * 10_000, request_id=each).SerializeToString() for each in ("hold", *"abcd")]
        body = b"".join(prefixed(each) for each in sent)
        pieces = [data(1, body[at : at + 16_384]) for at in range(0, len(body), 16_384)]
        await wire.send(closed, wire.headers(1, STREAM), *pieces)
        wire.service.held["hold"]()
        assert wire.status(await wire.send())["grpc-status"] == "8"
        assert not wire.connection.streams

    asyncio.run(run())


def test_an_error_whose_answers_are_never_taken_is_given_up_though_others_are() -> None:
    async def run() -> None:
        wire = Wire()
        await wire.send(frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 10}))
        answered, held = (prefixed(request(request_id=each).SerializeToString()) for each in ("now", "hold"))
        await wire.send(wire.headers(1, STREAM, grpc_timeout="1m"), data(1, answered + held))
        await asyncio.sleep(0.01)
        assert wire.service.cancelled == ["hold"]
        await wire.send(wire.headers(3, STREAM), data(3, answered * 10))
        waits = wire.connection.streams[1].queued_bytes
        assert waits
        sender, now_s = wire.connection.sender, wire.front.loop.time()
        await wire.send(frames.window_update(3, 1))
        sender.progress_s = wire.connection.streams[3].progress_s = now_s + 100
        both = sender.queued_bytes
        wire.connection.sweep(now_s + 121)
        assert list(wire.connection.streams) == [3]
        assert sender.queued_bytes == both - waits

    asyncio.run(run())


@on_loop
async def test_a_large_message_of_a_stream_waits_for_its_memory_too() -> None:
    wire = Wire(GrpcOptions(http2=Http2Limits(max_buffered_bytes=1 << 20, initial_window_bytes=65_535)))
    big = prefixed(bytes(900_000))
    await wire.send(wire.headers(1), data(1, big[:1000]), wire.headers(3, STREAM))
    assert await wire.send(*(data(3, big[at : at + 16_000]) for at in range(0, 64_000, 16_000))) == []
    got = await wire.send(frames.rst_stream(1, frames.CANCEL))
    assert [(each.kind, each.stream_id) for each in got] == [(frames.WINDOW_UPDATE, 3)]
    got = await wire.send(*(data(3, big[at : at + 16_000]) for at in range(64_000, len(big), 16_000)))
    assert bodies(got)[3], "an error that says that it is no request"
