"""A model takes no more than its share of a replica that has others too."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.lane.lane_share import LaneShare
from protocol.errors import QueueFull
from tests.deployments.lane.harness import EchoModel, Lanes, Sink, on_loop


def ask(lanes: Lanes, model: str, body: bytes = b"hello") -> Sink:
    target, sink = lanes.fleet.target(model), Sink()
    assert target is not None
    target.submit((body,), None, sink)
    return sink


@pytest.mark.parametrize("kind", ["sequences", "single requests"])
@on_loop
async def test_a_model_leaves_a_quarter_of_its_replica_to_the_others(kind: str) -> None:
    async with Lanes(max_inflight=8) as lanes:
        (replica,) = lanes.replicas
        replica.model.hold = True
        replica.model.sequence_idle_us = 60_000_000 if kind == "sequences" else 0
        replica.server.set_model("echo", 1, replica.model)
        replica.server.set_model("other", 1, EchoModel())
        await lanes.until(lambda: lanes.fleet.target("other") is not None)
        bodies = [b"{}"] * 9
        if kind == "sequences":
            bodies = [b'{"parameters":{"sequence_id":%d,"sequence_start":true}}' % each for each in range(1, 10)]
        sinks = [ask(lanes, "echo", each) for each in bodies]
        assert [type(each.error) for each in sinks] == [type(None)] * 6 + [QueueFull] * 3
        assert sinks[-1].error is not None
        assert sinks[-1].error.message == "Exceeds maximum queue size"
        for _ in range(3):
            answered = ask(lanes, "other")
            await asyncio.wait_for(answered.done.wait(), 5)
            assert answered.responses == [b"hello"]
        await lanes.until(lambda: len(replica.model.held) == 6)
        replica.model.release()
        await asyncio.wait_for(sinks[0].done.wait(), 5)
        assert ask(lanes, "echo", bodies[0]).error is None


@on_loop
async def test_a_model_that_has_a_replica_alone_takes_all_of_it() -> None:
    async with Lanes(max_inflight=8) as lanes:
        lanes.replicas[0].model.hold = True
        sinks = [ask(lanes, "echo") for _ in range(9)]
        assert [each.error is None for each in sinks] == [True] * 8 + [False]


class Lane:
    """What is under way, and how much is looked at."""

    def __init__(self) -> None:
        self.calls: dict[int, Any] = {}
        self.last_id = 0
        self.model_count = 2

    def send(self, target: object) -> None:
        self.last_id += 1
        self.calls[self.last_id] = SimpleNamespace(target=target)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["one", "other", "done"]), st.integers(0, 63)), max_size=400))
def test_a_share_is_kept_but_for_a_sixteenth_of_what_may_be_under_way(steps: list[tuple[str, int]]) -> None:
    lane: Any = Lane()
    shares: dict[Any, LaneShare] = {"one": LaneShare(64), "other": LaneShare(64)}
    for what, number in steps:
        if what == "done":
            if lane.calls:
                del lane.calls[list(lane.calls)[number % len(lane.calls)]]
            continue
        share = shares[what]
        own = sum(call.target == what for call in lane.calls.values())
        taken = len(lane.calls) >= share.size and share.is_taken(what, lane)  # type: ignore[arg-type]
        if len(lane.calls) == 64 or own >= 48 + 4:
            assert taken
        elif own < 48 - 4:
            assert not taken
        if not taken:
            lane.send(what)


def test_requests_that_are_refused_are_not_each_counted() -> None:
    class Calls(dict[int, Any]):
        looks = 0

        def values(self) -> Any:
            self.looks += 1
            return super().values()

    lane: Any = Lane()
    lane.calls = calls = Calls()
    share, target = LaneShare(4096), "one"
    for _ in range(3072):
        lane.send(target)
    for each in range(1, 10_001):
        assert share.is_taken(target, lane)  # type: ignore[arg-type]
        if each % 100 == 0:
            del calls[next(iter(calls))]
            lane.send(target)
    assert calls.looks <= 2
