"""Has Ray's agent of a node let go of what processes that have ended told it last.

Some of that it keeps until it is asked for its metrics, which may be never where no Prometheus is.
"""

import asyncio
import http.client
import logging
from collections.abc import Callable
from typing import Final

import ray

logger = logging.getLogger(__name__)

_PERIOD_S: Final = 600.0
_TIMEOUT_S: Final = 30.0
_READ_BYTES: Final = 1 << 16


class AgentSweep:
    """One of a node's ingresses asks the node's agent now and then; when it dies, another one goes on."""

    def __init__(self, node_id: str, speaks_for_node: Callable[[], bool], period_s: float = _PERIOD_S) -> None:
        self._node_id = node_id
        self._speaks_for_node = speaks_for_node
        self._period_s = period_s

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            await asyncio.sleep(self._period_s)
            try:
                if self._speaks_for_node():
                    await asyncio.to_thread(ask_agent, self._node_id)
            except (OSError, http.client.HTTPException, RuntimeError) as error:  # the last: no Ray, or no thread
                logger.debug("Ray's agent is not asked for its metrics: %s", error)


def ask_agent(node_id: str) -> int:
    """Ask the agent of a node for its metrics as Prometheus does; returns how many bytes it had to say, 0 without one.

    Raises:
        OSError: it does not answer.
        http.client.HTTPException: what answers is none.
        RuntimeError: Ray has ended.
    """
    ports = {node["NodeID"]: (node["NodeManagerAddress"], node["MetricsExportPort"]) for node in ray.nodes()}
    address, port = ports.get(node_id, ("", 0))
    if port <= 0:
        return 0
    connection = http.client.HTTPConnection(address, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        response, length = connection.getresponse(), 0
        while block := response.read(_READ_BYTES):
            length += len(block)
        return length
    finally:
        connection.close()
