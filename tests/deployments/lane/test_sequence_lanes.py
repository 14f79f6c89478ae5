"""A sequence stays with its replica, whichever ingress its requests come through, and fails with it."""

import asyncio
import os
import random
import tempfile
import time
from dataclasses import dataclass, field

import orjson
import pytest

from deployments.core.counts import CLIENT, Label, Totals
from deployments.core.refusals import Refusals
from deployments.core.request_meter import FAILED, FIRST_BUCKET, RequestMeters
from deployments.lane.fleet import Fleet
from deployments.lane.sequence_lanes import MAX_SEQUENCES, SequenceLanes
from deployments.lane.wire import HTTP
from protocol.errors import QueueFull
from protocol.infer import COPIED
from protocol.sequence_mark import SequenceMark
from tests.deployments.lane.harness import NODE, Lanes, Replica, Sink, on_loop
from tests.deployments.lane.sums import body, sums

SEQUENCES = int(os.environ.get("SEQUENCES", "1000"))  # `make soak` sends ten thousand
STEPS = 3


@dataclass(eq=False)
class Lane:
    replica_id: str
    near: bool = True
    calls: dict = field(default_factory=dict)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


LANES = [Lane(f"replica-{number}") for number in range(4)]


def mark(sequence_id, starts=False, ends=False):
    return SequenceMark(sequence_id, starts, ends)


def test_every_ingress_chooses_the_same_replica():
    one, other = SequenceLanes(60), SequenceLanes(60)
    counts = dict.fromkeys(LANES, 0)
    for number in [*range(1, 2000), *map(str, range(1, 2000))]:
        lane = one.choose(mark(number, starts=True), LANES)
        assert other.choose(mark(number), list(reversed(LANES))) is lane
        counts[lane] += 1
    assert min(counts.values()) > 800


def test_only_the_sequences_of_a_replica_that_leaves_move():
    lanes = SequenceLanes(60)
    before = {number: lanes.choose(mark(number), LANES) for number in range(1, 500)}
    elsewhere = SequenceLanes(60)
    for number, lane in before.items():
        after = {chooser.choose(mark(number), LANES[1:]) for chooser in (lanes, elsewhere)}
        assert len(after) == 1 and (lane is LANES[0] or after == {lane})


def test_a_sequence_is_held_until_it_ends_is_idle_or_its_lane_goes():
    clock = Clock()
    lanes = SequenceLanes(60, clock)
    chosen = lanes.choose(mark(7, starts=True), LANES)
    assert lanes.holds(7, LANES) and not lanes.holds("7", LANES)
    assert not lanes.holds(7, [lane for lane in LANES if lane is not chosen])
    clock.now = 61.0
    assert not lanes.holds(7, LANES)
    lanes.choose(mark(7, starts=True), LANES)
    assert lanes.holds(7, LANES)
    lanes.choose(mark(7, ends=True), LANES)
    assert not lanes.holds(7, LANES)


def test_a_new_replica_takes_new_sequences_only():
    clock = Clock()
    lanes = SequenceLanes(60, clock)
    before = {number: lanes.choose(mark(number, starts=True), LANES[:3]) for number in range(1, 500)}
    assert all(lanes.choose(mark(number), LANES) is lane for number, lane in before.items())
    assert any(lanes.choose(mark(number, starts=True), LANES) is LANES[3] for number in before)


@pytest.mark.parametrize("over", ["ended", "idle"])
def test_a_sequence_that_is_over_is_forgotten(over):
    clock = Clock()
    lanes = SequenceLanes(60, clock)
    numbers = [number for number in range(1, 500) if SequenceLanes(1).choose(mark(number), LANES) is LANES[3]]
    for number in numbers:
        lanes.choose(mark(number, starts=True, ends=over == "ended"), LANES[:3])
    clock.now += 61 if over == "idle" else 0
    assert all(lanes.choose(mark(number), LANES) is LANES[3] for number in numbers)


def test_memory_is_bounded():
    lanes = SequenceLanes(60)
    for number in range(1, MAX_SEQUENCES + 100):
        lanes.choose(mark(number), LANES[:1])
    assert len(lanes._known) == MAX_SEQUENCES


