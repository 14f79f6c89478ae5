"""Where a request goes while the only replica of a version is being replaced."""

import asyncio
from typing import Any

import pytest

from app.service.health import Health
from app.service.models import Models
from app.service.routing import Routing
from deployments.control.directory import LOADING, READY, UNAVAILABLE, UNLOADED, UNLOADING, Directory, VersionEntry
from deployments.core.counts import MODEL, Label
from deployments.core.refusals import Refusals
from deployments.lane import client
from deployments.lane.frames import PROTOCOL_VERSION
from protocol.errors import Unavailable
from tests.app.http.served import FakeHost, entry
from tests.deployments.lane.harness import Lanes, Sink


class Served:
    """Replicas of `echo`: the first has versions 1 and 2, the second version 1, the third version 2."""

    def __init__(self, lanes: Lanes) -> None:
        host: Any = FakeHost()
        self.host = host
        self.lanes = lanes
        self.models = Models(host, lanes.fleet)
        self.routing = Routing(self.models, Refusals(lanes.counted))
        self.versions = {number: VersionEntry(READY) for number in (1, 2)}
        model = entry("echo")
        model.versions = self.versions
        self.models.directory = Directory("epoch", 1, True, {"echo": model})
        first, _, third = lanes.replicas
        for replica in (first, third):
            replica.server.set_model("echo", 2, replica.model)
        third.server.set_model("echo", 1, None)

    async def dies(self) -> None:
        """Have the first replica die as the only one."""
        self.lanes.publish(self.lanes.replicas[0])
        await self.lanes.until(lambda: self.ready() == [1, 2] and self.lanes.lanes_open == 1)
        self.lanes.replicas[0].die()
        await self.lanes.until(lambda: not self.ready())

    def ready(self) -> list[int]:
        return self.models.ready_versions("echo")


def run(test: Any) -> None:
    async def started() -> None:
        async with Lanes(3) as lanes:
            await test(Served(lanes))

    asyncio.run(started())


def test_a_request_goes_to_a_version_that_is_ready_before_it_waits_for_one_that_died() -> None:
    async def test(served: Served) -> None:
        await served.dies()
        with pytest.raises(Unavailable):
            served.routing.target("echo")  # which readiness asks
        assert served.routing.infer_target("echo").version == 2
        assert not served.routing.infer_target("echo").ready
        assert served.routing.infer_target("echo", 1).version == 1
        sink = Sink()
        served.routing.infer_target("echo", 2).submit((b"waits",), None, sink)
        served.lanes.publish(served.lanes.replicas[1])
        await served.lanes.until(lambda: served.ready() == [1])
        assert served.routing.infer_target("echo").version == 1
        assert served.routing.infer_target("echo").ready
        assert served.routing.infer_target("echo", 2).version == 2
        assert not sink.done.is_set()
        served.lanes.publish(*served.lanes.replicas[1:])
        await asyncio.wait_for(sink.done.wait(), 5)
        assert (sink.error, sink.responses) == (None, [b"waits"])
        assert served.routing.infer_target("echo").version == 2
        assert served.routing.infer_target("echo").ready

    run(test)


def test_a_version_that_had_no_replica_is_not_ready_while_none_starts_and_its_requests_wait() -> None:
    async def test(served: Served) -> None:
        served.lanes.fleet.set_sleepers({("echo", 1): 60.0}, lambda: None)
        served.lanes.publish(served.lanes.replicas[0])
        await served.lanes.until(lambda: served.lanes.lanes_open == 1)
        served.lanes.replicas[0].die()
        await served.lanes.until(lambda: served.lanes.lanes_open == 0)
        health = Health(served.models, served.routing, strict_readiness=True)
        del served.versions[2]
        assert health.model_ready("echo", 1) and health.server_ready()
        served.versions[1].lost_its_replicas("no weights")
        assert not health.model_ready("echo", 1) and not health.model_ready("echo") and not health.server_ready()
        sink = Sink()
        served.routing.infer_target("echo").submit((b"waits",), None, sink)
        served.lanes.publish(served.lanes.replicas[1])
        await asyncio.wait_for(sink.done.wait(), 5)
        assert (sink.error, sink.responses) == (None, [b"waits"])
        assert health.model_ready("echo")

    run(test)


def test_a_version_that_may_have_no_replica_is_not_ready_while_it_loads() -> None:
    async def test(served: Served) -> None:
        served.lanes.fleet.set_sleepers({("echo", 3): 60.0}, lambda: None)
        served.versions[3] = VersionEntry(LOADING)
        health = Health(served.models, served.routing, strict_readiness=True)
        assert not health.model_ready("echo", 3)
        assert served.routing.infer_target("echo", 3).ready
        served.versions[3].loaded("", 0.1)
        assert health.model_ready("echo", 3)

    run(test)


