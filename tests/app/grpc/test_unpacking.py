"""What comes behind a compressed message while a thread unpacks it."""

import asyncio
import gzip
import random
from urllib.parse import unquote

from app.grpc.options import GrpcOptions
from app.http2 import frames
from deployments.lane.work_queue import WorkQueue
from tests.app.grpc.server import request
from tests.app.grpc.test_wire import INFER, STREAM, Wire, on_loop, prefixed
from tests.app.http2 import wire as http2_wire
from tests.app.http2.wire import data
from tests.busy_queue import busy_queue

LARGE = prefixed(gzip.compress(request(values=random.Random(1).sample(range(1 << 22), 10_000)).SerializeToString()), 1)
SMALL = prefixed(request(values=[0.0] * 100, request_id="hold").SerializeToString())


async def opened(queue: WorkQueue, options: GrpcOptions | None = None) -> Wire:
    """Return a connection with a stream whose first message waits for a thread."""
    wire = Wire(options, queue)
    await wire.send(wire.headers(1, STREAM, grpc_encoding="gzip"), data(1, LARGE))
    assert not wire.service.requests
    return wire


@on_loop
async def test_what_waits_behind_it_is_bounded_counted_and_taken_in_order() -> None:
    with busy_queue() as (queue, go_on):
        wire = await opened(queue, GrpcOptions(max_stream_inflight_count=1 << 20))
        stream, sent = wire.connection.streams[1], 0
        piece = SMALL * (16_000 // len(SMALL))
        while stream.credit_bytes >= len(piece) and sent < 8 << 20:
            await wire.send(data(1, piece))
            sent += len(piece)
        assert sent < 1 << 20, "no more than the window of the stream"
        assert wire.front.bodies.used_bytes > sent * 0.9
        wire.connection.sweep(wire.front.loop.time() + 1000)
        assert wire.connection.streams, "there is no time in which a thread has to be done"
        requests = wire.service.requests
        go_on.set()
        while not requests:
            await asyncio.sleep(0.001)
        assert len(requests[0].raw_input_contents[0]) == 40_000
        known = len(requests)
        while len(requests) < 1 + sent // len(SMALL):
            await asyncio.sleep(0)
            assert len(requests) - known <= 200, "more than a turn's work"
            known = len(requests)
        wire.connection.sweep(wire.front.loop.time())
        assert wire.front.bodies.used_bytes == 0


@on_loop
async def test_what_waits_behind_it_is_taken_as_those_before_are_answered() -> None:
    with busy_queue() as (queue, go_on):
        wire = await opened(queue, GrpcOptions(max_stream_inflight_count=5))
        names = [f"hold{number}" for number in range(12)]
        behind = b"".join(prefixed(request(request_id=each).SerializeToString()) for each in names)
        await wire.send(data(1, behind), data(1, b"", end=True))
        go_on.set()
        while len(wire.service.held) < 5:
            await wire.send()
        for number, name in enumerate(names):
            await wire.send()
            assert list(wire.service.held) == names[number : number + 5]
            wire.service.held.pop(name)()
        assert wire.status(await wire.send())["grpc-status"] == "0"


@on_loop
async def test_a_client_whose_messages_are_too_many_is_refused() -> None:
    with busy_queue() as (queue, _):
        wire = await opened(queue, GrpcOptions(max_total_message_bytes=300_000, max_message_bytes=300_000))
        status: dict[str, str] = {}
        for _ in range(20):
            status |= wire.status(await wire.send(data(1, SMALL * (16_000 // len(SMALL)))))
        assert status["grpc-status"] == "14"
        assert "too many bytes of request bodies are under way" in unquote(status["grpc-message"])
        wire.connection.sweep(wire.front.loop.time())
        assert wire.front.bodies.used_bytes == 0


@on_loop
async def test_a_message_behind_it_must_arrive_in_time() -> None:
    with busy_queue() as (queue, go_on):
        wire = await opened(queue)
        await wire.send(data(1, SMALL[:-1]))
        now_s = wire.front.loop.time()
        wire.connection.sweep(now_s + 50)
        assert wire.status(await wire.send()) == {}
        go_on.set()
        while not wire.service.requests:
            await asyncio.sleep(0.001)
        wire.connection.sweep(now_s + 70)
        assert wire.status(await wire.send())["grpc-status"] == "4"


@on_loop
async def test_a_call_that_ends_behind_it_is_answered() -> None:
    with busy_queue() as (queue, go_on):
        wire = Wire(packing=queue)
        await wire.send(wire.headers(1, grpc_encoding="gzip"), data(1, LARGE, end=True))
        go_on.set()
        answer: list[http2_wire.Frame] = []
        while not answer:
            answer = await wire.send()
        assert wire.status(answer)["grpc-status"] == "0"
        wire.connection.sweep(wire.front.loop.time())
        assert wire.front.bodies.used_bytes == 0


@on_loop
async def test_a_message_of_a_call_that_is_over_is_not_unpacked() -> None:
    with busy_queue() as (queue, _):
        wire = Wire(packing=queue)
        for stream_id in range(1, 21, 2):
            await wire.send(wire.headers(stream_id, grpc_encoding="gzip"), data(stream_id, LARGE, end=True))
        assert len(queue) == 10
        await wire.send(*(frames.rst_stream(stream_id, frames.CANCEL) for stream_id in range(1, 11, 2)))
        assert len(queue) == 5
        wire.connection.connection_lost(None)
        assert len(queue) == 0
        assert wire.front.bodies.used_bytes == 0


@on_loop
async def test_an_answer_of_a_call_that_is_over_is_not_packed() -> None:
    with busy_queue() as (queue, _):
        wire = Wire(GrpcOptions(infer_response_compression_level="low"), queue)
        asked = prefixed(request(values=[0.0] * 10_000).SerializeToString())
        for stream_id, path in ((1, INFER), (3, STREAM)):
            await wire.send(wire.headers(stream_id, path, grpc_accept_encoding="gzip"))
            await wire.send(*(data(stream_id, asked[at : at + 16_384]) for at in range(0, len(asked), 16_384)))
            await wire.send(data(stream_id, b"", end=True))
        assert len(queue) == 2
        await wire.send(frames.rst_stream(1, frames.CANCEL), frames.rst_stream(3, frames.CANCEL))
        assert len(queue) == 0
