import asyncio
import tempfile
from typing import Any

import pytest

from deployments.control.directory import READY, UNAVAILABLE, UNLOADED, ModelEntry, VersionEntry
from deployments.control.publisher import Publisher
from deployments.core.clock import LoopClock
from deployments.core.core import LATEST, Core
from deployments.core.counts import Totals
from deployments.core.refusals import Refusals
from deployments.lane.fleet import Fleet
from deployments.replica.directory_neighbours import DirectoryNeighbours
from deployments.replica.group_watch import GroupWatch, Watch
from deployments.replica.host_router import HostRouter
from protocol.signature import Signature
from tests.deployments.fakes import slow_queue
from tests.deployments.lane.harness import NODE, Lanes, Replica, Sink


class Controller:
    """Publishes models of one version, as a deployment handle of the controller reaches it."""

    def __init__(self) -> None:
        self.publisher = Publisher()
        self.watch = self
        self.calls: list[asyncio.Task[Any]] = []

    def remote(self, epoch: str, generation: int) -> Any:
        self.calls.append(asyncio.ensure_future(self.publisher.news(epoch, generation)))
        return self.calls[-1]

    def publish(self, **versions: VersionEntry) -> None:
        models = {name: ModelEntry("{}", versions={1: version}).to_dict() for name, version in versions.items()}
        self.publisher.publish(models=models, deployments={})


def router_over(fleet: Fleet) -> HostRouter:
    clock = LoopClock(asyncio.get_running_loop())
    return HostRouter(Core(clock), fleet, clock, slow_queue())


def no_watch(app: str, name: str, listener: Any) -> Any:
    return lambda: None


def following(controller: Any, watch: Watch = no_watch) -> tuple[Fleet, DirectoryNeighbours]:
    """Return a fleet, and who follows a controller beside it; on the loop that runs."""
    loop = asyncio.get_running_loop()
    fleet = Fleet(NODE, loop, lambda: neighbours.changed(), Refusals(Totals()))
    group_watch = GroupWatch(fleet, loop, 0.0, watch)
    neighbours = DirectoryNeighbours(loop, fleet, group_watch, router_over(fleet), lambda: controller)
    return fleet, neighbours


def test_what_waits_for_the_replica_of_a_step_waits_on_whatever_becomes_of_models_that_are_called() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        controller = Controller()
        controller.publish(echo=VersionEntry(READY))
        with tempfile.TemporaryDirectory() as folder:
            step = Replica(folder, "step", loop)
            await step.server.listen([step.sock])
            fleet, neighbours = following(controller)
            fleet.set_replicas("steps#v1", {"step": step.address})
            await Lanes.until(lambda: fleet.target("echo") is not None)
            step.die()
            await Lanes.until(lambda: fleet.awaited("echo") is not None)
            sink = Sink()
            fleet.awaited("echo").submit((b"hello",), None, sink)  # type: ignore[union-attr]
            neighbours.have_scaled(["called"])
            await Lanes.until(lambda: neighbours.left("called", 1))
            assert not sink.done.is_set()
            controller.publish(echo=VersionEntry(READY), called=VersionEntry(READY))
            await Lanes.until(lambda: not neighbours.left("called", 1))
            assert not sink.done.is_set()
            controller.publish(echo=VersionEntry(UNAVAILABLE, UNLOADED), called=VersionEntry(READY))
            await Lanes.until(sink.done.is_set)
            assert sink.error is not None and sink.error.http_status == 503
            neighbours.close()
            await fleet.close()
            await step.server.drain(0.0)

    asyncio.run(run())


@pytest.mark.parametrize(("traffic", "waits"), [({}, True), ({"weights": {"1": 1}}, False)], ids=["highest", "weights"])
def test_a_call_waits_until_the_version_is_reached_that_it_goes_to(traffic: dict[str, Any], waits: bool) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        controller = Controller()
        entry = ModelEntry("{}", versions={1: VersionEntry(READY), 2: VersionEntry(READY)}, traffic=traffic)
        controller.publisher.publish(models={"echo": entry.to_dict()}, deployments={})
        with tempfile.TemporaryDirectory() as folder:
            first, second = (Replica(folder, each, loop) for each in ("first", "second"))
            second.server.set_model("echo", 2, second.model)
            for each in (first, second):
                await each.server.listen([each.sock])
            fleet, neighbours = following(controller)
            fleet.set_replicas("v1", {"first": first.address})
            await Lanes.until(lambda: fleet.target("echo", 1) is not None)
            found: list[Signature | None] = []
            neighbours.find("echo", LATEST, found.append)
            await Lanes.until(lambda: neighbours.directory.known)
            neighbours.find("echo", LATEST, found.append)
            for _ in range(9):
                await asyncio.sleep(0)
            assert len(found) == (0 if waits else 2)
            fleet.set_replicas("v2", {"second": second.address})
            await Lanes.until(lambda: len(found) == 2)
            assert None not in found and (fleet.target("echo", 2) is not None) == waits
            later = ModelEntry("{}", versions={**entry.versions, 3: VersionEntry(READY)}, traffic=traffic)
            controller.publisher.publish(models={"echo": later.to_dict()})
            await Lanes.until(lambda: 3 in neighbours.directory.models["echo"].versions)
            neighbours.find("echo", LATEST, found.append)
            assert len(found) == (2 if waits else 3)
            neighbours.close()
            await fleet.close()
            for each in (first, second):
                await each.server.drain(0.0)

    asyncio.run(run())


