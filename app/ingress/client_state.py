"""What clients set for all ingresses: the controller keeps it, and every ingress follows."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from ray.serve.handle import DeploymentHandle

from app.ingress.all_ingresses import all_have_followed
from deployments.control.answer import is_cancelled
from protocol.errors import Unavailable

logger = logging.getLogger(__name__)

_KEEP_TIMEOUT_S: Final = 15.0
"""A controller that has died has a successor by then, unless the machine is very busy."""
_RETRY_S: Final = 0.2


class ClusterState:
    """Changes it; every ingress, this one too, takes the change from the controller's directory."""

    def __init__(self, controller: DeploymentHandle) -> None:
        self._controller = controller

    async def change(self, rows: Mapping[str, Any]) -> None:
        """Set rows (None: remove them); returns when all ingresses have them, or after 2 s.

        Raises:
            Unavailable: the controller does not answer.
        """
        try:
            async with asyncio.timeout(_KEEP_TIMEOUT_S):
                epoch, generation = await self._keep(dict(rows))
        except TimeoutError:
            raise Unavailable("settings cannot be changed at present") from None
        await all_have_followed(epoch, generation)

    async def _keep(self, rows: dict[str, Any]) -> tuple[str, int]:
        while True:
            try:
                kept: tuple[str, int] = await self._controller.set_client_state.remote(rows)
                return kept
            except (Exception, asyncio.CancelledError) as error:
                # It has died on the way, or is being stopped; its successor is told again.
                if is_cancelled():
                    raise
                logger.warning("the repository controller does not answer: %s: %s", type(error).__name__, error)
            await asyncio.sleep(_RETRY_S)
