import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from deployments.core.clock import LoopClock
from deployments.core.core import Core
from deployments.core.counts import Totals
from deployments.core.statistics import ModelStatistics
from deployments.replica.host_router import HostRouter
from deployments.schedulers.ensemble import ensemble_scheduler
from protocol.callers import caller
from protocol.infer import SEQUENCE_START, InferRequest, InferResponse
from protocol.signature import Signature
from repository_loader.traffic import Traffic
from tests.deployments.fakes import Answers, slow_queue
from tests.deployments.lane.harness import EchoModel, Lanes
from tests.deployments.schedulers.test_ensemble import model, step

ENSEMBLE = model(
    "e", "X:-1", "Y:-1", extra=f'platform: "ensemble" ensemble_scheduling {{ {step("echo", "X=X", "Y=Y")} }}'
)
ECHO = model("echo", "X:-1", "Y:-1")


class Here:
    """A version of the model in this process."""

    name, interface = "echo", Signature.from_config(ECHO).interface

    def __init__(self, version: int = 1) -> None:
        self.version = version
        self.requests: list[InferRequest] = []
        self.submit = self.requests.append
        self.ended: list[int | str] = []
        self.end_sequence = self.ended.append
        self.pool: Any = None

    def holds(self, sequence_id: int | str) -> bool:
        return False


def echoes(count: int = 1) -> Lanes:
    return Lanes(count, interface=Signature.from_config(ECHO).interface)


