"""Responses of a stream that take long to encode: they are encoded beside the loop, and come in their order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from deployments.core.counts import CLIENT, Label
from deployments.lane.wire import GRPC, GRPC_STREAM, HTTP
from deployments.replica.served_model import LocalTarget
from protocol.errors import Internal, Unavailable
from protocol.infer import InferRequest, InferResponse
from tests.deployments.lane.harness import EchoModel, Lanes, Sink, on_loop
from tests.deployments.lane.test_slow_codec import GatedCodec, gated

NEAR = pytest.mark.parametrize("near", [False, True], ids=["lane", "own process"])


class Stream:
    """One request whose model says more and more; each response takes as long to encode as the test likes."""

    def __init__(self, lanes: Lanes, near: bool, wire: int) -> None:
        self.lanes = lanes
        self.model: EchoModel = lanes.replicas[0].model
        self.model.hold = True
        self.codec: GatedCodec = gated(self.model)
        self.sink = Sink()
        target: Any = lanes.fleet.target("echo")
        if near:
            self.model.model_name, self.model.version = "echo", 1  # type: ignore[attr-defined]
            target = LocalTarget(self.model, lanes.meters.of("echo", 1))  # type: ignore[arg-type]
        self.target, self.token = target, target.submit((b"long",), None, self.sink, wire)
        self.request: InferRequest

    def ask(self, body: bytes, wire: int) -> Sink:
        """Make one more request."""
        sink = Sink()
        self.target.submit((body,), None, sink, wire)
        return sink

    def say(self, *, final: bool = False) -> None:
        self.request.reply(self.request, InferResponse({}, final=final))

    async def over(self) -> None:
        """Wait until nothing is encoded, nor under way."""
        self.codec.gate.set()
        await self.lanes.until(lambda: not self.model.slow.encoding_count)
        await self.lanes.until(lambda: self.lanes.replicas[0].server.inflight_count == 0)
        await self.lanes.until(lambda: not any(map(self._under_way_count, (HTTP, GRPC, GRPC_STREAM))))

    def _under_way_count(self, wire: int) -> int:
        self.lanes.meters.sample()
        return self.lanes.counted.row(Label(CLIENT, "echo", 1, wire)).values()[0]


@asynccontextmanager
async def stream(near: bool, wire: int = HTTP) -> AsyncIterator[Stream]:
    async with Lanes() as lanes:
        given = Stream(lanes, near, wire)
        await lanes.until(lambda: bool(given.model.held))
        (given.request,) = given.model.held
        try:
            yield given
            await given.over()
        finally:
            given.codec.gate.set()


@NEAR
@on_loop
async def test_all_of_them_are_encoded_beside_the_loop(near: bool) -> None:
    async with stream(near) as given:
        for number in range(4):
            given.say(final=number == 3)
        assert given.model.slow.encoding_count == 4
        given.codec.gate.set()
        await asyncio.wait_for(given.sink.done.wait(), 5)
        assert given.sink.responses == [b"long"] * 4 and given.sink.error is None
        assert given.codec.threads == {"slow_0"}


@NEAR
@on_loop
async def test_one_that_is_quick_to_encode_comes_after_what_came_before_it(near: bool) -> None:
    async with stream(near) as given:
        given.codec.takes_long = lambda request, response: not response.final  # type: ignore[method-assign]
        given.say()
        given.say(final=True)
        assert given.model.slow.encoding_count == 2
        given.codec.gate.set()
        await asyncio.wait_for(given.sink.done.wait(), 5)
        assert given.sink.responses == [b"long"] * 2


@NEAR
@pytest.mark.parametrize(
    ("wire", "other"),
    [(HTTP, HTTP), (HTTP, GRPC_STREAM), (GRPC_STREAM, HTTP), (GRPC_STREAM, GRPC)],
    ids=["HTTP, HTTP", "HTTP, gRPC stream", "gRPC stream, HTTP", "gRPC stream, gRPC"],
)
@on_loop
async def test_a_response_to_another_client_passes_them(near: bool, wire: int, other: int) -> None:
    async with stream(near, wire) as given:
        given.say()
        given.model.hold, given.model.held = False, []
        quick = given.ask(b"quick", other)
        await asyncio.wait_for(quick.done.wait(), 5)
        assert quick.responses == [b"quick"] and not given.sink.responses
        given.say(final=True)


@NEAR
@pytest.mark.parametrize("ends", ["with a response", "with an error"])
@on_loop
async def test_a_response_on_a_grpc_stream_does_not_pass_what_ended_before_it(near: bool, ends: str) -> None:
    """A client may have both requests on one stream, and take its answers as they come."""
    async with stream(near, GRPC_STREAM) as given:
        given.say(final="response" in ends)
        if "error" in ends:
            given.request.reply(given.request, Unavailable("no more"))
        given.model.hold, given.model.held = False, []
        quick = given.ask(b"quick", GRPC_STREAM)
        await given.lanes.until(lambda: given.model.slow.encoding_count == (2 if "response" in ends else 3))
        quick.on_response = lambda *_: (given.sink.responses.append(b"quick"), quick.done.set())  # type: ignore[method-assign]
        given.codec.gate.set()
        await asyncio.wait_for(quick.done.wait(), 5)
        assert given.sink.done.is_set()
        assert given.sink.responses == [b"long", b"quick"]


@NEAR
@on_loop
async def test_an_error_comes_after_what_came_before_it(near: bool) -> None:
    async with stream(near) as given:
        given.say()
        given.say()
        given.request.reply(given.request, Unavailable("no more"))
        given.codec.gate.set()
        await asyncio.wait_for(given.sink.done.wait(), 5)
        assert given.sink.responses == [b"long"] * 2
        assert str(given.sink.error) == "no more"


@NEAR
@pytest.mark.parametrize("ended", [False, True])
@on_loop
async def test_those_of_a_request_that_is_given_up_are_let_go_of(near: bool, ended: bool) -> None:
    async with stream(near) as given:
        for number in range(4):
            given.say(final=ended and number == 3)
        given.target.cancel(given.token)
        await given.lanes.until(lambda: not given.model.slow.encoding_count)
        assert ended or given.model.cancelled == [given.request]
        given.say()
        await given.over()
        assert not given.sink.responses and given.sink.error is None


@NEAR
@on_loop
async def test_one_that_cannot_be_encoded_ends_the_stream(near: bool) -> None:
    async with stream(near) as given:
        encode, count = given.codec.encode, 0

        def fails_later(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count == 2:
                raise ValueError("cannot be written")
            return encode(*arguments)

        given.codec.encode = fails_later  # type: ignore[method-assign]
        given.say()
        given.say()
        given.say()
        given.codec.gate.set()
        await asyncio.wait_for(given.sink.done.wait(), 5)
        assert given.sink.responses == [b"long"]
        assert type(given.sink.error) is Internal
        assert given.model.cancelled == [given.request]