def test_memory_of_refused_ends_is_bounded_and_later_sequences_win():
    lanes = SequenceLanes(60)
    for number in range(1, MAX_SEQUENCES + 100):
        lanes.refused(mark(number, ends=True), LANES[0])
    assert len(lanes._known) == MAX_SEQUENCES
    again = lanes.choose(mark("again", starts=True), LANES[1:])
    lanes.refused(mark("again", ends=True), LANES[0])
    assert lanes.choose(mark("again"), LANES) is again


def test_many_sequences_that_wait_for_long_cost_no_look_at_all_that_is_under_way():
    clock = Clock()
    lanes, lane = SequenceLanes(60, clock), Lane("replica")
    for number in range(1, 10_001):
        lanes.choose(mark(number, starts=True), [lane])
        lane.calls[number] = mark(number)
        lanes.sent(mark(number), lane, number)
    clock.now = 100.0
    began_s = time.thread_time()
    assert all(lanes.holds(number, [lane]) for number in range(1, 10_001))
    assert time.thread_time() - began_s < 0.25  # to look at all of them each time takes longer


def test_calls_that_are_given_up_behind_one_that_runs_are_not_kept():
    lanes, lane = SequenceLanes(60), Lane("replica")
    for number in range(10_000):
        lane.calls[number] = mark(7)
        lanes.sent(mark(7), lane, number)
        if number:
            del lane.calls[number]
            lanes.left(mark(7), lane)
    assert sum(map(len, lanes._under_way.values())) < 10


def test_without_a_replica_there_is_no_lane():
    assert SequenceLanes(60).choose(mark(1), []) is None


@on_loop
async def test_a_sequence_on_its_way_to_a_model_whose_processes_have_died_hears_so():
    async with Lanes() as lanes:
        server = lanes.replicas[0].server
        server.set_model("echo", 1, await sums())
        assert (await lanes.ask(body(7, 1, start=True))).error is None
        server.set_model("echo", 1, None, "its process has died")
        assert str((await lanes.ask(body(7, 1))).error) == "model 'echo' is not ready: its process has died"


def test_interleaved_sequences_through_two_ingresses_and_two_replicas():
    async def run():
        loop = asyncio.get_running_loop()
        with tempfile.TemporaryDirectory() as folder:
            replicas = [Replica(folder, f"r{number}", loop) for number in range(2)]
            addresses = {replica.address.replica_id: replica.address for replica in replicas}
            for replica in replicas:
                replica.server.set_model("echo", 1, await sums())
                await replica.server.listen([replica.sock])
            fleets = [Fleet(NODE, loop, lambda: None, Refusals(Totals())) for _ in range(2)]
            for fleet in fleets:
                fleet.set_replicas("echo#v1", addresses)
            await Lanes.until(lambda: all(_lanes(fleet) == 2 for fleet in fleets))
            chance = random.Random(1)
            totals = {}
            for step in range(STEPS):
                numbers = list(range(1, SEQUENCES + 1))
                chance.shuffle(numbers)
                for first in range(0, SEQUENCES, 500):
                    sent = []
                    for number in numbers[first : first + 500]:
                        request = body(number, number % 100 + step, start=step == 0, end=step == STEPS - 1)
                        sink = Sink()
                        chance.choice(fleets).target("echo").submit((request,), None, sink)
                        sent.append((number, sink))
                    for number, sink in sent:
                        await asyncio.wait_for(sink.done.wait(), 30)
                        assert sink.error is None, sink.error
                        totals[number] = orjson.loads(sink.responses[0])["outputs"][0]["data"][0]
            shares = [replica.server.models[0].model.statistics.counts.success_count for replica in replicas]
            for fleet in fleets:
                await fleet.close()
            for replica in replicas:
                await replica.server.drain(0.0)
        added = sum(range(STEPS))
        assert totals == {number: STEPS * (number % 100) + added + number for number in range(1, SEQUENCES + 1)}
        assert sum(shares) == SEQUENCES * STEPS and min(shares) > SEQUENCES

    asyncio.run(run())


