"""What was counted on all nodes: one ingress of each other node is asked for its node's."""

import asyncio
import logging
from typing import Any, Final

import ray
from ray import serve

from deployments.core.counts import STATISTICS, Totals
from deployments.replica.node_counters import NodeCounters

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 2.0


class ClusterCounters:
    """The counters of this node, and those of the others through their ingresses.

    A node that does not answer in time stands with what it said last.
    """

    def __init__(self, node_id: str, counters: NodeCounters) -> None:
        self._node_id = node_id
        self._counters = counters
        self._elsewhere: dict[str, list[Any]] = {}

    async def of_node(self) -> Totals:
        """Return what was counted on this node."""
        return await asyncio.to_thread(self._counters.totals)

    async def of_cluster(self) -> Totals:
        """Return what was counted on all nodes."""
        if await asyncio.to_thread(_node_count) > 1:
            await self._ask_others()
        totals = await self.of_node()
        for rows in self._elsewhere.values():
            totals.add_list(rows)
        return totals

    async def _ask_others(self) -> None:
        context = serve.get_replica_context()
        handle = serve.get_deployment_handle(context.deployment, context.app_name)
        try:
            asked = handle.broadcast("node_counters", self._node_id)
            answers = await asked.results_async(timeout_s=_TIMEOUT_S, return_exceptions=True)
        except TimeoutError:
            logger.warning("the statistics of other nodes are as they were told last: no answer in %g s", _TIMEOUT_S)
            return
        self._elsewhere.update(answer for answer in answers if isinstance(answer, tuple))

    async def answer(self, asking_node_id: str) -> tuple[str, list[Any]] | None:
        """Return this node's id and rows for another node; None when another ingress speaks for this one."""
        if asking_node_id == self._node_id or not self._counters.speaks_for_node():
            return None
        return self._node_id, (await self.of_node()).to_list(STATISTICS)


def _node_count() -> int:
    return sum(1 for node in ray.nodes() if node["Alive"])