class Away:
    """An ensemble here whose only step runs behind a lane."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.model = lanes.replicas[0].model
        self.model.hold = True
        self.answers = Answers()
        signatures = {"echo": Signature.from_config(ECHO)}
        clock = LoopClock(asyncio.get_running_loop())
        self.core = Core(clock)
        self.router = router = HostRouter(self.core, lanes.fleet, clock, slow_queue())
        router.set_signatures(signatures)
        self.scheduler = ensemble_scheduler(ENSEMBLE, signatures, router, ModelStatistics("e", 1, Totals()), clock)

    async def start(self, columns: int = 2) -> InferRequest:
        """Return a request whose step is under way in the replica."""
        request = self.answers.request("r", inputs={"X": np.zeros((1, columns), np.float32)})
        self.scheduler.submit(request)
        await self.lanes.until(lambda: bool(self.model.held))
        return request

    async def drained(self) -> None:
        done = asyncio.Event()
        self.scheduler.drain(done.set)
        await asyncio.wait_for(done.wait(), 5)

    @property
    def lane(self) -> Any:
        target: Any = self.lanes.fleet.target("echo")
        (lane,) = target.choice.lanes
        return lane


@pytest.mark.parametrize("columns", [2, 100_000], ids=["small", "in-shared-memory"])
def test_a_cancelled_ensemble_ends_when_its_step_is_in_another_process(columns: int) -> None:
    async def run() -> None:
        async with echoes() as lanes:
            await lanes.open_arenas()
            away = Away(lanes)
            request = await away.start(columns)
            away.scheduler.cancel(request)
            await lanes.until(lambda: away.answers.order == ["r"])
            assert away.answers.error("r") == "Cancelled: "
            await lanes.until(lambda: len(away.model.cancelled) == 1)
            away.model.release()
            away.model.cancelled.clear()
            await away.drained()
            assert not away.lane.calls and not away.lane.inflight_bytes
            await lanes.until(lambda: away.lane._arena.taken_count == 0)

    asyncio.run(run())


def test_a_step_that_has_answered_is_not_answered_again_when_the_ensemble_is_cancelled() -> None:
    async def run() -> None:
        async with echoes() as lanes:
            away = Away(lanes)
            request = await away.start()
            lanes.replicas[0].die()
            await lanes.until(lambda: lanes.fleet.target("echo") is None)
            assert not away.answers.order  # the step waits for another replica
            lanes.fleet.expect(())
            await lanes.until(lambda: bool(away.answers.order))
            away.scheduler.cancel(request)
            await away.drained()
            assert away.answers.order == ["r"]

    asyncio.run(run())


@pytest.mark.parametrize("interface", ["as before", "another"])
def test_a_step_that_loses_its_replica_is_sent_only_to_one_of_the_interface_that_it_is_made_for(interface: str) -> None:
    async def run() -> None:
        async with echoes() as lanes:
            away, (replica,) = Away(lanes), lanes.replicas
            await away.start()
            replica.die()
            await lanes.until(lambda: lanes.fleet.target("echo") is None)
            away.scheduler.submit(away.answers.request("waits"))
            after = EchoModel()
            after.interface, after.hold = away.model.interface if interface == "as before" else interface, True
            replica.server.set_model("echo", 1, None)
            replica.server.set_model("echo", 1, after)
            await replica.come_back()
            if interface == "another":
                await lanes.until(lambda: sorted(away.answers.order) == ["r", "waits"])
                assert all("not at ready state" in away.answers.error(name) for name in ("r", "waits"))
                assert not after.held
            else:
                await lanes.until(lambda: len(after.held) == 2)
            await lanes.until(lambda: lanes.lanes_open == 1)

    asyncio.run(run())


def test_a_step_without_a_replica_is_refused() -> None:
    async def run() -> None:
        async with echoes() as lanes:
            away = Away(lanes)
            lanes.replicas[0].server.set_model("echo", 1, None)
            await lanes.until(lambda: lanes.fleet.target("echo") is None)
            away.scheduler.submit(away.answers.request("r"))
            await lanes.until(lambda: bool(away.answers.order))
            assert away.answers.error("r").endswith("unknown model: 'echo' is not at ready state")
            await away.drained()

    asyncio.run(run())


def test_a_step_of_another_interface_is_refused() -> None:
    async def run() -> None:
        async with Lanes(interface="another") as lanes:
            away = Away(lanes)
            away.scheduler.submit(away.answers.request("r"))
            await lanes.until(lambda: bool(away.answers.order))
            assert away.answers.error("r").startswith("Unavailable: in ensemble 'e', ")
            assert not away.router.fits("echo", -1, Signature.from_config(ECHO).interface)
            assert not away.model.held
            await away.drained()

    asyncio.run(run())


@pytest.mark.parametrize("traffic", [Traffic({1: 100.0, 2: 0.0}), Traffic({}, {2: 50.0})], ids=["weights", "shadow"])
def test_a_version_without_a_share_gets_no_step_though_no_other_has_a_replica(traffic: Traffic) -> None:
    async def run() -> None:
        async with echoes(2) as lanes:
            first, second = lanes.replicas
            second.server.set_model("echo", 1, None)
            second.server.set_model("echo", 2, second.model)
            await lanes.until(lambda: set(lanes.fleet.versions("echo")) == {1, 2} and lanes.lanes_open == 1)
            away = Away(lanes)
            away.router.set_traffic({"echo": traffic})
            first.die()
            await lanes.until(lambda: set(lanes.fleet.versions("echo")) == {2})
            away.scheduler.submit(away.answers.request("waits"))
            await lanes.until(lambda: lanes.fleet.ongoing("echo", 1) == 1)
            lanes.fleet.expect({("echo", 2)})
            await lanes.until(lambda: away.answers.order == ["waits"])
            away.scheduler.submit(away.answers.request("refused"))
            await lanes.until(lambda: away.answers.order == ["waits", "refused"])
            assert away.answers.error("refused").endswith("unknown model: 'echo' is not at ready state")
            assert not second.model.held
            await away.drained()

    asyncio.run(run())


def test_a_sequence_of_steps_stays_at_its_version_when_weights_come_and_go() -> None:
    async def run() -> None:
        async with echoes(2) as lanes:
            first, second = lanes.replicas
            for replica in lanes.replicas:
                replica.model.sequence_idle_us = 60_000_000
            second.server.set_model("echo", 1, None)
            first.server.set_model("echo", 1, first.model)
            second.server.set_model("echo", 2, second.model)
            await lanes.until(lambda: set(lanes.fleet.versions("echo")) == {1, 2} and lanes.lanes_open == 1)
            away = Away(lanes)
            second.model.hold = True

            async def ask(name: str, sequence_id: str, flags: int = 0) -> int:
                """Return the version that a request of a sequence gets to."""
                request = away.answers.request(name, inputs={"X": np.zeros((1, 2), np.float32)})
                request.sequence_id, request.flags = sequence_id, flags
                away.scheduler.submit(request)
                await lanes.until(lambda: bool(first.model.held or second.model.held))
                version = 1 if first.model.held else 2
                away.scheduler.cancel(request)
                first.model.held.clear()
                second.model.held.clear()
                return version

            assert await ask("without weights", "a", SEQUENCE_START) == 2
            away.router.set_traffic({"echo": Traffic({1: 1.0})})
            assert [await ask("goes on", "a"), await ask("begins", "b", SEQUENCE_START)] == [2, 1]
            away.router.set_traffic({"echo": Traffic({2: 1.0})})
            assert [await ask("other weights", "b"), await ask("begins anew", "c", SEQUENCE_START)] == [1, 2]
            away.router.set_traffic({})
            assert await ask("no weights", "b") == 1
            await away.drained()

    asyncio.run(run())


def test_a_sequence_that_starts_anew_in_another_version_here_ends_in_the_one_that_had_it() -> None:
    async def run() -> None:
        clock, answers = LoopClock(asyncio.get_running_loop()), Answers()
        router = HostRouter(core := Core(clock), None, clock, slow_queue())
        one, two = Here(1), Here(2)
        for version in (one, two):
            core.add(version)  # type: ignore[arg-type]

        def ask(flags: int) -> None:
            request = answers.request("r")
            request.sequence_id, request.flags = "s", flags
            router.infer("echo", -1, request)

        router.set_traffic({"echo": Traffic({1: 1.0})})
        ask(SEQUENCE_START)
        router.set_traffic({"echo": Traffic({2: 1.0})})
        ask(0)
        assert (len(one.requests), one.ended) == (2, [])
        ask(SEQUENCE_START)
        assert (len(two.requests), one.ended) == (1, ["s"])

    asyncio.run(run())


def test_weights_of_one_model_say_nothing_about_others() -> None:
    async def run() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        router = HostRouter(core := Core(clock), None, clock, slow_queue())
        one, two = Here(1), Here(2)
        for version in (one, two):
            core.add(version)  # type: ignore[arg-type]
        router.set_traffic({"other": Traffic({1: 1.0})})
        router.infer("echo", -1, request := Answers().request("r"))
        assert (one.requests, two.requests) == ([], [request]) and router.reaches_share("echo")

    asyncio.run(run())


def test_a_model_may_be_asked_by_what_waits_for_it_while_an_instance_is_sure_to_become_free() -> None:
    async def run() -> None:
        clock, answers = LoopClock(asyncio.get_running_loop()), Answers()
        router = HostRouter(core := Core(clock), None, clock, slow_queue())
        here = Here()
        here.pool = SimpleNamespace(instance_count=2)
        core.add(here)  # type: ignore[arg-type]
        for name in ("first", "second", "third"):
            request = answers.request(name)
            request.callers = (caller("echo", "1"),)
            router.infer("echo", 1, request)
            await asyncio.sleep(0)
            if name == "second":
                assert "'echo' would wait for an instance of its own" in answers.error("second")
                here.requests[0].reply(here.requests[0], InferResponse({}))
        assert [request.id for request in here.requests] == ["first", "third"]
        assert answers.order == ["second", "first"]

    asyncio.run(run())


def test_a_version_that_only_another_process_has_is_asked_there_though_one_is_here() -> None:
    async def run() -> None:
        async with echoes() as lanes:
            lanes.replicas[0].server.set_model("echo", 1, None)
            lanes.replicas[0].server.set_model("echo", 2, lanes.replicas[0].model)
            await lanes.until(lambda: set(lanes.fleet.versions("echo")) == {2})
            away = Away(lanes)
            away.core.add(here := Here())  # type: ignore[arg-type]
            requests = [away.answers.request(name) for name in ("here", "there", "highest")]
            away.router.infer("echo", 1, requests[0])
            away.router.infer("echo", 2, requests[1])
            assert here.requests == requests[:1]
            await lanes.until(lambda: len(away.model.held) == 1)
            assert away.router.reaches_share("echo")
            away.router.set_traffic({"echo": Traffic({3: 1.0})})
            assert not away.router.reaches_share("echo")
            away.router.set_traffic({"echo": Traffic({2: 1.0})})
            assert away.router.reaches_share("echo")
            away.router.infer("echo", -1, requests[2])
            await lanes.until(lambda: len(away.model.held) == 2)

    asyncio.run(run())