def test_a_client_that_changes_its_ingress_when_replicas_were_added_hears_the_right_sum():
    """Each ingress remembers another replica: the first that where the sequence was, the second that where it is."""

    async def run():
        loop = asyncio.get_running_loop()
        with tempfile.TemporaryDirectory() as folder:
            replicas = [Replica(folder, f"r{number}", loop) for number in range(3)]
            for replica in replicas:
                replica.server.set_model("echo", 1, await sums())
                await replica.server.listen([replica.sock])
            one, other = fleets = [Fleet(NODE, loop, lambda: None, Refusals(Totals()), away_s=0.0) for _ in range(2)]
            addresses = {replica.address.replica_id: replica.address for replica in replicas}

            async def publish(*names):
                for fleet in fleets:
                    fleet.set_replicas("echo#v1", {name: addresses[name] for name in names})
                await Lanes.until(lambda: all(_lanes(fleet) == len(names) for fleet in fleets))

            async def ask(fleet, value, **flags):
                sink = Sink()
                fleet.target("echo").submit((body(number, value, **flags),), None, sink)
                await asyncio.wait_for(sink.done.wait(), 30)
                return sink.error or orjson.loads(sink.responses[0])["outputs"][0]["data"][0]

            lanes = [Lane(f"r{each}") for each in range(3)]
            number = next(
                each
                for each in range(1, 99)
                if SequenceLanes(60).choose(mark(each), lanes) is lanes[2]
                and SequenceLanes(60).choose(mark(each), lanes[:2]) is lanes[1]
            )
            await publish("r0")
            assert await ask(one, 1, start=True) == 1
            await publish("r0", "r1", "r2")
            assert await ask(one, 2) == 3  # it stays where it is
            assert await ask(other, 4) == 7  # which only the first ingress knows
            assert await asyncio.gather(*(ask(other, 8) for _ in range(3))) == [15, 23, 31]
            assert await ask(one, 0) == 31
            assert await ask(other, 10, start=True) == 10
            assert await ask(one, 100) == 110  # not 131
            assert await ask(other, 20, end=True) == 130 + number  # which the model adds at the end
            assert "must specify the START flag" in str(await ask(one, 40))
            assert await ask(other, 10, start=True) == 10
            await publish("r0")
            assert "must specify the START flag" in str(await ask(other, 200))  # not 231
            for fleet in fleets:
                await fleet.close()
            for replica in replicas:
                await replica.server.drain(0.0)

    asyncio.run(run())


def test_a_sequence_is_found_in_another_version_where_one_may_hold_it_and_counts_there():
    async def run():
        loop = asyncio.get_running_loop()
        with tempfile.TemporaryDirectory() as folder:
            replica = Replica(folder, "r0", loop)
            for version in (1, 2, 3):
                replica.server.set_model("echo", version, await sums())
            await replica.server.listen([replica.sock])
            rows = Totals()
            fleet = Fleet(NODE, loop, lambda: None, Refusals(Totals()), meters=RequestMeters(rows))
            fleet.set_replicas("echo#v1", {"r0": replica.address})
            await Lanes.until(lambda: fleet.target("echo", 2) is not None)
            one, two, full = (fleet.target("echo", version) for version in (1, 2, 3))
            full._send_in_sequence = lambda *_: QueueFull()

            async def ask(target, value, *others, **flags):
                sink = Sink()
                token = target.submit((body(7, value, **flags),), None, sink)
                target.may_be_elsewhere(token, others)
                await asyncio.wait_for(sink.done.wait(), 30)
                return sink.error or orjson.loads(sink.responses[0])["outputs"][0]["data"][0]

            def counts():
                cells = [rows.row(Label(CLIENT, "echo", version, HTTP)).cells for version in (1, 2)]
                return [(each[FAILED], sum(each[FIRST_BUCKET:])) for each in cells]

            assert await ask(one, 1, start=True) == 1
            assert "must specify the START flag" in str(await ask(two, 2))  # to which the client has sent it
            assert counts() == [(0, 1), (1, 0)]
            assert await asyncio.gather(*(ask(two, 2, full, one) for _ in range(3))) == [3, 5, 7]
            assert counts() == [(0, 4), (1, 0)]
            one.end_sequence(7)
            assert "must specify the START flag" in str(await ask(two, 2, one))
            assert counts() == [(1, 4), (1, 0)]
            assert one._meter.idle and two._meter.idle and full._meter.idle
            await fleet.close()
            await replica.server.drain(0.0)

    asyncio.run(run())


