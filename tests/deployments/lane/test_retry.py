"""What one request that kills its replica costs the others."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from deployments.core.counts import Totals
from deployments.core.refusals import Refusals
from deployments.lane import lone_requests
from deployments.lane.client import LaneCall
from deployments.lane.fleet import Fleet
from deployments.lane.suspects import Suspects
from protocol.errors import Internal, Unavailable
from protocol.infer import InferRequest, InferResponse
from tests.deployments.lane.harness import NODE, Lanes, Replica, Sink

POISON = b"poison"


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give requests all the time that they need to be alone, however busy this machine is."""
    monkeypatch.setattr(lone_requests, "MAX_ALONE_S", 30.0)
    monkeypatch.setattr(lone_requests, "MAX_PATIENCE_S", 30.0)


class BatchModel:
    """Runs the oldest requests together, some per turn of the loop; `POISON` kills the replica when it runs."""

    def __init__(self, replica: Replica, batch_size: int) -> None:
        self._replica = replica
        self._batch_size = batch_size
        self._waiting: list[InferRequest] = []
        self.dead = False
        self.mark = ""
        model = replica.model
        model.submit_request = self._submit  # type: ignore[method-assign]
        model.cancel_request = self._cancel

    def _submit(self, request: InferRequest) -> None:
        self._waiting.append(request)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_later(0.001, self._run)

    def _cancel(self, request: InferRequest) -> None:
        self._waiting = [waiting for waiting in self._waiting if waiting is not request]

    def _run(self) -> None:
        batch, self._waiting = self._waiting[: self._batch_size], self._waiting[self._batch_size :]
        if any(bytes(request.parameters["body"]) == POISON for request in batch):  # type: ignore[index, arg-type]
            self.dead = True
            self._replica.die(self.mark)
            return
        for request in batch:
            request.reply(request, InferResponse({}))
        if self._waiting:
            asyncio.get_running_loop().call_later(0.001, self._run)


def run(test: Callable[[Lanes, list[BatchModel]], Any], *, replicas: int, batch_size: int = 1) -> None:
    async def started() -> None:
        async with Lanes(replicas) as lanes:
            await test(lanes, [BatchModel(replica, batch_size) for replica in lanes.replicas])

    asyncio.run(started())


async def answered(sinks: list[Sink]) -> None:
    async with asyncio.timeout(20):
        for sink in sinks:
            await sink.done.wait()


@pytest.mark.parametrize(("mark", "death_count"), [("Segmentation fault", 2), ("", 3)], ids=["mark", "no-mark"])
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("position", [0, 3, 40])
@pytest.mark.usefixtures("unhurried")
def test_one_poison_request_costs_few_replicas_and_no_other_request(
    position: int, batch_size: int, mark: str, death_count: int
) -> None:
    async def test(lanes: Lanes, models: list[BatchModel]) -> None:
        for model in models:
            model.mark = mark
        bodies = [b"%d" % number for number in range(76)]
        bodies.insert(position, POISON)
        sinks = [lanes.send(body)[0] for body in bodies]
        await answered(sinks)
        poisoned = sinks.pop(position)
        bodies.remove(POISON)
        assert type(poisoned.error) is Internal
        assert "of model 'echo' died while the request was the only one" in poisoned.error.message
        assert [(sink.error, sink.responses) for sink in sinks] == [(None, [body]) for body in bodies]
        assert sum(model.dead for model in models) <= death_count

    run(test, replicas=4, batch_size=batch_size)


@pytest.mark.parametrize(
    ("mark", "death_count"), [("Segmentation fault", 1), ("", 3)], ids=["replica-that-ended-itself", "no-mark"]
)
@pytest.mark.usefixtures("unhurried")
def test_what_a_lone_poison_request_costs(mark: str, death_count: int) -> None:
    async def test(lanes: Lanes, models: list[BatchModel]) -> None:
        for model in models:
            model.mark = mark
        sink = await lanes.ask(POISON)
        assert type(sink.error) is Internal
        assert "died while the request was the only one under way in it" in sink.error.message
        assert sum(model.dead for model in models) == death_count
        assert (await lanes.ask()).error is None

    run(test, replicas=4)


