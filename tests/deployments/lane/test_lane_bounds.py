"""How much may be under way to a replica."""

import asyncio
from typing import Any

import pytest

from deployments.core.counts import MODEL, Label
from deployments.lane import client
from deployments.lane.client import MAX_INFLIGHT_BYTES, SMALL_CALL_BYTES
from protocol.errors import InvalidArgument, QueueFull
from tests.deployments.lane.harness import Lanes, on_loop

LARGE = bytes(SMALL_CALL_BYTES + 1)


@on_loop
async def test_requests_under_way_are_bounded() -> None:
    async with Lanes(max_inflight=2) as lanes:
        lanes.replicas[0].model.hold = True
        lanes.send()
        lanes.send()
        refused = await lanes.ask()
        assert type(refused.error) is QueueFull
        assert refused.error.message == "Exceeds maximum queue size"
        assert lanes.counted.rows[Label(MODEL, "echo", 1)].rejected_count == 1  # type: ignore[attr-defined]


@on_loop
async def test_bytes_under_way_are_bounded() -> None:
    async with Lanes() as lanes:
        target: Any = lanes.fleet.target("echo")
        (lane,) = target.choice.lanes
        lane.inflight_bytes = MAX_INFLIGHT_BYTES - len(LARGE)
        assert type((await lanes.ask(LARGE + b"1")).error) is QueueFull
        assert (await lanes.ask(LARGE)).responses == [LARGE]


@on_loop
async def test_small_requests_are_taken_beside_as_many_bytes_as_may_be_under_way() -> None:
    async with Lanes() as lanes:
        target: Any = lanes.fleet.target("echo")
        (lane,) = target.choice.lanes
        lane.inflight_bytes = MAX_INFLIGHT_BYTES
        assert (await lanes.ask(LARGE[1:])).responses == [LARGE[1:]]


@on_loop
async def test_a_request_larger_than_what_may_be_under_way_goes_beside_small_ones_only() -> None:
    async with Lanes() as lanes:
        model = lanes.replicas[0].model
        model.hold = True
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "MAX_INFLIGHT_BYTES", len(LARGE))
            patch.setattr(client, "_LITTLE_INFLIGHT_BYTES", len(LARGE) // 2)
            lanes.send(b"1")
            large, _ = lanes.send(LARGE * 2)
            assert type((await lanes.ask(LARGE)).error) is QueueFull
            await lanes.until(lambda: len(model.held) == 2)
            model.release()
            await asyncio.wait_for(large.done.wait(), 5)
            assert large.responses == [LARGE * 2]
            lanes.send(LARGE)
            assert type((await lanes.ask(LARGE * 2)).error) is QueueFull


@pytest.mark.parametrize("idle_us", [0, 1_000_000], ids=["alone", "of a sequence"])
@on_loop
async def test_a_request_larger_than_any_replica_takes_is_wrong(idle_us: int) -> None:
    body = b'{"parameters":{"sequence_id":7,"sequence_start":true}}'.ljust(len(LARGE))
    async with Lanes(max_inflight=1) as lanes:
        target: Any = lanes.fleet.target("echo")
        target.follow_sequences(idle_us)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "_MAX_CALL_BYTES", len(body))
            assert (await lanes.ask(body)).responses == [body]
            lanes.replicas[0].model.hold = True
            for _ in ("while nothing is under way", "while no other may be"):
                refused = (await lanes.ask(body + b" ")).error
                assert type(refused) is InvalidArgument
                assert refused.message == "request of 65538 bytes is larger than the 65537 that a replica takes"
                lanes.send(body)