def test_what_waits_is_for_the_version_that_has_a_weight() -> None:
    async def test(served: Served) -> None:
        served.models.directory.models["echo"].traffic = {"weights": {"1": 100}}
        await served.dies()
        assert served.routing.infer_target("echo").version == 1

    run(test)


@pytest.mark.parametrize("reason", [UNLOADED, "the weights are gone"])
def test_nothing_waits_for_a_version_that_is_not_served_any_more(reason: str) -> None:
    async def test(served: Served) -> None:
        await served.dies()
        served.versions[2].failed_to_load(reason)
        assert served.routing.infer_target("echo").version == 1
        with pytest.raises(Unavailable):
            served.routing.infer_target("echo", 2)
        served.versions[1].lost_its_replicas()
        assert served.routing.infer_target("echo").version == 1

    run(test)


@pytest.mark.parametrize(
    "state",
    [
        VersionEntry(READY, held=True),
        VersionEntry(UNLOADING),
        VersionEntry(UNAVAILABLE, UNLOADED),
        VersionEntry(UNAVAILABLE, "a step of the ensemble failed"),
    ],
    ids=["on trial", "unloading", "unloaded", "failed"],
)
def test_a_version_that_takes_no_requests_gets_none_by_its_number_either(state: VersionEntry) -> None:
    async def test(served: Served) -> None:
        served.lanes.publish(served.lanes.replicas[0])
        await served.lanes.until(lambda: served.ready() == [1, 2])
        assert served.routing.infer_target("echo", 2).version == 2
        served.versions[2] = state
        assert served.routing.infer_target("echo").version == 1
        assert served.routing.infer_target("echo", 1).version == 1
        with pytest.raises(Unavailable):
            served.routing.infer_target("echo", 2)

    run(test)


def test_what_waits_is_not_counted_as_refused() -> None:
    async def test(served: Served) -> None:
        await served.dies()
        served.routing.infer_target("echo").submit((b"waits",), None, Sink())
        assert Label(MODEL, "echo", 2) not in served.lanes.counted.rows

    run(test)


@pytest.mark.parametrize(("weights", "meant"), [({}, 2), ({"1": 100, "2": 0}, 1)], ids=["none", "of the lower"])
def test_what_finds_no_replica_is_counted_for_the_version_that_it_was_meant_for(
    weights: dict[str, float], meant: int
) -> None:
    async def test(served: Served) -> None:
        served.models.directory.models["echo"].traffic = {"weights": weights}
        served.lanes.fleet.forget("echo#v1")
        await served.lanes.until(lambda: not served.ready())
        with pytest.raises(Unavailable, match=f"version {meant} is not at ready state"):
            served.routing.infer_target("echo")
        assert [label for label in served.lanes.counted.rows if label.kind == MODEL] == [Label(MODEL, "echo", meant)]

    run(test)


def test_a_copy_is_asked_only_while_it_is_one_of_what_the_directory_says() -> None:
    async def test(served: Served) -> None:
        served.lanes.publish(served.lanes.replicas[0])
        await served.lanes.until(lambda: served.ready() == [1, 2])
        host, directory, elsewhere = served.host, served.models.directory, served.routing.target("echo", 1)
        host.ready, host.copies, host.digests = {("echo", 1)}, [("echo", 1)], {("echo", 1): "old"}
        assert served.routing.target("echo", 1) is elsewhere
        directory.copies = {"echo/1": {"digest": "old"}}
        assert served.routing.target("echo", 1) is host.echo
        directory.copies = {"echo/1": {"digest": "new"}}
        assert served.routing.target("echo", 1) is elsewhere
        host.digests = {("echo", 1): "new"}
        assert served.routing.target("echo", 1) is host.echo
        host.ready = set()
        assert served.routing.target("echo", 1) is elsewhere
        host.ready, host.copies = {("echo", 1)}, []
        directory.copies = {}
        assert served.routing.target("echo", 1) is host.echo  # embedded, or about to leave

    run(test)


def test_who_asks_for_a_model_whose_replicas_are_of_another_version_hears_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(served: Served) -> None:
        served.models.directory.hosted = {"echo#v1": ["other"], "echo": ["echo"]}
        served.lanes.fleet.forget("echo#v1")
        await served.lanes.until(lambda: not served.ready())
        monkeypatch.setattr(client, "PROTOCOL_VERSION", 99)
        served.lanes.fleet.set_replicas("echo", {"a": served.lanes.replicas[0].address})
        await served.lanes.until(lambda: bool(served.models.refusal("echo")))
        words = f"is not at ready state: the replica speaks version {PROTOCOL_VERSION} of the lane protocol, not 99"
        with pytest.raises(Unavailable, match=words):
            served.routing.infer_target("echo")
        monkeypatch.setattr(client, "PROTOCOL_VERSION", PROTOCOL_VERSION)
        await served.lanes.until(lambda: served.ready() == [1, 2])
        assert served.models.refusal("echo") == "", "it accepts the lane"

    run(test)
