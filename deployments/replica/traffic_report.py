"""Tells the controller what the requests have come to that canaries got from this process."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

from deployments.control.answer import answer
from deployments.control.directory import ModelEntry

logger = logging.getLogger(__name__)

_REPORT_S: Final = 0.5
_ANSWER_TIMEOUT_S: Final = 5.0

Measurements = Callable[[], Mapping[str, Any]]
"""Returns what was measured, by model; see `VersionMeter.to_dict`."""


class TrafficReport:
    """Reports while there is a canary that gets requests from here, all that was measured in its present step.

    What comes from several `measurements` the controller adds up.
    """

    def __init__(self, controller: Any, *measurements: Measurements) -> None:
        self._controller = controller
        self._measurements = {secrets.token_hex(8): each for each in measurements}
        self._some = asyncio.Event()

    def follow(self, models: Mapping[str, ModelEntry]) -> None:
        """Take from a directory whether there is a canary."""
        if any(entry.traffic.get("step") for entry in models.values()):
            self._some.set()
        else:
            self._some.clear()

    async def run(self) -> None:
        """Report for ever; without a controller, no canary gets on."""
        while True:
            await self._some.wait()
            await asyncio.sleep(_REPORT_S)
            for reporter, measured in self._measurements.items():
                if rows := {name: row for name, row in measured().items() if row["requests"]}:
                    try:
                        await answer(self._controller.report_traffic.remote(reporter, rows), _ANSWER_TIMEOUT_S)
                    except Exception as error:  # the next report says it again
                        logger.debug("the controller took no report of canaries: %s", type(error).__name__)