def test_a_version_that_has_a_copy_of_a_sequence_does_not_go_on_with_it_for_a_client():
    async def run():
        loop = asyncio.get_running_loop()
        with tempfile.TemporaryDirectory() as folder:
            replica = Replica(folder, "r0", loop)
            for version in (1, 2):
                replica.server.set_model("echo", version, await sums())
            await replica.server.listen([replica.sock])
            fleet = Fleet(NODE, loop, lambda: None, Refusals(Totals()))
            fleet.set_replicas("echo#v1", {"r0": replica.address})
            await Lanes.until(lambda: fleet.target("echo", 2) is not None)
            one, shadow = (fleet.target("echo", version) for version in (1, 2))

            async def ask(target, value, *others, copied=False, **flags):
                sink = Sink()
                token = target.submit((body(7, value, **flags),), None, sink, copied=copied)
                target.may_be_elsewhere(token, others)
                await asyncio.wait_for(sink.done.wait(), 30)
                return sink.error or orjson.loads(sink.responses[0])["outputs"][0]["data"][0]

            assert await ask(one, 1, start=True) == 1
            assert await ask(shadow, 1, copied=True, start=True) == 1
            assert await ask(shadow, 2, one) == 3  # as an ingress asks that knows other shares
            assert "must specify the START flag" in str(await ask(one, 2, copied=True))
            assert await ask(shadow, 2, copied=True) == 3
            await fleet.close()
            await replica.server.drain(0.0)

    asyncio.run(run())


@pytest.mark.parametrize("sequence_idle_us", [0, 60_000_000], ids=["an ensemble", "a model with sequences"])
def test_the_replica_of_a_shadow_knows_a_copy(sequence_idle_us):
    async def run():
        async with Lanes() as lanes:
            model = lanes.replicas[0].model
            model.hold, model.sequence_idle_us = True, sequence_idle_us
            lanes.replicas[0].server.set_model("echo", 1, model)
            target = lanes.fleet.target("echo")
            await Lanes.until(lambda: (target._sequences is not None) == bool(sequence_idle_us))
            for copied in (False, True):
                target.submit((body(7, 1),), None, Sink(), copied=copied)
            await Lanes.until(lambda: len(model.held) == 2)
            assert [request.flags for request in model.held] == [0, COPIED]
            model.release()

    asyncio.run(run())


def test_sequences_that_began_while_there_was_no_replica_go_on_where_they_began():
    """They wait for the first of two new replicas; that the second is there too, a moment later, moves none."""

    async def run():
        loop = asyncio.get_running_loop()
        with tempfile.TemporaryDirectory() as folder:
            dead, first, second = replicas = [Replica(folder, f"r{number}", loop) for number in range(3)]
            for replica in replicas:
                replica.server.set_model("echo", 1, await sums())
                await replica.server.listen([replica.sock])
            fleet = Fleet(NODE, loop, lambda: None, Refusals(Totals()), away_s=0.0)
            fleet.set_replicas("echo#v1", {"r0": dead.address})
            await Lanes.until(lambda: _lanes(fleet) == 1)
            dead.die()
            await Lanes.until(lambda: fleet.awaited("echo") is not None)
            began, went_on = ([Sink() for _ in range(40)] for _ in range(2))
            for number, sink in enumerate(began, 1):
                fleet.awaited("echo").submit((body(number, 1, start=True),), None, sink)
            fleet.set_replicas("echo#v1", {replica.address.replica_id: replica.address for replica in (first,)})
            await Lanes.until(lambda: all(sink.done.is_set() for sink in began))
            fleet.set_replicas("echo#v1", {replica.address.replica_id: replica.address for replica in (first, second)})
            await Lanes.until(lambda: _lanes(fleet) == 2)
            for number, sink in enumerate(went_on, 1):
                fleet.target("echo").submit((body(number, 2, end=True),), None, sink)
            await Lanes.until(lambda: all(sink.done.is_set() for sink in went_on))
            await fleet.close()
            for replica in (first, second):
                await replica.server.drain(0.0)
        assert [str(sink.error) for sink in went_on if sink.error is not None] == []
        sent = enumerate(went_on, 1)
        assert all(orjson.loads(sink.responses[0])["outputs"][0]["data"] == [3 + number] for number, sink in sent)

    asyncio.run(run())


def _lanes(fleet):
    target = fleet.target("echo")
    return len(target.choice.lanes) if target else 0


