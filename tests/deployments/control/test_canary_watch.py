"""When the controller takes a canary on, and what it goes by after it has stood still."""

import asyncio
from types import SimpleNamespace
from typing import Any

from deployments.control.canary import ROLLED_BACK, RUNNING, Canary, Rules
from deployments.control.canary_watch import CanaryWatch
from deployments.control.desired_state import DesiredState
from deployments.control.directory import READY
from repository_loader.deployment_plan import Plan
from repository_loader.traffic import Traffic

READY_VERSION = SimpleNamespace(state=READY, held=False)


class State:
    """The desired state, which is stored nowhere."""

    def __init__(self, canary: Canary) -> None:
        nothing: Any = SimpleNamespace(models={})
        facts: Any = None
        self.lock = asyncio.Lock()
        self.desired = DesiredState(nothing, Plan((), (), {}), facts, canaries={"m": canary})

    async def until(self, condition: Any) -> DesiredState:
        return self.desired

    async def change(self, desired: DesiredState) -> None:
        self.desired = desired


class Watched:
    """A canary of 60 s a step, of which one ingress reports."""

    def __init__(self) -> None:
        self.state: Any = State(Canary.begun(Rules(2, min_requests=100), Traffic(), (1, 2), None, 1.0))
        self.now_s = 100.0
        table: Any = SimpleNamespace(find=lambda name, version: READY_VERSION)
        self._watch = CanaryWatch(self.state, table, lambda: self.now_s)

    @property
    def canary(self) -> Canary:
        canary: Canary = self.state.desired.canaries["m"]
        return canary

    def report(self, requests: int, errors: int) -> None:
        report = {"step": self.canary.measured, "requests": requests, "errors": errors, "buckets": {}}
        self._watch.take("ingress", {"m": report})

    async def look(self, seconds: float) -> None:
        for _ in range(round(2 * seconds)):
            self.now_s += 0.5
            await self._watch.look()


def test_a_controller_that_stood_still_takes_no_canary_on_before_it_has_heard_how_it_did_meanwhile() -> None:
    async def run() -> None:
        watched = Watched()
        watched.report(1000, 0)
        await watched.look(59.5)
        watched.now_s += 60.0  # the canary fails, of which the reports lie in the controller's sockets
        await watched.look(0.5)
        assert (watched.canary.step, watched.canary.state) == (0, RUNNING)
        watched.report(2000, 500)
        await watched.look(0.5)
        assert (watched.canary.step, watched.canary.state) == (0, ROLLED_BACK)

    asyncio.run(run())


def test_a_step_lasts_for_its_interval_beside_a_standstill() -> None:
    async def run() -> None:
        watched = Watched()
        watched.report(1000, 0)
        await watched.look(30.0)
        watched.now_s += 600.0
        await watched.look(30.0)
        assert watched.canary.step == 0
        await watched.look(2.0)
        assert watched.canary.step == 1

    asyncio.run(run())
