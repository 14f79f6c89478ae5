"""Tells the controller what the requests have come to that canaries got from this ingress."""

import asyncio
import logging
import secrets
from typing import Final

from ray.serve.handle import DeploymentHandle

from app.service.models import Models
from app.service.routing import Routing
from deployments.control.answer import answer

logger = logging.getLogger(__name__)

_REPORT_S: Final = 0.5
_ANSWER_TIMEOUT_S: Final = 5.0


class TrafficReport:
    """Reports while there is a canary; each report holds all that was measured in the canary's present step."""

    def __init__(self, controller: DeploymentHandle, models: Models, routing: Routing) -> None:
        self._controller = controller
        self._models = models
        self._routing = routing
        self._id = secrets.token_hex(8)
        self._some = asyncio.Event()

    def follow(self) -> None:
        """Take from the directory whether there is a canary."""
        if any(entry.traffic.get("step") for entry in self._models.directory.models.values()):
            self._some.set()
        else:
            self._some.clear()

    async def run(self) -> None:
        """Report for ever; without a controller, no canary gets on."""
        while True:
            await self._some.wait()
            await asyncio.sleep(_REPORT_S)
            if rows := self._routing.measurements():
                try:
                    await answer(self._controller.report_traffic.remote(self._id, rows), _ANSWER_TIMEOUT_S)
                except Exception as error:  # the next report says it again
                    logger.debug("the controller took no report of canaries: %s", type(error).__name__)
