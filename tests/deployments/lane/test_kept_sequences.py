"""A sequence goes on in the replica where it began, though another has been added since, which a new one might get."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from deployments.lane.lane_share import LaneShare
from protocol.errors import InvalidArgument, NotFound, QueueFull, ServingError, UnknownSequence
from protocol.infer import InferRequest
from tests.deployments.lane.harness import Lanes, Sink, on_loop
from tests.deployments.lane.test_full_queue import fill

NUMBERS = range(1, 21)


class NoRegions:
    """No region is known, though some are registered."""

    registered = on_devices = True

    def gpu_of(self, region: str) -> str:
        return "" if region else "gpu"

    def is_on_device(self, region: str) -> bool:
        return True

    def open(self, place: Any) -> Any:
        raise NotFound(f"Unable to find shared memory region: '{place.region}'")


def body(number: int, flag: str = "", inputs: str = "") -> bytes:
    flags = f',"sequence_{flag}":true' if flag else ""
    return f'{{"inputs":[{inputs}],"parameters":{{"sequence_id":{number}{flags}}}}}'.encode()


@asynccontextmanager
async def two_replicas() -> AsyncIterator[tuple[Lanes, Any]]:
    """Return replicas of a model whose sequences may be idle for a minute, of which only the first is known yet."""
    async with Lanes(2) as lanes:
        for replica in lanes.replicas:
            replica.model.sequence_idle_us = 60_000_000
            replica.server.set_model("echo", 1, replica.model)
        lanes.publish(lanes.replicas[0])
        await lanes.until(lambda: lanes.lanes_open == 1)
        target: Any = lanes.fleet.target("echo")
        await lanes.until(lambda: target._sequences is not None)
        yield lanes, target


async def add_second(lanes: Lanes) -> None:
    lanes.publish()
    await lanes.until(lambda: lanes.lanes_open == 2)


REFUSED: dict[str, tuple[str, type[ServingError]]] = {
    "by the replica's queue": ("", QueueFull),
    "by the lane": ("", QueueFull),
    "by the codec": ("", InvalidArgument),
    "for its region": (
        '{"name":"X","datatype":"FP32","shape":[1],'
        '"parameters":{"shared_memory_region":"r","shared_memory_byte_size":4}}',
        NotFound,
    ),
}


@pytest.mark.parametrize("how", REFUSED)
@on_loop
async def test_a_sequence_whose_end_is_refused_may_be_ended_where_it_is(how: str) -> None:
    inputs, kind = REFUSED[how]

    def misread(*_: Any) -> Any:
        raise InvalidArgument("it cannot be read")

    async with two_replicas() as (lanes, target):
        first, second = lanes.replicas
        for number in NUMBERS:
            assert (await lanes.ask(body(number, "start"))).error is None
        await add_second(lanes)
        elsewhere = fill(second)
        submit, (codec,) = first.model.submit_request, first.model.codecs
        context, share = target._context, target._share
        if how == "by the replica's queue":
            fill(first)
        elif how == "by the lane":
            target._share = LaneShare(0)
        elif how == "by the codec":
            codec.decode = misread  # type: ignore[method-assign]
        else:
            target._context = replace(context, regions=NoRegions())
        for number in NUMBERS:
            assert type((await lanes.ask(body(number, "end", inputs))).error) is kind
        first.model.submit_request, target._context, target._share = submit, context, share
        vars(codec).clear()
        for number in NUMBERS:
            assert (await lanes.ask(body(number, "end"))).error is None
        assert elsewhere == []
        assert not target._sequences._known


@pytest.mark.parametrize("version", [1, 2])
@on_loop
async def test_nothing_stays_of_a_request_that_is_given_up_where_its_sequence_was_found(version: int) -> None:
    async with two_replicas() as (lanes, target):
        first, second = lanes.replicas
        second.server.set_model("echo", 1, None)
        second.server.set_model("echo", version, second.model)
        await add_second(lanes) if version == 1 else lanes.publish()
        await lanes.until(lambda: lanes.fleet.target("echo", version) is not None)
        other: Any = lanes.fleet.target("echo", version)
        await lanes.until(lambda: other._sequences is not None)
        second.model.hold = True

        def unknown(request: InferRequest) -> None:
            error = UnknownSequence("another replica has it")
            error.refused = True
            request.reply(request, error)

        first.model.submit_request = unknown
        tokens = [target.submit((body(number),), None, Sink()) for number in NUMBERS]
        for token in tokens:
            target.may_be_elsewhere(token, [other])
        await lanes.until(lambda: len(second.model.held) == len(NUMBERS))
        for token in tokens:
            target.cancel(token)
        assert not target._sequences._under_way
        assert not other._sequences._under_way


@pytest.mark.parametrize("when", ["is under way", "was answered a moment ago"])
@on_loop
async def test_a_sequence_is_not_idle_while_a_request_of_it_runs_longer_than_it_may_be(when: str) -> None:
    now_s = 0.0
    async with two_replicas() as (lanes, target):
        target._sequences._now_s = lambda: now_s
        first, second = lanes.replicas
        first.model.hold = True
        began = [lanes.send(body(number, "start"))[0] for number in NUMBERS]
        await lanes.until(lambda: len(first.model.held) == len(NUMBERS))
        await add_second(lanes)
        elsewhere = fill(second)
        now_s = 100.0
        if when == "was answered a moment ago":
            await release(first, began)
        went_on = [lanes.send(body(number))[0] for number in NUMBERS]
        held_count = len(NUMBERS) if began[0].done.is_set() else 2 * len(NUMBERS)
        await lanes.until(lambda: len(first.model.held) + len(elsewhere) == held_count)
        assert elsewhere == []
        await release(first, [*began, *went_on])


async def release(replica: Any, sinks: list[Sink]) -> None:
    replica.model.release()
    for sink in sinks:
        await asyncio.wait_for(sink.done.wait(), 5)