def test_a_request_that_was_the_only_one_of_its_ingress_is_not_blamed_for_what_another_sent() -> None:
    async def test(lanes: Lanes, models: list[BatchModel]) -> None:
        for replica in lanes.replicas:
            replica.model.submit_request = replica.model._submit  # type: ignore[method-assign]
            replica.model.hold = True
        other = Fleet(NODE, asyncio.get_running_loop(), lambda: None, Refusals(Totals()))
        addresses = {replica.address.replica_id: replica.address for replica in lanes.replicas}
        other.set_replicas("echo#v1", addresses)
        await lanes.until(lambda: all(len(replica.server.connections) == 2 for replica in lanes.replicas))
        sink, _ = lanes.send(b"innocent")
        await lanes.until(lambda: any(replica.model.held for replica in lanes.replicas))
        (holder,) = [replica for replica in lanes.replicas if replica.model.held]
        (next_one,) = [replica for replica in lanes.replicas if replica is not holder]
        holder.die("Segmentation fault")
        await lanes.until(lambda: bool(next_one.model.held))
        next_one.model.release()
        await answered([sink])
        assert (sink.error, sink.responses) == (None, [b"innocent"])
        await other.close()

    run(test, replicas=2)


def test_a_request_that_was_alone_in_a_killed_replica_is_answered_by_another() -> None:
    async def test(lanes: Lanes, models: list[BatchModel]) -> None:
        for replica in lanes.replicas:
            replica.model.submit_request = replica.model._submit  # type: ignore[method-assign]
            replica.model.hold = True
        sink, _ = lanes.send(b"innocent")
        await lanes.until(lambda: any(replica.model.held for replica in lanes.replicas))
        (holder,) = [replica for replica in lanes.replicas if replica.model.held]
        (other,) = [replica for replica in lanes.replicas if replica is not holder]
        holder.die()
        await lanes.until(lambda: bool(other.model.held))
        other.model.release()
        await answered([sink])
        assert (sink.error, sink.responses) == (None, [b"innocent"])

    run(test, replicas=2)


def test_many_requests_go_again_in_much_fewer_rounds_than_one_by_one() -> None:
    async def test(lanes: Lanes, models: list[BatchModel]) -> None:
        sinks = [lanes.send(b"%d" % number)[0] for number in range(90)]
        lanes.replicas[0].die()
        loop = asyncio.get_running_loop()
        began = loop.time()
        await answered(sinks)
        assert loop.time() - began < 5
        assert {sink.error for sink in sinks} == {None}

    run(test, replicas=2, batch_size=64)


def test_requests_that_wait_to_be_sent_again_can_be_cancelled() -> None:
    async def test(lanes: Lanes, models: list[BatchModel]) -> None:
        for replica in lanes.replicas:
            replica.model.submit_request = replica.model.held.append  # type: ignore[method-assign]
        target = lanes.fleet.target("echo")
        assert target is not None
        sent = [lanes.send(b"%d" % number) for number in range(40)]
        first, second = lanes.replicas
        await lanes.until(lambda: len(first.model.held) + len(second.model.held) == 40)
        before = len(second.model.held)
        first.die()
        await lanes.until(lambda: len(second.model.held) == before + 1)  # the first suspect
        for _, token in sent:
            target.cancel(token)
        assert (await lanes_answer(lanes)).error is None
        assert len(second.model.held) == before + 1
        assert not any(sink.done.is_set() for sink, _ in sent)

    async def lanes_answer(lanes: Lanes) -> Sink:
        second = lanes.replicas[1]
        second.model.submit_request = second.model._submit  # type: ignore[method-assign]
        second.model.held, kept = [], second.model.held
        sink = await lanes.ask()
        second.model.held = kept
        return sink

    run(test, replicas=2)


@pytest.mark.usefixtures("unhurried")
def test_without_another_replica_those_that_were_together_wait_and_only_one_is_blamed() -> None:
    async def test(lanes: Lanes, models: list[BatchModel]) -> None:
        for model in models:
            model.mark = "Segmentation fault"
        lanes.publish(lanes.replicas[0])
        await lanes.until(lambda: lanes.lanes_open == 1)
        sinks = [lanes.send(body)[0] for body in (POISON, b"good")]
        for model, following in zip(models[:2], lanes.replicas[1:], strict=False):
            await lanes.until(lambda dying=model: dying.dead and not lanes.lanes_open)  # type: ignore[misc]
            lanes.publish(following)
        await answered(sinks)
        assert type(sinks[0].error) is Internal
        assert (sinks[1].error, sinks[1].responses) == (None, [b"good"])
        assert sum(model.dead for model in models) == 2

    run(test, replicas=3)


