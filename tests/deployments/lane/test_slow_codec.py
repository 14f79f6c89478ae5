"""What takes long to read or to write is read and written beside the loop, in the order in which it came."""

import asyncio
import threading
from typing import Any

from deployments.lane.slow_codec import SlowCodec
from deployments.lane.wire import LONG_BYTES
from protocol.infer import InferRequest, InferResponse
from tests.deployments.fakes import slow_queue
from tests.deployments.lane.harness import EchoCodec, EchoModel, Lanes
from tests.deployments.lane.test_lane import on_loop

LARGE = b"L" * (LONG_BYTES + 1)


class GatedCodec(EchoCodec):
    """Takes as long as the test likes for what is large."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.threads: set[str] = set()

    def reads_long(self, body: Any) -> bool:
        return bytes(body[:1]) == b"L"

    def takes_long(self, request: InferRequest, response: InferResponse) -> bool:
        assert request.parameters is not None
        return bytes(request.parameters["body"][:4]) == b"long"  # type: ignore[index]

    def decode(self, body: Any, json_length: int | None, reply: Any, context: Any = None) -> InferRequest:
        if self.reads_long(body):
            self.threads.add(threading.current_thread().name)
            assert self.gate.wait(30)
        return super().decode(body, json_length, reply, context)

    def encode(self, request: InferRequest, response: InferResponse) -> tuple[int | None, list[Any]]:
        if self.takes_long(request, response):
            self.threads.add(threading.current_thread().name)
            assert self.gate.wait(30)
        return super().encode(request, response)


def gated(model: EchoModel) -> GatedCodec:
    codec = GatedCodec()
    model.codecs = (codec, codec, codec)
    model.slow = SlowCodec(model.codecs, slow_queue())
    return codec


@on_loop
async def test_a_large_request_is_decoded_beside_the_loop_and_small_ones_pass_it() -> None:
    async with Lanes() as lanes:
        codec = gated(lanes.replicas[0].model)
        large, _ = lanes.send(LARGE)
        second, _ = lanes.send(LARGE + b"2")
        assert (await lanes.ask(b"small")).responses == [b"small"]
        assert not large.done.is_set()
        assert lanes.replicas[0].server.inflight_count == 2
        codec.gate.set()
        for sink, body in ((large, LARGE), (second, LARGE + b"2")):
            await asyncio.wait_for(sink.done.wait(), 5)
            assert sink.responses == [body]
        assert codec.threads == {"slow_0"}


@on_loop
async def test_a_large_request_that_is_wrong_is_answered_with_its_error() -> None:
    async with Lanes() as lanes:
        codec = gated(lanes.replicas[0].model)
        codec.reads_long = lambda body: True  # type: ignore[method-assign]
        codec.gate.set()
        sink, _ = lanes.send(b"bad" + LARGE)
        await asyncio.wait_for(sink.done.wait(), 5)
        assert sink.error is not None
        assert (sink.error.message, sink.error.refused) == ("a bad request", True)
        assert lanes.replicas[0].server.inflight_count == 0


@on_loop
async def test_requests_of_sequences_do_not_pass_one_that_is_being_decoded() -> None:
    async with Lanes() as lanes:
        model = lanes.replicas[0].model
        codec = gated(model)
        model.sequence_idle_us = 1_000_000
        model.hold = True
        lanes.send(LARGE)
        lanes.send(b"next")
        await lanes.until(lambda: model.slow.decoding_count == 2)
        codec.gate.set()
        await lanes.until(lambda: len(model.held) == 2)
        assert [bytes(request.parameters["body"])[:4] for request in model.held] == [b"LLLL", b"next"]  # type: ignore[index,arg-type]
        model.release()


@on_loop
async def test_a_request_that_is_given_up_while_it_is_decoded_never_reaches_the_model() -> None:
    async with Lanes() as lanes:
        model = lanes.replicas[0].model
        codec = gated(model)
        _, call = lanes.send(LARGE)
        await lanes.until(lambda: model.slow.decoding_count == 1)
        target = lanes.fleet.target("echo")
        assert target is not None
        target.cancel(call)
        await lanes.until(lambda: lanes.replicas[0].server.inflight_count == 0)
        codec.gate.set()
        await lanes.until(lambda: model.slow.decoding_count == 0)
        assert (await lanes.ask(b"small")).responses == [b"small"]
        assert not model.cancelled


@on_loop
async def test_what_is_given_up_while_it_waits_for_its_turn_is_let_go_of() -> None:
    async with Lanes() as lanes:
        model = lanes.replicas[0].model
        codec = gated(model)
        target = lanes.fleet.target("echo")
        waiting = model.slow._queue
        assert target is not None
        assert waiting is not None
        for body in (LARGE, b"long"):
            calls = [lanes.send(body)[1] for _ in range(10)]
            await lanes.until(lambda: len(waiting) == 9)
            for call in calls:
                target.cancel(call)
            await lanes.until(lambda: lanes.replicas[0].server.inflight_count == 0)
            assert len(waiting) == model.slow.decoding_count == model.slow.encoding_count == 0
            codec.gate.set()
            await lanes.until(lambda: waiting._free_count == 1)
            codec.gate.clear()


@on_loop
async def test_another_replica_answers_a_large_request_over_which_one_dies() -> None:
    async with Lanes(2) as lanes:
        first, second = lanes.replicas
        lanes.publish(first)
        await lanes.until(lambda: lanes.lanes_open == 1)
        codec = gated(first.model)
        sink, _ = lanes.send(LARGE)
        await lanes.until(lambda: first.model.slow.decoding_count == 1)
        first.die()
        codec.gate.set()
        lanes.publish(second)
        await asyncio.wait_for(sink.done.wait(), 5)
        assert (sink.error, sink.responses) == (None, [LARGE])


@on_loop
async def test_a_model_that_closes_takes_what_is_being_decoded_first() -> None:
    codec = GatedCodec()
    slow = SlowCodec((codec,), slow_queue())
    decoded: list[Any] = []
    slow.decode(0, LARGE, None, None, None, decoded.append)  # type: ignore[arg-type]
    waiting = asyncio.ensure_future(slow.all_decoded(30))
    assert not (await asyncio.wait([waiting], timeout=0.05))[0]
    codec.gate.set()
    await asyncio.wait_for(waiting, 5)
    assert len(decoded) == 1
