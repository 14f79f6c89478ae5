"""What a model asks of the node that it runs on, beyond how much of it."""

from collections.abc import Iterable
from dataclasses import dataclass

from repository_loader.cluster_facts import NodeFacts


@dataclass(frozen=True, slots=True)
class NodeNeeds:
    """Ray's name of an accelerator type, "" for any, and labels that the node must have."""

    accelerator_type: str = ""
    labels: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.accelerator_type or self.labels)

    def __str__(self) -> str:
        kinds = [f"accelerator type {self.accelerator_type}"] if self.accelerator_type else []
        return " and ".join((*kinds, *(f"label {name}={value}" for name, value in self.labels)))

    def met_by(self, nodes: Iterable[NodeFacts]) -> tuple[NodeFacts, ...]:
        """Return the nodes that are so."""
        return tuple(
            node
            for node in nodes
            if self.accelerator_type in ("", node.accelerator_type) and set(self.labels) <= set(node.labels)
        )

    def resources(self) -> dict[str, float]:
        """Return what a placement asks for, as Ray writes it itself, to be on a node of the accelerator type."""
        return {f"accelerator_type:{self.accelerator_type}": 0.001} if self.accelerator_type else {}


ANY_NODE = NodeNeeds()
