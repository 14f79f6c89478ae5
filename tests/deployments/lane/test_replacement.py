"""Requests whose model has no replica at the moment: those that were in its last one, and those that come since."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from deployments.core.counts import RETRY, Label
from deployments.lane import routes
from protocol.errors import QueueFull, ServingError, Unavailable
from tests.deployments.lane.harness import Lanes, Sink
from tests.deployments.lane.test_lane import assert_refused, on_loop, two_of_a_dead_replica
from tests.deployments.lane.test_request_meter import counts


class Stream(Sink):
    """Gives up the others when one of its requests fails, as a gRPC stream does whose client wants real errors."""

    def __init__(self) -> None:
        super().__init__()
        self.give_up: Callable[[], None] = lambda: None

    def on_error(self, error: ServingError) -> None:
        super().on_error(error)
        self.give_up()


@on_loop
async def test_a_request_that_waits_for_a_replica_is_sent_again_once() -> None:
    async with Lanes(2) as lanes:
        sink = await in_a_dead_replica(lanes)
        for _ in range(3):
            lanes.fleet.expect({("echo", 1)})
        lanes.publish(lanes.replicas[1])
        await asyncio.wait_for(sink.done.wait(), 5)
        assert lanes.counted.rows[Label(RETRY, "echo", 1)].count == 1  # type: ignore[attr-defined]


@on_loop
async def test_each_death_has_a_minute_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "REPLACEMENT_S", 0.5)
    async with Lanes(2) as lanes:
        first, second = lanes.replicas
        lanes.publish(first)
        await lanes.until(lambda: lanes.lanes_open == 1)
        first.die()
        await lanes.until(lambda: lanes.lanes_open == 0)
        over_s = asyncio.get_running_loop().time() + 0.5
        lanes.publish(second)
        await lanes.until(lambda: lanes.lanes_open == 1)
        monkeypatch.setattr(routes, "REPLACEMENT_S", 60.0)
        second.die()
        await lanes.until(lambda: lanes.lanes_open == 0)
        await lanes.until(lambda: asyncio.get_running_loop().time() > over_s + 0.1)
        assert lanes.fleet.awaited("echo") is not None


async def in_a_dead_replica(lanes: Lanes) -> Sink:
    """Return a request that was in the only replica of a model that may have none, when it died."""
    first = lanes.replicas[0]
    lanes.fleet.set_sleepers({("echo", 1): 60.0}, lambda: None)
    lanes.publish(first)
    await lanes.until(lambda: lanes.lanes_open == 1)
    first.model.hold = True
    sink, _ = lanes.send(b"inside")
    await lanes.until(lambda: bool(first.model.held))
    first.die()
    await lanes.until(lambda: lanes.lanes_open == 0)
    return sink


@on_loop
async def test_what_was_in_the_only_replica_of_a_model_that_scales_from_none_waits_as_what_comes_later() -> None:
    async with Lanes(2) as lanes:
        inside = await in_a_dead_replica(lanes)
        later, _ = lanes.send(b"later")
        await asyncio.sleep(0.05)
        assert not inside.done.is_set()
        assert lanes.fleet.ongoing("echo", 1) == 2, "both want a replica"
        lanes.publish(lanes.replicas[1])
        for sink, body in (inside, b"inside"), (later, b"later"):
            await asyncio.wait_for(sink.done.wait(), 5)
            assert (sink.error, sink.responses) == (None, [body])


@on_loop
async def test_what_finds_the_other_replica_full_is_refused_also_of_a_model_that_scales_from_none() -> None:
    """Eight go alone, as suspects, whatever else is there; more have no room, and nothing would say when there is."""
    async with Lanes(2, max_inflight=12) as lanes:
        lanes.fleet.set_sleepers({("echo", 1): 60.0}, lambda: None)
        first, second = lanes.replicas
        first.model.hold = second.model.hold = True
        sinks = [lanes.send(b"%d" % number)[0] for number in range(24)]
        await lanes.until(lambda: len(first.model.held) == len(second.model.held) == 12)
        first.die()
        await lanes.until(lambda: sum(sink.done.is_set() for sink in sinks) == 4, 20)
        assert {type(sink.error) for sink in sinks} == {QueueFull, type(None)}
        second.model.release()
        for sink in sinks:
            await asyncio.wait_for(sink.done.wait(), 5)


@on_loop
async def test_what_was_in_the_only_replica_of_a_model_that_scales_from_none_is_refused_when_it_is_unloaded() -> None:
    async with Lanes(2) as lanes:
        inside = await in_a_dead_replica(lanes)
        lanes.fleet.set_sleepers({}, lambda: None)
        lanes.fleet.expect(set())
        assert type(inside.error) is Unavailable


@on_loop
async def test_what_waits_for_the_first_replica_of_a_model_waits_on_when_it_shall_always_have_one() -> None:
    async with Lanes(1) as lanes:
        lanes.fleet.set_sleepers({("slow", 1): 60.0}, lambda: None)
        sink = Sink()
        lanes.fleet.target("slow").submit((b"x",), None, sink)  # type: ignore[union-attr]
        lanes.fleet.set_sleepers({}, lambda: None)
        lanes.fleet.expect({("echo", 1), ("slow", 1)})
        assert sink.error is None
        assert lanes.fleet.ongoing("slow", 1) == 1
        lanes.replicas[0].server.set_model("slow", 1, lanes.replicas[0].model)
        await asyncio.wait_for(sink.done.wait(), 5)
        assert (sink.error, sink.responses) == (None, [b"x"])


@on_loop
async def test_what_was_in_two_deaths_waits_no_longer_when_its_model_is_unloaded() -> None:
    async with Lanes(2) as lanes:
        for replica in lanes.replicas:
            replica.model.hold = True
        sink, _ = lanes.send(b"inside")
        for left in 1, 0:
            await lanes.until(lambda: any(replica.model.held for replica in lanes.replicas))
            (holder,) = [replica for replica in lanes.replicas if replica.model.held]
            holder.model.held.clear()
            holder.die()
            await lanes.until(lambda left=left: lanes.lanes_open == left)  # type: ignore[misc]
        lanes.fleet.expect({("echo", 1)})
        assert not sink.done.is_set()
        lanes.fleet.expect(set())
        assert_refused(sink)


@on_loop
async def test_the_load_of_a_model_that_waits_for_a_replica_is_what_it_was() -> None:
    """A count of requests that fell to 0 and came back would look like a million that begin at once."""
    async with Lanes(2) as lanes:
        waiting = await two_of_a_dead_replica(lanes)
        assert (lanes.fleet.sent("echo", 1), lanes.fleet.ongoing("echo", 1)) == (2, 2)
        lanes.publish(lanes.replicas[1])
        for sink in waiting.values():
            await asyncio.wait_for(sink.done.wait(), 5)
        assert (lanes.fleet.sent("echo", 1), lanes.fleet.ongoing("echo", 1)) == (2, 0)


@on_loop
async def test_a_request_that_is_given_up_as_another_is_refused_is_not_refused_too() -> None:
    async with Lanes(2) as lanes:
        await two_of_a_dead_replica(lanes)
        target = lanes.fleet.awaited("echo", 1)
        assert target is not None
        stream, other = Stream(), Sink()
        target.submit((b"a",), None, stream)
        token = target.submit((b"b",), None, other)
        stream.give_up = lambda: target.cancel(token)
        lanes.fleet.expect(set())
        assert type(stream.error) is Unavailable
        assert not other.done.is_set()
        assert counts(lanes) == {"under way": 0, "succeeded": 0, "failed": 3, "cancelled": 1}


@pytest.mark.parametrize("fails_first", [True, False], ids=["before it", "after it"])
@on_loop
async def test_a_request_that_is_given_up_as_another_fails_goes_to_no_other_replica(fails_first: bool) -> None:
    async with Lanes(2) as lanes:
        first, second = lanes.replicas
        lanes.publish(first)
        await lanes.until(lambda: lanes.lanes_open == 1)
        first.model.hold = second.model.hold = True
        target: Any = lanes.fleet.target("echo")
        stream, other = Stream(), Sink()
        order = (stream, other) if fails_first else (other, stream)
        tokens = {sink: target.submit((b"x",), None, sink) for sink in order}
        stream.give_up = lambda: target.cancel(tokens[other])
        await lanes.until(lambda: len(first.model.held) == 2)
        tokens[stream].delivered = True
        lanes.publish()
        await lanes.until(lambda: lanes.lanes_open == 2)
        first.die()
        await lanes.until(lambda: lanes.lanes_open == 1)
        await asyncio.sleep(0.05)
        assert stream.error is not None
        assert not other.done.is_set()
        assert second.model.held == []
        assert counts(lanes) == {"under way": 0, "succeeded": 0, "failed": 1, "cancelled": 1}


async def held_in_each(lanes: Lanes) -> list[Sink]:
    """Send two requests, which two replicas hold, one each."""
    first, second = lanes.replicas
    first.model.hold = second.model.hold = True
    sinks = [lanes.send()[0] for _ in range(2)]
    await lanes.until(lambda: len(first.model.held) == len(second.model.held) == 1)
    return sinks


async def under_way_in_each(lanes: Lanes) -> list[Sink]:
    """Send two requests, which two replicas hold, one each; the second then answers whatever it has."""
    sinks = await held_in_each(lanes)
    second = lanes.replicas[1]
    second.model.hold = False
    second.model.release()
    lanes.publish(second)
    await lanes.until(lambda: lanes.lanes_open == 1 and any(sink.done.is_set() for sink in sinks))
    return sinks


@on_loop
async def test_what_a_replica_has_that_stands_still_and_is_gone_for_serve_goes_to_another() -> None:
    async with Lanes(2, gone_s=0.6) as lanes:
        for sink in await under_way_in_each(lanes):
            await asyncio.wait_for(sink.done.wait(), 5)
            assert sink.responses == [b"hello"]


@on_loop
async def test_what_a_replica_has_that_was_off_the_list_for_a_while_stays_there() -> None:
    async with Lanes(2, gone_s=0.1) as lanes:
        sinks = await under_way_in_each(lanes)
        lanes.publish()
        await lanes.until(lambda: lanes.lanes_open == 2)
        await asyncio.sleep(1.2)
        assert sum(sink.done.is_set() for sink in sinks) == 1
        lanes.replicas[0].model.release()
        for sink in sinks:
            await asyncio.wait_for(sink.done.wait(), 5)
            assert sink.responses == [b"hello"]


@on_loop
async def test_a_replica_that_drains_has_the_time_that_it_says() -> None:
    async with Lanes(2, gone_s=0.1) as lanes:
        sinks = await held_in_each(lanes)
        first, second = lanes.replicas
        left_s = 5.0
        draining = asyncio.create_task(first.server.drain(5, lambda: left_s))
        lanes.publish(second)
        second.model.release()
        await asyncio.sleep(lanes.fleet._away_s + 1.2)
        assert sum(sink.done.is_set() for sink in sinks) == 1
        left_s = 0.0
        await asyncio.wait_for(draining, 1)
        second.model.hold = False
        for sink in sinks:
            await asyncio.wait_for(sink.done.wait(), 5)
            assert sink.responses == [b"hello"], "what it could not answer goes to the other"
