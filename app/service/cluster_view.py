"""What an operator asks of the whole cluster: what was planned, what runs where, what models log, what is broken."""

from dataclasses import dataclass
from typing import Any, Protocol

from app.doctor.finding import Finding
from protocol.errors import Unavailable


@dataclass(frozen=True, slots=True)
class NodeLog:
    """The last lines that a model has logged on a node, as (file, line)."""

    node_id: str
    lines: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """What a check has found on a node; of the cluster as a whole, where the node is ""."""

    node_id: str
    finding: Finding


class ClusterView(Protocol):
    """Asks the controller and the other nodes; bounded in time."""

    async def plan(self) -> dict[str, Any]:
        """Return the plan, as `report_plan` makes it, with `replicas` that run as [deployment, replica, node].

        Raises:
            Unavailable: there is no controller at present.
        """
        ...

    async def logs(self, model: str, count: int) -> list[NodeLog]:
        """Return the last lines on each node that has any."""
        ...

    async def examine(self) -> list[NodeFinding]:
        """Return what checks find on each node that has an ingress, and where these differ."""
        ...


class NoClusterView:
    """Of a service without a cluster."""

    async def plan(self) -> dict[str, Any]:
        """Refuse."""
        raise Unavailable("the plan cannot be told at present")

    async def logs(self, model: str, count: int) -> list[NodeLog]:
        """Return nothing."""
        return []

    async def examine(self) -> list[NodeFinding]:
        """Return nothing."""
        return []
