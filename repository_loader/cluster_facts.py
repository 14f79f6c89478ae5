"""What a cluster is made of: the facts that reading a repository and planning depend on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node, as it is when nothing runs on it.

    `accelerator_type` is Ray's name for its cards, "" if it has none. `gpu_memory_bytes` is the memory of its smallest
    card, 0 if nobody could tell. `labels` are Ray's, name and value. `node_id` is Ray's too, "" for a node that is only
    planned for.
    """

    num_cpus: float
    num_gpus: int = 0
    memory_bytes: int = 0
    accelerator_type: str = ""
    gpu_memory_bytes: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    node_id: str = ""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Every node of a cluster; the GPUs of all nodes are numbered through, from 0."""

    nodes: tuple[NodeFacts, ...]

    @property
    def num_cpus(self) -> float:
        """CPUs of all nodes together."""
        return sum(node.num_cpus for node in self.nodes)

    @property
    def largest_node_num_cpus(self) -> float:
        """CPUs of the largest node, which bound one replica."""
        return max((node.num_cpus for node in self.nodes), default=0.0)

    @property
    def memory_bytes(self) -> int:
        """Memory of all nodes together; 0 if that of one is unknown."""
        known = [node.memory_bytes for node in self.nodes]
        return sum(known) if all(known) else 0

    @property
    def largest_node_memory_bytes(self) -> int:
        """Memory of the largest node, which bounds one replica; 0 if unknown."""
        return max((node.memory_bytes for node in self.nodes), default=0)

    @property
    def num_gpus(self) -> int:
        """GPUs of all nodes together."""
        return sum(node.num_gpus for node in self.nodes)

    @property
    def gpu_memory_bytes(self) -> int:
        """Memory of the smallest card in the cluster, since any card may be taken; 0 if unknown."""
        known = [node.gpu_memory_bytes for node in self.nodes if node.num_gpus and node.gpu_memory_bytes]
        return min(known, default=0)
