"""A model's queue may be full in one replica and not in another."""

import asyncio
from typing import Any

from deployments.core.counts import MODEL, Label
from deployments.lane.client import MAX_INFLIGHT_BYTES, SMALL_CALL_BYTES
from protocol.errors import QueueFull
from protocol.infer import InferRequest
from tests.deployments.lane.harness import Lanes


def fill(replica: Any) -> list[InferRequest]:
    """Let a replica's model refuse whatever comes, as one whose queue is full; returns what it has refused."""
    refused: list[InferRequest] = []

    def submit(request: InferRequest) -> None:
        refused.append(request)
        request.reply(request, QueueFull("[request id: x] Exceeds maximum queue size"))

    replica.model.submit_request = submit
    return refused


def test_a_request_that_finds_a_full_queue_goes_to_another_replica() -> None:
    async def run() -> None:
        async with Lanes(2) as lanes:
            full = fill(lanes.replicas[0])
            for number in range(20):
                sink = await lanes.ask(b"%d" % number)
                assert sink.responses == [b"%d" % number] and sink.error is None
            assert full  # some had been sent there first
            target: Any = lanes.fleet.target("echo")
            assert all(lane.inflight_bytes == 0 and not lane.calls for lane in target.choice.lanes)

    asyncio.run(run())


def test_a_request_is_refused_when_every_queue_is_full() -> None:
    async def run() -> None:
        async with Lanes(2) as lanes:
            full = [fill(replica) for replica in lanes.replicas]
            sink = await lanes.ask()
            assert str(sink.error) == "[request id: x] Exceeds maximum queue size"
            assert [len(each) for each in full] == [1, 1]
            counts = lanes.counted.rows[Label(MODEL, "echo", 1)]
            assert (counts.rejected_count, counts.other_count) == (1, 0)  # type: ignore[attr-defined]

    asyncio.run(run())


def test_a_large_request_goes_to_no_other_replica_that_has_as_many_bytes_as_it_may() -> None:
    async def run() -> None:
        async with Lanes(2) as lanes:
            full = fill(lanes.replicas[0])
            target: Any = lanes.fleet.target("echo")
            for lane in target.choice.lanes:
                if lane.replica_id != lanes.replicas[0].address.replica_id:
                    lane.inflight_bytes = MAX_INFLIGHT_BYTES
            answers = [await lanes.ask(b"L" * (SMALL_CALL_BYTES + 1)) for _ in range(4)]
            assert full and all(type(sink.error) is QueueFull for sink in answers)
            assert (await lanes.ask(b"small")).responses == [b"small"]

    asyncio.run(run())


def test_a_request_is_refused_after_three_replicas() -> None:
    async def run() -> None:
        async with Lanes(5) as lanes:
            full = [fill(replica) for replica in lanes.replicas]
            assert str((await lanes.ask()).error) == "[request id: x] Exceeds maximum queue size"
            assert sorted(map(len, full)) == [0, 0, 1, 1, 1]

    asyncio.run(run())


def test_a_request_within_a_sequence_is_refused_by_the_replica_that_holds_it() -> None:
    async def run() -> None:
        async with Lanes(2) as lanes:
            full = [fill(replica) for replica in lanes.replicas]
            for replica in lanes.replicas:
                replica.model.sequence_idle_us = 1_000_000
                replica.server.set_model("echo", 1, replica.model)
            target: Any = lanes.fleet.target("echo")
            await lanes.until(lambda: target._sequences is not None)
            sink = await lanes.ask(b'{"inputs":[],"parameters":{"sequence_id":7,"sequence_start":true}}')
            assert str(sink.error) == "[request id: x] Exceeds maximum queue size"
            assert sum(map(len, full)) == 1

    asyncio.run(run())