def test_a_request_that_was_in_two_deaths_waits_for_a_replica() -> None:
    """There is none when both were killed, and the third is the answer."""

    async def test(lanes: Lanes, models: list[BatchModel]) -> None:
        for replica in lanes.replicas:
            replica.model.submit_request = replica.model.held.append  # type: ignore[method-assign]
        first, second, last = lanes.replicas
        lanes.publish(first, second)
        await lanes.until(lambda: lanes.lanes_open == 2)
        sink, _ = lanes.send(b"innocent")
        for _ in range(2):
            await lanes.until(lambda: bool(first.model.held or second.model.held))
            held = first if first.model.held else second
            held.model.held = []
            held.die()
        await lanes.until(lambda: lanes.lanes_open == 0)
        assert not sink.done.is_set()
        last.model.submit_request = last.model._submit  # type: ignore[method-assign]
        lanes.publish(last)
        await answered([sink])
        assert (sink.error, sink.responses) == (None, [b"innocent"])

    run(test, replicas=3)


def test_none_waits_longer_for_a_replica_than_the_first() -> None:
    async def test() -> None:
        lanes = Lanes(1)
        async with lanes:
            target = lanes.fleet.target("echo")
            assert target is not None
            sinks = [Sink() for _ in range(3)]
            calls = [LaneCall(target, (b"x",), None, sink, 1, 0) for sink in sinks]
            for call in calls:
                call.deaths = 2
            suspects = Suspects(lambda call, alone: Unavailable("there is none"), lambda: True, max_wait_s=0.05)
            suspects.add(calls)
            assert not any(sink.done.is_set() for sink in sinks)
            await answered(sinks)
            assert {str(sink.error) for sink in sinks} == {"no replica of model 'echo' has started in time"}
            assert not suspects

    asyncio.run(test())


def test_others_follow_a_request_that_was_suspected_before_too() -> None:
    async def test() -> None:
        async with Lanes(1) as lanes:
            target = lanes.fleet.target("echo")
            assert target is not None
            sent: list[LaneCall] = []
            first, other = (LaneCall(target, (b"x",), None, Sink(), 1, 0) for _ in range(2))
            for calls in ((first,), (first, other)):
                Suspects(lambda call, alone: sent.append(call), lambda: True).add(calls)
            assert sent == [first, first]
            first.sink.on_response(None, (), True)
            assert sent == [first, first, other]

    asyncio.run(test())


