"""Calls that are given up while their answer is heard still."""

import asyncio
from typing import Any

import pytest

from protocol.errors import Cancelled, Unavailable
from protocol.infer import InferResponse
from tests.deployments.lane.harness import Lanes, Sink, on_loop
from tests.deployments.lane.test_slow_codec import LARGE, gated


def tell(lanes: Lanes, token: Any) -> bool:
    target = lanes.fleet.target("echo")
    assert target is not None
    return target.tell_cancelled(token)


async def ended(sink: Sink) -> Sink:
    await asyncio.wait_for(sink.done.wait(), 5)
    return sink


@on_loop
async def test_the_model_hears_of_it_and_the_sink_what_the_model_sends_then() -> None:
    async with Lanes() as lanes:
        model = lanes.replicas[0].model
        model.hold = True
        sink, token = lanes.send()
        await lanes.until(lambda: bool(model.held))
        assert tell(lanes, token)
        await lanes.until(lambda: bool(model.cancelled))
        assert not sink.done.is_set()
        model.stream(3)
        assert (await ended(sink)).responses == [b"hello"] * 3
        assert not tell(lanes, token)
        assert lanes.replicas[0].server.inflight_count == 0


@on_loop
async def test_one_that_is_being_decoded_ends_as_cancelled_and_reaches_no_model() -> None:
    async with Lanes() as lanes:
        model = lanes.replicas[0].model
        codec = gated(model)
        sink, token = lanes.send(LARGE)
        await lanes.until(lambda: model.slow.decoding_count == 1)
        assert tell(lanes, token)
        assert type((await ended(sink)).error) is Cancelled
        codec.gate.set()
        assert (await lanes.ask(b"small")).responses == [b"small"]
        assert lanes.replicas[0].server.inflight_count == 0


@on_loop
async def test_one_whose_last_response_is_being_encoded_gets_it() -> None:
    async with Lanes() as lanes:
        model = lanes.replicas[0].model
        codec = gated(model)
        sink, token = lanes.send(b"long")
        await lanes.until(lambda: model.slow.encoding_count == 1)
        assert tell(lanes, token)
        assert (await lanes.ask(b"bad")).error is not None  # which comes behind it
        codec.gate.set()
        assert (await ended(sink)).responses == [b"long"]


@pytest.mark.parametrize("answered", [False, True])
@on_loop
async def test_one_whose_replica_dies_is_sent_to_no_other(answered: bool) -> None:
    async with Lanes(2) as lanes:
        for replica in lanes.replicas:
            replica.model.hold = True
        sink, token = lanes.send()
        await lanes.until(lambda: any(replica.model.held for replica in lanes.replicas))
        busy, other = sorted(lanes.replicas, key=lambda replica: not replica.model.held)
        if answered:
            request = busy.model.held[0]
            request.reply(request, InferResponse({}, final=False))
            await lanes.until(lambda: bool(sink.responses))
        assert tell(lanes, token)
        await lanes.until(lambda: bool(busy.model.cancelled))
        busy.die()
        assert type((await ended(sink)).error) is Unavailable
        assert not other.model.held


@on_loop
async def test_a_lone_one_that_waits_for_its_turn_ends_as_cancelled() -> None:
    async with Lanes() as lanes:
        model = lanes.replicas[0].model
        model.hold = True
        target = lanes.fleet.target("echo")
        assert target is not None
        calls = [lanes.send(), lanes.send()]
        await lanes.until(lambda: len(model.held) == 2)
        for _, token in calls:
            target.cancel(token)
            assert target.send_alone(token) is None
        sink, token = calls[1]
        assert tell(lanes, token)
        assert type((await ended(sink)).error) is Cancelled
        await lanes.until(lambda: len(model.held) == 3)
        (connection,) = lanes.replicas[0].server.connections
        assert not connection._lone_calls


@on_loop
async def test_one_on_no_lane_cannot_be_heard() -> None:
    async with Lanes() as lanes:
        lanes.replicas[0].model.hold = True
        sink, token = lanes.send()
        target = lanes.fleet.target("echo")
        assert target is not None
        target.cancel(token)
        assert not tell(lanes, token) and not tell(lanes, None)
        assert not sink.done.is_set()
