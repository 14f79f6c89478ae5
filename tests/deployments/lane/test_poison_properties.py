"""Two ingresses, replicas that die of a request or are killed: whom it costs an answer, and how many replicas."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.core.counts import Totals
from deployments.core.refusals import Refusals
from deployments.lane import lone_requests
from deployments.lane.fleet import Fleet
from protocol.errors import Internal, ServingError
from tests.deployments.lane.harness import NODE, Lanes, Replica, Sink
from tests.deployments.lane.test_retry import POISON, BatchModel

REPLICA_COUNT = 6
"""One more than a request and an operator may kill, so that there always is another one."""


@dataclass
class Ingress:
    """One of those that send requests, and what became of them."""

    fleet: Fleet
    sinks: list[tuple[bytes, Sink]] = field(default_factory=list)

    def send(self, body: bytes) -> None:
        target = self.fleet.target("echo")
        assert target is not None
        sink = Sink()
        self.sinks.append((body, sink))
        target.submit((body,), None, sink)


class Cluster:
    """Replicas that two fleets have lanes to; one that is dead is replaced, as Serve does."""

    def __init__(self, lanes: Lanes, batch_size: int, mark: str) -> None:
        self._lanes = lanes
        self._batch_size = batch_size
        self._mark = mark
        self.alive: dict[Replica, BatchModel] = {}
        self.killed_by_request = 0
        self._count = len(lanes.replicas)
        second = Fleet(NODE, asyncio.get_running_loop(), lambda: None, Refusals(Totals()))
        self.ingresses = [Ingress(lanes.fleet), Ingress(second)]
        for replica in lanes.replicas:
            self._watch(replica)
        self._publish()

    def _watch(self, replica: Replica) -> None:
        model = self.alive[replica] = BatchModel(replica, self._batch_size)
        model.mark = self._mark

    def _publish(self) -> None:
        for ingress in self.ingresses:
            ingress.fleet.set_replicas("echo#v1", {each.address.replica_id: each.address for each in self.alive})

    def kill(self, index: int) -> None:
        """Kill a replica from outside, which leaves no mark."""
        replica, model = list(self.alive.items())[index % len(self.alive)]
        if not model.dead:
            replica.die()

    def _has_lane(self, replica: Replica) -> bool:
        open_lanes = [row for ingress in self.ingresses for row in ingress.fleet.replicas()]
        return any(replica_id == replica.address.replica_id for _, replica_id, _ in open_lanes)

    async def replace_the_dead(self) -> None:
        while True:
            for replica, model in tuple(self.alive.items()):
                if not replica.server._listeners[0].is_serving() and not self._has_lane(replica):
                    self.killed_by_request += model.dead
                    del self.alive[replica]
                    new = Replica(self._lanes._folder.name, f"r{self._count}", asyncio.get_running_loop())
                    self._count += 1
                    await new.server.listen([new.sock])
                    self._lanes.replicas.append(new)
                    self._watch(new)
                    self._publish()
            await asyncio.sleep(0.002)


@pytest.fixture(scope="module", autouse=True)
def unhurried() -> Iterator[None]:
    """Give requests all the time that they need to be alone, however busy this machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lone_requests, "MAX_ALONE_S", 30.0)
        patch.setattr(lone_requests, "MAX_PATIENCE_S", 30.0)
        yield


@settings(max_examples=40, deadline=None)
@given(
    counts=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    poison=st.none() | st.tuples(st.integers(0, 1), st.integers(0, 40)),
    kills=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=2),
    batch_size=st.sampled_from([1, 4]),
    mark=st.sampled_from(["", "Segmentation fault"]),
)
def test_nobody_is_blamed_for_what_another_request_or_an_operator_has_killed(
    counts: tuple[int, int],
    poison: tuple[int, int] | None,
    kills: list[tuple[int, int]],
    batch_size: int,
    mark: str,
) -> None:
    """Two kills from outside, or one beside a poison request, which takes three replicas with it at most."""

    async def test() -> None:
        async with Lanes(REPLICA_COUNT) as lanes:
            cluster = Cluster(lanes, batch_size, mark)
            keeper = asyncio.create_task(cluster.replace_the_dead())
            await lanes.until(lambda: all(len(each.server.connections) == 2 for each in cluster.alive), 30)
            await lanes.until(lambda: all(each.fleet.target("echo") is not None for each in cluster.ingresses), 30)
            for number, ingress in enumerate(cluster.ingresses):
                bodies = [b"%d" % each for each in range(counts[number])]
                if poison is not None and poison[0] == number:
                    bodies.insert(poison[1], POISON)
                for body in bodies:
                    ingress.send(body)
            sinks = [each for ingress in cluster.ingresses for each in ingress.sinks]
            for answer_count, index in kills if poison is None else kills[:1]:
                enough = min(answer_count, len(sinks))
                await lanes.until(lambda enough=enough: _ended(sinks) >= enough, 30)  # type: ignore[misc]
                cluster.kill(index)
            async with asyncio.timeout(60):
                for _, sink in sinks:
                    await sink.done.wait()
            keeper.cancel()
            await cluster.ingresses[1].fleet.close()
            judge(sinks, cluster.killed_by_request)

    asyncio.run(test())


def judge(sinks: list[tuple[bytes, Sink]], death_count: int) -> None:
    for body, sink in sinks:
        error: ServingError | None = sink.error
        if body == POISON:
            assert type(error) is Internal, error
        else:
            assert error is None, error
            assert sink.responses == [body]
    assert death_count <= 3


def _ended(sinks: list[tuple[bytes, Any]]) -> int:
    return sum(sink.done.is_set() for _, sink in sinks)
