"""The scaler's loop, at a Serve that refuses."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from deployments.control.scaler import Scaler
from deployments.core.counts import Counts, Label, Totals
from deployments.serve_internals import DeploymentState
from repository_loader.autoscaling import Autoscaling
from repository_loader.deployment_plan import Place
from tests.deployments.control.test_autoscaler import KEY, deployment

RULES = Autoscaling(1, 6, target_ongoing_requests=4)


def test_what_serve_refused_is_not_asked_for_once_the_model_has_gone() -> None:
    asked: list[tuple[Place, int]] = []
    was_asked = asyncio.Event()

    def refuse(app: str, name: str, count: int) -> None:
        asked.append(((app, name), count))
        loop.call_soon_threadsafe(was_asked.set)
        raise RuntimeError("there is no such deployment")

    async def twice() -> None:
        for _ in range(2):
            was_asked.clear()
            await was_asked.wait()

    async def scenario() -> None:
        scaler = Scaler(loop, Totals(), dict, refuse)
        running = loop.create_task(scaler.run())
        await scaler.follow([deployment(RULES)])
        scaler.take("ingress", {"m/1": (12.0, 100.0)})
        await twice()
        assert set(asked) == {(KEY, 3)}
        await scaler.follow([replace(deployment(RULES), app_name="other")])
        asked.clear()
        await twice()
        assert {app for (app, _), _ in asked} == {"other"}
        running.cancel()

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        runner.run(scenario())


class FullRows(Totals):
    """There is room for no row once it is `full`."""

    full = False

    def row(self, label: Label) -> Counts:
        if self.full:
            raise OSError("No space left on device")
        return super().row(label)


def test_an_error_ends_no_scaling_and_what_was_decided_is_told_then(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        asked: asyncio.Queue[tuple[Place, int]] = asyncio.Queue()
        rows = FullRows()
        scaler = Scaler(
            loop, rows, dict, lambda app, name, count: loop.call_soon_threadsafe(asked.put_nowait, ((app, name), count))
        )
        running = loop.create_task(scaler.run())
        await scaler.follow([deployment(RULES)])
        rows.full = True
        scaler.take("ingress", {"m/1": (12.0, 100.0)})
        async with asyncio.timeout(10):
            assert await asked.get() == (KEY, 3)
        assert "the autoscaler tries again" in caplog.text
        running.cancel()

    asyncio.run(scenario())


FAILED = "A replica failed to start with exception. Retrying. Error: ray::ServeReplica (pid=2) no weights"


class Starting:
    """A deployment of which no replica has started yet, as Serve tells of it."""

    def __init__(self, state: DeploymentState | None) -> None:
        self.state = state
        self.count = 0
        self.asked = 0
        self.told: list[tuple[Place, int]] = []
        self.away = False
        self.target = 1

    def targets(self) -> dict[Place, int]:
        return {KEY: self.target}

    def counts(self) -> dict[Place, int]:
        self.asked += 1
        if self.away:
            raise RuntimeError("Serve's controller is away")
        return {KEY: self.count}

    def states(self) -> dict[str, dict[str, DeploymentState]]:
        return {} if self.state is None else {KEY[0]: {KEY[1]: self.state}}

    def set_target(self, app: str, name: str, count: int) -> None:
        self.told.append(((app, name), count))

    async def scaled(self, served: Callable[[], None]) -> None:
        """Scale it to none where nobody asks, `served` after 1.5 s."""
        scaler = Scaler(asyncio.get_running_loop(), Totals(), self.targets, self.set_target, self.counts, self.states)
        running = asyncio.create_task(scaler.run())
        await scaler.follow([deployment(Autoscaling(0, 6, target_ongoing_requests=4, downscale_delay_s=0.3))])
        await asyncio.sleep(1.5)
        served()
        async with asyncio.timeout(10):
            while not self.told:
                await asyncio.sleep(0.01)
        running.cancel()


@pytest.mark.parametrize("state", [None, DeploymentState("UPDATING", ""), DeploymentState("UPSCALING", "")])
@pytest.mark.parametrize("away", [False, True])
def test_nothing_is_scaled_to_none_before_its_first_replica_has_started(
    state: DeploymentState | None, away: bool
) -> None:
    starting = Starting(state)
    starting.away = away

    def served() -> None:
        assert starting.asked and not starting.told
        starting.count, starting.away = 1, False

    asyncio.run(starting.scaled(served))
    assert starting.told == [(KEY, 0)]


@pytest.mark.parametrize(
    "state",
    [
        DeploymentState("DEPLOY_FAILED", ""),
        DeploymentState("UPSCALING", "1 replica that has taken more than 30s to be scheduled."),
    ],
    ids=["fails", "has no room"],
)
def test_what_cannot_start_is_scaled_to_none(state: DeploymentState) -> None:
    starting = Starting(state)

    def served() -> None:
        assert starting.told == [(KEY, 0)]

    asyncio.run(starting.scaled(served))


@pytest.mark.parametrize("before", ["", FAILED.replace("pid=2", "pid=1")])
def test_what_fails_to_start_again_and_again_is_known_and_scaled_to_none_when_nobody_asks(before: str) -> None:
    async def scenario() -> None:
        starting = Starting(DeploymentState("HEALTHY", before))
        starting.target = 0
        scaler = Scaler(
            asyncio.get_running_loop(),
            Totals(),
            starting.targets,
            starting.set_target,
            starting.counts,
            starting.states,
        )
        running = asyncio.create_task(scaler.run())
        await scaler.follow([deployment(Autoscaling(0, 6, target_ongoing_requests=4, downscale_delay_s=0.3))])

        def fails() -> bool:
            assert starting.state is not None
            return scaler.fails_to_start(*KEY, starting.state)

        async with asyncio.timeout(20):
            assert not fails()
            scaler.take("ingress", {"m/1": (1.0, 1.0)})
            while starting.told != [(KEY, 1)]:
                await asyncio.sleep(0.01)
            assert not fails()
            await asyncio.sleep(4)  # the report is forgotten
            assert not starting.told[1:]
            starting.state = DeploymentState("HEALTHY", FAILED)
            assert fails()
            while starting.told != [(KEY, 1), (KEY, 0)]:
                await asyncio.sleep(0.01)
            assert not fails()
        running.cancel()

    asyncio.run(scenario())


def test_serve_is_asked_no_more_once_a_replica_has_started() -> None:
    starting = Starting(None)
    starting.count = 1
    asyncio.run(starting.scaled(lambda: None))
    assert starting.asked == 1
