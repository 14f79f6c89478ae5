import asyncio
from typing import Any

import pytest

from deployments.control.directory import ModelEntry
from deployments.core.clock import LoopClock
from deployments.core.core import LATEST, Core
from deployments.core.counts import Totals
from deployments.core.refusals import Refusals
from deployments.lane.fleet import Fleet
from deployments.replica.canary_meters import CanaryMeters
from deployments.replica.directory_neighbours import DirectoryNeighbours
from deployments.replica.group_watch import GroupWatch
from deployments.replica.host_router import HostRouter
from deployments.replica.traffic_report import TrafficReport
from protocol.errors import Cancelled, InvalidArgument, ServingError, Unavailable
from protocol.infer import InferResponse
from repository_loader.traffic import Traffic
from tests.deployments.fakes import Answers, slow_queue
from tests.deployments.lane.harness import NODE, Lanes
from tests.deployments.replica.test_directory_neighbours import Controller, router_over
from tests.deployments.replica.test_host_router import Here


def canary(step: str = "c/0") -> dict[str, ModelEntry]:
    return {"echo": ModelEntry(traffic={"weights": {"2": 1}, "step": step, "canary_version": 2})}


def measured(result: InferResponse | ServingError, version: int = LATEST) -> tuple[int, int, int]:
    """Return how many requests, failures and latencies are counted of a request to a canary of this process."""

    async def run() -> tuple[int, int, int]:
        clock = LoopClock(asyncio.get_running_loop())
        router = HostRouter(core := Core(clock), None, clock, slow_queue())
        core.add(Here(1))  # type: ignore[arg-type]
        core.add(second := Here(2))  # type: ignore[arg-type]
        router.canaries.follow(canary())
        router.set_traffic({"echo": Traffic(weights={2: 1})})
        router.infer("echo", version, Answers().request("r"))
        (request,) = second.requests
        request.reply(request, result)
        row = router.canaries.to_dict()["echo"]
        return row["requests"], row["errors"], sum(row["buckets"].values())

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("result", "counted"),
    [
        pytest.param(InferResponse({}), (1, 0, 1), id="answered"),
        pytest.param(InferResponse({}, final=False), (0, 0, 0), id="more-to-come"),
        pytest.param(Unavailable("full"), (1, 1, 0), id="unavailable"),
        pytest.param(InvalidArgument("wrong"), (1, 0, 0), id="wrong-request"),
        pytest.param(Cancelled("given up"), (0, 0, 0), id="cancelled"),
    ],
)
def test_what_becomes_of_a_step_at_a_canary_is_counted(
    result: InferResponse | ServingError, counted: tuple[int, int, int]
) -> None:
    assert measured(result) == counted


def test_a_step_that_names_its_version_is_not_counted() -> None:
    assert measured(InferResponse({}), version=2) == (0, 0, 0)


def test_steps_are_not_copied() -> None:
    async def run() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        router = HostRouter(core := Core(clock), None, clock, slow_queue())
        core.add(first := Here(1))  # type: ignore[arg-type]
        core.add(second := Here(2))  # type: ignore[arg-type]
        router.set_traffic({"echo": Traffic(shadow={2: 100})})
        router.infer("echo", LATEST, Answers().request("r"))
        await asyncio.sleep(0)
        assert (len(first.requests), len(second.requests)) == (1, 0)

    asyncio.run(run())


def test_each_step_of_a_canary_is_counted_anew() -> None:
    meters, answers = CanaryMeters(), Answers()
    for step, requests in (("c/0", 1), ("c/0", 2), ("c/1", 1)):
        meters.follow(canary(step))
        request = answers.request("r")
        meters.measure("echo", 2, request)
        request.reply(request, InferResponse({}))
        assert meters.to_dict()["echo"]["requests"] == requests
    meters.follow({"echo": ModelEntry()})
    assert not meters.to_dict()


class Reports:
    """The controller, as far as it is told of canaries."""

    def __init__(self) -> None:
        self.report_traffic = self
        self.came: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def remote(self, reporter: str, rows: dict[str, Any]) -> asyncio.Future[None]:
        if not self.came.done():
            self.came.set_result(rows)
        taken = asyncio.get_running_loop().create_future()
        taken.set_result(None)
        return taken


def test_the_controller_hears_only_of_canaries_that_have_got_requests() -> None:
    async def run() -> None:
        reports = Reports()
        none, some = ({name: {"step": "c/0", "requests": count}} for name, count in (("none", 0), ("some", 1)))
        report = TrafficReport(reports, lambda: none, lambda: none | some)
        report.follow(canary())
        reporting = asyncio.create_task(report.run())
        assert await asyncio.wait_for(reports.came, 5) == some
        reporting.cancel()
        await asyncio.wait({reporting})

    asyncio.run(run())


def test_the_controller_hears_what_came_of_steps_at_canaries() -> None:
    class Listening(Controller):
        """One that is told at once."""

        def __init__(self) -> None:
            super().__init__()
            self.report_traffic = Reports()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        controller = Listening()
        controller.publisher.publish(models={"echo": canary()["echo"].to_dict()}, deployments={})
        fleet = Fleet(NODE, loop, lambda: None, Refusals(Totals()))
        watch = GroupWatch(fleet, loop, 0.0, lambda app, name, listener: lambda: None)
        router = router_over(fleet)
        neighbours = DirectoryNeighbours(loop, fleet, watch, router, lambda: controller)
        neighbours.follow()
        await Lanes.until(lambda: neighbours.directory.known)
        request = Answers().request("r")
        router.canaries.measure("echo", 2, request)
        request.reply(request, Unavailable("full"))
        rows = await asyncio.wait_for(controller.report_traffic.came, 5)
        assert (rows["echo"]["step"], rows["echo"]["requests"], rows["echo"]["errors"]) == ("c/0", 1, 1)
        neighbours.close()
        await fleet.close()

    asyncio.run(run())
