"""What is counted of the requests that an ingress sends over lanes."""

import asyncio
from typing import Any

from deployments.core.counts import CLIENT, CLIENT_ERROR, RETRY, Label, Totals
from deployments.core.request_meter import INFLIGHT, RequestMeters, give_up, succeed
from deployments.lane.wire import HTTP
from protocol.errors import QueueFull
from tests.deployments.lane.harness import Lanes


def counts(lanes: Lanes) -> dict[str, int]:
    """Return how many requests are under way, succeeded, failed and were given up."""
    lanes.meters.sample()
    values = lanes.counted.row(Label(CLIENT, "echo", 1, HTTP)).values()
    under_way, cancelled, failed, _, *buckets = values
    return {"under way": under_way, "succeeded": sum(buckets), "failed": failed, "cancelled": cancelled}


def test_each_request_is_counted_once_by_what_came_of_it() -> None:
    async def run() -> None:
        async with Lanes() as lanes:
            for body in (b"hello", b"hello", b"bad"):
                await lanes.ask(body)
            lanes.replicas[0].model.hold = True
            _, token = lanes.send()
            lanes.send()
            await lanes.until(lambda: len(lanes.replicas[0].model.held) == 2)
            target = lanes.fleet.target("echo")
            assert target is not None
            target.cancel(token)
            assert counts(lanes) == {"under way": 1, "succeeded": 2, "failed": 1, "cancelled": 1}
            assert lanes.counted.row(Label(CLIENT_ERROR, "echo", 1, 400)).values() == [1]

    asyncio.run(run())


def test_a_stream_is_counted_when_it_ends() -> None:
    async def run() -> None:
        async with Lanes() as lanes:
            model = lanes.replicas[0].model
            model.hold = True
            sink, _ = lanes.send()
            await lanes.until(lambda: bool(model.held))
            assert counts(lanes)["succeeded"] == 0
            model.stream(3)
            await asyncio.wait_for(sink.done.wait(), 5)
            assert (len(sink.responses), counts(lanes)["succeeded"]) == (3, 1)

    asyncio.run(run())


def test_a_request_that_another_replica_is_asked_again_for_is_one_request_and_one_retry() -> None:
    async def run() -> None:
        async with Lanes(2) as lanes:
            for replica in lanes.replicas:
                replica.model.hold = True
            sink, _ = lanes.send()
            await lanes.until(lambda: any(replica.model.held for replica in lanes.replicas))
            (asked,) = (replica for replica in lanes.replicas if replica.model.held)
            (other,) = (replica for replica in lanes.replicas if not replica.model.held)
            asked.die()
            await lanes.until(lambda: bool(other.model.held))
            other.model.release()
            await asyncio.wait_for(sink.done.wait(), 5)
            assert counts(lanes) == {"under way": 0, "succeeded": 1, "failed": 0, "cancelled": 0}
            assert lanes.counted.row(Label(RETRY, "echo", 1)).values() == [1]

    asyncio.run(run())


def test_what_no_replica_takes_is_counted_as_what_the_client_got() -> None:
    async def run() -> None:
        async with Lanes(max_inflight=1) as lanes:
            lanes.replicas[0].model.hold = True
            lanes.send()
            refused = await lanes.ask()
            assert refused.error is not None and refused.error.http_status == 503
            assert lanes.counted.row(Label(CLIENT_ERROR, "echo", 1, 503)).values() == [1]

    asyncio.run(run())


def test_what_is_under_way_is_right_however_often_it_is_looked_at() -> None:
    meters = RequestMeters(Totals())
    meter, seen = meters.of("m", 1), list[int]()

    def look() -> None:
        meters.sample()
        seen.append(meter.open(0)[INFLIGHT])

    look()
    first, second = meter.begin(0), meter.begin(0)
    look()
    succeed(first, 0)
    look()
    look()
    give_up(second)
    look()
    look()
    refused = meter.begin(0)
    meter.fail(0, refused, QueueFull())
    look()
    meter.begin(0)
    look()
    assert seen == [0, 2, 1, 1, 0, 0, 0, 1]


def test_versions_that_get_no_more_requests_cost_no_look_at_what_they_had() -> None:
    class Unread(list[int]):
        """Cells that are counted in, and looked at no more."""

        def __getitem__(self, place: Any) -> Any:
            raise AssertionError("looked at")

    meters = RequestMeters(Totals())
    succeed(meters.of("gone", 1).begin(0), 0)
    meters.sample()
    cells: Any = Unread()
    meters.of("gone", 1).cells[0] = cells
    meters.sample()
