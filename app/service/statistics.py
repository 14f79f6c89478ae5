"""What the models have done: on this node, as metrics show it, and in the whole cluster, as Triton's statistics."""

from dataclasses import dataclass
from typing import Any, Protocol

from app.service.models import Models
from deployments.core.counts import Totals
from deployments.core.statistics_document import documents
from protocol.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class NodeTotals:
    """What was counted on one node, or on all dead ones together, whose `address` is "".

    `spent_s` is the processor time to read it here.
    """

    node_id: str
    address: str
    totals: Totals
    spent_s: float = 0.0


class Counters(Protocol):
    """What was counted, by whichever process, alive or not."""

    async def of_node(self) -> Totals:
        """Return what was counted on this node."""
        ...

    async def of_cluster(self) -> Totals:
        """Return what was counted on all nodes."""
        ...

    async def of_nodes(self) -> list[NodeTotals]:
        """Return what was counted on each node."""
        ...


class Statistics:
    """Answers from the counters."""

    def __init__(self, models: Models, counters: Counters) -> None:
        self._models = models
        self._counters = counters

    async def of_node(self) -> Totals:
        """Return what was counted on this node: of every model version that has run here, ready or not."""
        return await self._counters.of_node()

    async def of_nodes(self) -> list[NodeTotals]:
        """Return what was counted on each node, on this one first, and last on all that are dead."""
        return await self._counters.of_nodes()

    async def of(self, name: str = "", version: int = -1) -> list[dict[str, Any]]:
        """Return Triton's statistics of one model or all, as far as they are ready.

        Raises:
            InvalidArgument: the model or version is not there (Triton's code for it).
            Unavailable: nothing is known of any model yet.
        """
        self._models.require_known()
        names = [name] if name else list(self._models.directory.models)
        ready = {each: self._models.ready_versions(each) for each in names}
        if name and not ready[name]:
            raise InvalidArgument(f"requested model '{name}' is not available")
        if name and version != -1 and version not in ready[name]:
            raise InvalidArgument(f"requested model version is not available for model '{name}'")
        return [
            document
            for document in documents(await self._counters.of_cluster())
            if int(document["version"]) in ready.get(document["name"], ())
            and (not name or version in (-1, int(document["version"])))
        ]
