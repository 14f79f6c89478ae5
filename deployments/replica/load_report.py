"""Tells the controller what is under way from this process to the models that scale with it."""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import Any, Final

from deployments.control.answer import answer
from deployments.control.autoscaler import REPORT_S
from deployments.control.directory import ModelEntry
from deployments.lane.fleet import Fleet
from repository_loader.overrides import read_overrides

logger = logging.getLogger(__name__)

_SAMPLES: Final = 5
_ANSWER_TIMEOUT_S: Final = 5.0


class LoadReport:
    """Samples the load of each autoscaled version, and reports its mean while there is any."""

    def __init__(self, controller: Any, fleet: Fleet) -> None:
        self._controller = controller
        self._fleet = fleet
        self._id = secrets.token_hex(8)
        self._scaled: set[tuple[str, int]] = set()
        self._sent: dict[tuple[str, int], int] = {}
        self._some = asyncio.Event()

    def follow(self, models: Mapping[str, ModelEntry]) -> None:
        """Take from a directory which versions are served, which scale, and which of these may have no replica."""
        self._scaled = set()
        sleepers: dict[tuple[str, int], float] = {}
        for name, entry in models.items():
            config = entry.model_config if "autoscaling." in entry.config else None
            rules = None if config is None else read_overrides(config).autoscaling
            if rules is not None:
                versions = {(name, number) for number, state in entry.versions.items() if not state.failed}
                self._scaled |= versions
                if rules.min_replicas == 0:
                    sleepers |= dict.fromkeys(versions, rules.start_timeout_s)
        self._fleet.set_sleepers(sleepers, self._some.set)
        if self._scaled:
            self._some.set()

    async def run(self) -> None:
        """Report for ever; without a controller, nothing scales."""
        silent = True
        while True:
            if not self._scaled:
                self._some.clear()
                await self._some.wait()
            rows = await self._sample()
            if rows or not silent:
                try:
                    await answer(self._controller.report_load.remote(self._id, rows), _ANSWER_TIMEOUT_S)
                except Exception as error:  # what is said next counts
                    logger.debug("the controller took no report of the load: %s", type(error).__name__)
            silent = not rows

    async def _sample(self) -> dict[str, tuple[float, float]]:
        """Return the mean of requests under way and the rate of new ones, by `<model>/<version>`."""
        ongoing = dict.fromkeys(self._scaled, 0)
        for _ in range(_SAMPLES):
            await asyncio.sleep(REPORT_S / _SAMPLES)
            for key in ongoing:
                ongoing[key] += self._fleet.ongoing(*key)
        rows = {}
        for (name, version), total in ongoing.items():
            sent = self._fleet.sent(name, version)
            began, self._sent[name, version] = sent - self._sent.get((name, version), 0), sent
            if total or began:
                rows[f"{name}/{version}"] = (total / _SAMPLES, max(began, 0) / REPORT_S)
        return rows
