"""A lane that gets nothing new stays so, and is closed when what is on it is answered."""

import asyncio

import pytest

from tests.deployments.lane.harness import Lanes, Replica, Sink
from tests.deployments.lane.test_lane import on_loop


async def one_in_each(lanes: Lanes) -> tuple[list[Sink], Replica, Replica]:
    """Return a request that each of two replicas holds."""
    first, second = lanes.replicas
    first.model.hold = second.model.hold = True
    sinks = [lanes.send()[0] for _ in range(2)]
    await lanes.until(lambda: len(first.model.held) == len(second.model.held) == 1)
    return sinks, first, second


async def change_models(lanes: Lanes, replica: Replica) -> None:
    """Have a replica tell of another model, and wait until that has been heard."""
    (lane,) = (lane for lane in lanes.fleet._open if lane.replica_id == replica.address.replica_id)
    count = lane.model_count
    replica.server.set_model("other", 1, replica.model)
    await lanes.until(lambda: lane.model_count == count + 1)


@on_loop
async def test_a_draining_replica_whose_models_change_gets_nothing_new() -> None:
    async with Lanes(2) as lanes:
        sinks, first, second = await one_in_each(lanes)
        draining = asyncio.create_task(first.server.drain(5))
        await lanes.until(lambda: lanes.lanes_open == 1)
        await change_models(lanes, first)
        assert lanes.lanes_open == 1
        assert lanes.fleet.target("other") is None
        first.model.release()
        second.model.release()
        await draining
        assert [sink.error for sink in sinks] == [None, None]


@on_loop
async def test_a_draining_replica_takes_no_lanes() -> None:
    """It would close them with what is under way on them, which looks like its death."""
    async with Lanes() as lanes:
        (replica,) = lanes.replicas
        replica.model.hold = True
        sink, _ = lanes.send()
        await lanes.until(lambda: bool(replica.model.held))
        reader, stranger = await asyncio.open_unix_connection(replica.address.unix_path)
        await lanes.until(lambda: bool(replica.server._strangers))
        draining = asyncio.create_task(replica.server.drain(5))
        assert await asyncio.wait_for(reader.read(), 5) == b""
        stranger.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_unix_connection(replica.address.unix_path)
        replica.model.release()
        await draining
        assert sink.error is None


@on_loop
async def test_a_replica_that_left_the_list_gets_nothing_new_though_its_models_change() -> None:
    async with Lanes(2) as lanes:
        sinks, first, second = await one_in_each(lanes)
        lanes.publish(second)
        await lanes.until(lambda: lanes.lanes_open == 1)
        await change_models(lanes, first)
        assert lanes.lanes_open == 1
        assert lanes.fleet.lane_count == 2
        first.model.release()
        second.model.release()
        for sink in sinks:
            await asyncio.wait_for(sink.done.wait(), 5)
            assert sink.error is None
        await lanes.until(lambda: lanes.fleet.lane_count == 1)