def test_a_request_that_never_is_alone_kills_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replica is busy with what does not end, so that nobody can tell which of them it was."""
    monkeypatch.setattr(lone_requests, "MAX_PATIENCE_S", 0.05)

    async def test(lanes: Lanes, models: list[BatchModel]) -> None:
        for replica in lanes.replicas:
            (connection,) = replica.server.connections
            connection.inflight[0] = (replica.model, InferRequest({}, 1, lambda *_: None))
        sink = await lanes.ask(POISON)
        assert type(sink.error) is Internal
        assert str(sink.error) == "the request was under way in 4 replicas of model 'echo' when they died"
        assert sum(model.dead for model in models) == 4

    run(test, replicas=6)


def test_what_comes_later_goes_on_while_one_that_was_there_takes_long() -> None:
    """A replica with slow requests dies: none of them waits until the one before it has been answered."""

    async def test(lanes: Lanes, models: list[BatchModel]) -> None:
        for replica in lanes.replicas:
            replica.model.submit_request = replica.model.held.append  # type: ignore[method-assign]
        first, second = lanes.replicas
        lanes.publish(first)
        await lanes.until(lambda: lanes.lanes_open == 1)
        sinks = [lanes.send(b"%d" % number)[0] for number in range(20)]
        await lanes.until(lambda: len(first.model.held) == 20)
        lanes.publish(first, second)
        await lanes.until(lambda: lanes.lanes_open == 2)
        first.die()
        await lanes.until(lambda: len(second.model.held) == 20, 20)
        second.model.release()
        await answered(sinks)
        assert {sink.error for sink in sinks} == {None}

    run(test, replicas=2)


def test_a_request_alone_in_a_replica_that_was_told_to_go_is_sent_again() -> None:
    async def test(lanes: Lanes, models: list[BatchModel]) -> None:
        first, second = lanes.replicas
        for replica in lanes.replicas:
            replica.model.submit_request = replica.model._submit  # type: ignore[method-assign]
            replica.model.hold = True
        lanes.publish(first)
        await lanes.until(lambda: lanes.lanes_open == 1)
        sink, _ = lanes.send()
        await lanes.until(lambda: bool(first.model.held))
        lanes.publish(first, second)
        await lanes.until(lambda: lanes.lanes_open == 2)
        lanes.publish(second)
        await lanes.until(lambda: lanes.lanes_open == 1)
        first.die()
        await lanes.until(lambda: bool(second.model.held))
        second.model.release()
        await answered([sink])
        assert sink.error is None

    run(test, replicas=2)


@pytest.mark.parametrize("told_to_go", [False, True], ids=["died", "told-to-go"])
def test_a_request_that_cannot_be_sent_again_fails_alone(told_to_go: bool) -> None:
    async def test(lanes: Lanes, models: list[BatchModel]) -> None:
        for replica in lanes.replicas:
            replica.model.submit_request = replica.model._submit  # type: ignore[method-assign]
        first = lanes.replicas[0]
        first.model.hold = True
        lanes.publish(first)
        await lanes.until(lambda: lanes.lanes_open == 1)
        sent = [lanes.send(b"%d" % number) for number in range(3)]
        await lanes.until(lambda: len(first.model.held) == 3)
        sent[0][1].gpus = frozenset(["GPU-1"])  # whose memory nobody here can read
        target: Any = lanes.fleet.target("echo")
        for lane in target.choice.lanes:
            lane.leaving = told_to_go
        lanes.publish(*lanes.replicas)
        await lanes.until(lambda: lanes.lanes_open == 2)
        first.die()
        await answered([sink for sink, _ in sent])
        assert [type(sink.error) for sink, _ in sent] == [Internal, type(None), type(None)]
        assert str(sent[0][0].error) == "the request could not be sent again"

    run(test, replicas=2)


def test_a_replica_that_is_off_the_list_for_a_moment_gets_requests_all_the_time() -> None:
    async def test(lanes: Lanes, models: list[BatchModel]) -> None:
        (only,) = lanes.replicas
        lanes.fleet.set_replicas("echo#v1", {})
        sink, _ = lanes.send()
        lanes.publish(only)
        await answered([sink])
        assert sink.error is None
        assert lanes.lanes_open == 1

    run(test, replicas=1)


def test_a_replica_that_is_off_the_list_for_long_gets_requests_until_there_is_another() -> None:
    """Serve may take its time to change the only replica in place."""

    async def test(lanes: Lanes, models: list[BatchModel]) -> None:
        first, second = lanes.replicas
        lanes.publish(first)
        await lanes.until(lambda: lanes.lanes_open == 1)
        for _ in range(3):
            lanes.fleet.set_replicas("echo#v1", {})
            await asyncio.sleep(0.01)
            assert (await lanes.ask()).error is None
        lanes.publish(first)
        await asyncio.sleep(0.01)
        assert lanes.lanes_open == 1
        lanes.fleet.set_replicas("echo#v1", {})
        await asyncio.sleep(0.01)
        lanes.publish(second)
        await lanes.until(lambda: not first.server.connections)
        assert (await lanes.ask()).error is None

    run(test, replicas=2)


def test_a_fleet_closes_while_its_only_replica_is_off_the_list() -> None:
    faults: list[object] = []

    async def test(lanes: Lanes, models: list[BatchModel]) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        lanes.fleet.set_replicas("echo#v1", {})
        await asyncio.sleep(0.01)
        assert (await lanes.ask()).error is None
        await lanes.fleet.close()
        await lanes.until(lambda: not lanes.replicas[0].server.connections)

    run(test, replicas=1)
    assert faults == []


@pytest.mark.usefixtures("unhurried")
def test_a_request_that_is_given_up_before_it_has_the_replica_to_itself_never_runs() -> None:
    async def test(lanes: Lanes, models: list[BatchModel]) -> None:
        model = lanes.replicas[0].model
        model.hold, model.submit_request = True, model._submit  # type: ignore[method-assign]
        target = lanes.fleet.target("echo")
        assert target is not None
        sinks = [Sink() for _ in range(3)]
        calls = [LaneCall(target, (b"%d" % number,), None, sink, 1, 0) for number, sink in enumerate(sinks)]
        for call in calls:
            target.send_alone(call)
        await lanes.until(lambda: len(model.held) == 1)
        target.cancel(calls[1])
        model.release()
        await lanes.until(lambda: len(model.held) == 1)
        model.release()
        await answered([sinks[0], sinks[2]])
        assert [sink.responses for sink in sinks] == [[b"0"], [], [b"2"]]
        assert lanes.replicas[0].server.inflight_count == 0

    run(test, replicas=1)