def test_when_the_replica_dies_each_sequence_in_it_gets_one_error_and_may_start_anew():
    async def run():
        async with Lanes(2) as lanes:
            for replica in lanes.replicas:
                model = await sums()
                model.model.pool.pools[0].run = lambda batch: None  # the batch never ends
                replica.server.set_model("echo", 1, model)
            target = lanes.fleet.target("echo")
            await Lanes.until(lambda: target._sequences is not None and _lanes(lanes.fleet) == 2)
            sinks = {number: Sink() for number in range(1, 41)}
            for number, sink in sinks.items():
                target.submit((body(number, 1, start=True),), None, sink)
            dead, alive = lanes.replicas
            await Lanes.until(lambda: dead.server.inflight_count + alive.server.inflight_count == 40)
            held = dead.server.inflight_count
            assert 0 < held < 40
            dead.die()
            failed = {number: sink for number, sink in sinks.items() if sink.error is not None}
            await Lanes.until(lambda: sum(sink.error is not None for sink in sinks.values()) == held)
            failed = {number: sink for number, sink in sinks.items() if sink.error is not None}
            for number, sink in failed.items():
                assert sink.error.http_status == 503
                assert sink.error.message == (
                    f"the replica of model 'echo' that held sequence {number} is gone; start the sequence anew"
                )
            assert alive.server.inflight_count == 40 - held  # nothing of them was sent there
            alive.server.set_model("echo", 1, await sums())
            number = next(iter(failed))
            going_on, again = Sink(), Sink()
            target.submit((body(number, 1),), None, going_on)
            await asyncio.wait_for(going_on.done.wait(), 5)
            assert "must specify the START flag" in going_on.error.message
            target.submit((body(number, 5, start=True, end=True),), None, again)
            await asyncio.wait_for(again.done.wait(), 5)
            assert orjson.loads(again.responses[0])["outputs"][0]["data"] == [5 + number]

    asyncio.run(run())


def test_what_starts_in_a_replica_that_leaves_starts_in_another_and_what_goes_on_there_fails():
    async def run():
        async with Lanes(2) as lanes:
            models = [await sums(), await sums()]
            for replica, model in zip(lanes.replicas, models, strict=True):
                replica.server.set_model("echo", 1, model)
            target = lanes.fleet.target("echo")
            await Lanes.until(lambda: target._sequences is not None and _lanes(lanes.fleet) == 2)
            leaves, _ = lanes.replicas
            preferred = {number: SequenceLanes.preferred(number, target.choice.lanes) for number in range(1, 41)}
            old, new = [number for number, lane in preferred.items() if lane.replica_id == "r0"][:2]

            def send(number, value, **flags):
                sink = Sink()
                target.submit((body(number, value, **flags),), None, sink)
                return sink

            began = send(old, 1, start=True)
            await asyncio.wait_for(began.done.wait(), 5)
            models[0].model.pool.pools[0].run = lambda batch: None  # the batch never ends
            going_on = [send(old, 2), send(old, 3, end=True)]
            anew = [send(new, 5, start=True), send(new, 6), send(old, 7, start=True), send(old, 8, end=True)]
            await Lanes.until(lambda: leaves.server.inflight_count == 6)
            await leaves.server.drain(0.0)
            for sink in (*going_on, *anew):
                await asyncio.wait_for(sink.done.wait(), 5)
            assert {sink.error.message for sink in going_on} == {
                f"the replica of model 'echo' that held sequence {old} is gone; start the sequence anew"
            }
            answers = [orjson.loads(sink.responses[0])["outputs"][0]["data"][0] for sink in anew]
            assert answers == [5, 11, 7, 15 + old]
            assert not target._sequences._under_way
            assert target._meter is None or target._meter.idle

    asyncio.run(run())


def test_a_request_without_a_sequence_goes_anywhere_and_is_answered():
    async def run():
        async with Lanes(2) as lanes:
            for replica in lanes.replicas:
                replica.server.set_model("echo", 1, await sums())
            target = lanes.fleet.target("echo")
            await Lanes.until(lambda: target._sequences is not None)
            sink = Sink()
            target.submit((body(0, 1, start=True),), None, sink)
            await asyncio.wait_for(sink.done.wait(), 5)
            assert "must specify a non-zero or non-empty correlation ID" in sink.error.message

    asyncio.run(run())
