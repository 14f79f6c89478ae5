"""Takes canaries from step to step, or back, by what was measured of their requests."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from deployments.control.canary import Canary, Figures
from deployments.control.current_state import CurrentState
from deployments.control.desired_state import DesiredState, with_traffic
from deployments.control.directory import LOADING, READY
from deployments.control.model_table import ModelTable

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.5
_STILL_S: Final = 3.0


class CanaryWatch:
    """A loop of the controller; it waits while there is no canary.

    What is measured in a step is the sum of what each process says that it has measured in it, so that a controller
    that takes over knows it too; the time of the step begins anew for that one. A time without looks is no part of a
    step: the controller stood still, and has not read yet what was measured in it.
    """

    def __init__(self, state: CurrentState, table: ModelTable, clock: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._table = table
        self._clock = clock
        self._since_s: dict[str, float] = {}
        self._looked_s = clock()
        self._reports: dict[str, dict[str, Mapping[str, Any]]] = {}

    def take(self, reporter: str, reports: Mapping[str, Mapping[str, Any]]) -> None:
        """Take all that an ingress or a replica has measured, by model; see `VersionMeter`."""
        for name, report in reports.items():
            self._reports.setdefault(name, {})[reporter] = report

    async def run(self) -> None:
        """Watch for ever."""
        while True:
            await self._state.until(lambda desired: any(each.measured for each in desired.canaries.values()) or None)
            try:
                await self.look()
            except Exception:
                logger.exception("the canaries are looked at again in %g s", _LOOK_S)
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> None:
        """Bring every canary on, or back, where that is due."""
        async with self._state.lock:
            desired = await self._state.until(lambda desired: desired)
            changed = desired
            running = {name: each for name, each in desired.canaries.items() if each.measured}
            now_s = self._clock()
            still_s, self._looked_s = now_s - self._looked_s, now_s
            if still_s > _STILL_S:
                self._since_s = {step: min(since_s + still_s, now_s) for step, since_s in self._since_s.items()}
                return
            self._since_s = {each.measured: self._since_s.get(each.measured, now_s) for each in running.values()}
            self._reports = {name: reports for name, reports in self._reports.items() if name in running}
            for name, canary in running.items():
                changed = self._judge(changed, name, canary)
            if changed is not desired:
                await self._state.change(changed)

    def _judge(self, desired: DesiredState, name: str, canary: Canary) -> DesiredState:
        entry = self._table.find(name, canary.rules.version)
        if entry is not None and (entry.state == LOADING or entry.held):
            return desired  # this controller does not know yet
        reports = [each for each in self._reports.get(name, {}).values() if each["step"] == canary.measured]
        figures = Figures.sum(reports)
        ready = entry is not None and entry.state == READY
        verdict = canary.verdict(figures, self._clock() - self._since_s[canary.measured], ready=ready)
        if verdict is None:
            return desired
        after = canary.rolled_back(verdict, figures, time.time()) if verdict else canary.advanced(figures, time.time())
        log = logger.error if verdict else logger.info
        log("canary version %d of '%s': %s", canary.rules.version, name, after.events[-1].text)
        return with_traffic(desired, name, after.traffic, after)