@pytest.mark.parametrize("config", [None, '{"max_batch_size": 8}'], ids=["unloaded", "changed"])
def test_a_call_that_waits_for_a_version_hears_what_has_become_of_the_model(config: str | None) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        controller = Controller()
        entry = ModelEntry("{}", versions={1: VersionEntry(READY), 2: VersionEntry(READY)})
        controller.publisher.publish(models={"echo": entry.to_dict()}, deployments={})
        with tempfile.TemporaryDirectory() as folder:
            first = Replica(folder, "first", loop)
            await first.server.listen([first.sock])
            fleet, neighbours = following(controller)
            fleet.set_replicas("v1", {"first": first.address})
            await Lanes.until(lambda: fleet.target("echo", 1) is not None)
            found: list[Signature | None] = []
            neighbours.find("echo", LATEST, found.append)
            await Lanes.until(lambda: neighbours.directory.known)
            for _ in range(9):
                await asyncio.sleep(0)
            assert not found
            gone = VersionEntry(UNAVAILABLE, UNLOADED)
            left = {1: VersionEntry(READY), 2: gone} if config else {1: gone, 2: gone}
            controller.publisher.publish(models={"echo": ModelEntry(config or "{}", versions=left).to_dict()})
            await Lanes.until(lambda: bool(found))
            assert [each and each.max_batch_size for each in found] == [8 if config else None]
            neighbours.close()
            await fleet.close()
            await first.server.drain(0.0)

    asyncio.run(run())


def test_the_controller_is_not_kept_waiting_for_who_follows_no_longer() -> None:
    async def run() -> None:
        controller = Controller()
        controller.publish(echo=VersionEntry(READY))
        fleet, neighbours = following(controller)
        neighbours.follow()
        await Lanes.until(lambda: len(controller.calls) == 2)
        neighbours.close()
        await Lanes.until(controller.calls[-1].cancelled)
        await fleet.close()

    asyncio.run(run())


def test_a_call_ends_though_the_replicas_of_its_model_cannot_be_watched_and_the_next_one_finds_them() -> None:
    watched: list[str] = []

    def watch_of(app: str, name: str, listener: Any) -> Any:
        watched.append(app)
        if len(watched) == 1:
            raise RuntimeError("can't start new thread")
        return lambda: None

    async def run() -> None:
        controller = Controller()
        controller.publish(echo=VersionEntry(READY))
        controller.publisher.publish(deployments={"echo#v1": ["echo", "v1"]})
        fleet, neighbours = following(controller, watch_of)
        neighbours.follow()
        await Lanes.until(lambda: neighbours.directory.known)
        told: list[Any] = []
        neighbours.find("echo", 1, told.append)
        await Lanes.until(lambda: told == [None])
        neighbours.find("echo", 1, told.append)
        await Lanes.until(lambda: len(watched) == 2)
        neighbours.close()
        await fleet.close()

    asyncio.run(run())


def test_a_load_by_a_model_is_handed_to_the_next_controller_where_one_dies_before_it_has_answered() -> None:
    class Commands:
        """Those of a controller that dies with the first, and of its successor."""

        def __init__(self, publisher: Publisher) -> None:
            self._publisher = publisher
            self.asked: list[tuple[Any, ...]] = []

        async def remote(self, *command: Any) -> dict[str, Any]:
            self.asked.append(command)
            if len(self.asked) == 1:
                raise ConnectionError("the actor has died")
            return {"error": None, "epoch": self._publisher.epoch, "generation": self._publisher.generation}

    async def run() -> None:
        controller: Any = Controller()
        controller.publish(echo=VersionEntry(READY))
        controller.load = Commands(controller.publisher)
        fleet, neighbours = following(controller)
        async with asyncio.timeout(10):
            await neighbours.load("echo", None, {})
        first, second = controller.load.asked
        assert first == second and first[1:] == ("echo", None, {})
        neighbours.close()
        await fleet.close()

    asyncio.run(run())
