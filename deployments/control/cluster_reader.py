"""Asks Ray what the cluster is made of, and its GPUs how much memory they have."""

import logging

import ray
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from deployments.serve_internals import gpu_memory_bytes
from repository_loader.cluster_facts import ClusterFacts, NodeFacts

logger = logging.getLogger(__name__)

_ASK_TIMEOUT_S = 30.0
_ACCELERATOR_TYPE = "accelerator_type:"


def living_actors() -> set[str]:
    """Return the names of the actors that have one, and live, start or end; blocks."""
    return {each["name"] for each in list_named_actors(all_namespaces=True)}


def living_replicas(app: str, deployment: str) -> set[str]:
    """Return the names of those of a deployment's actors that live, start or end; blocks."""
    return {name for name in living_actors() if f"{app}#{deployment}#" in name}


class ClusterReader:
    """Reads the facts; a node's GPUs are asked once. `given_gpu_memory_bytes`, unless 0, stands in for their answer."""

    def __init__(self, given_gpu_memory_bytes: int = 0) -> None:
        self._given = given_gpu_memory_bytes
        self._memory_bytes: dict[str, int] = {}

    def read(self) -> ClusterFacts:
        """Return the facts of the nodes that are alive, the head's first; blocks."""
        alive = [node for node in ray.nodes() if node["Alive"]]
        alive.sort(key=lambda node: ("node:__internal_head__" not in node["Resources"], node["NodeID"]))
        if not self._given:
            self._ask([node["NodeID"] for node in alive if node["Resources"].get("GPU")])
        return ClusterFacts(
            tuple(self._facts(node["NodeID"], node["Resources"], node.get("Labels") or {}) for node in alive)
        )

    def _facts(self, node_id: str, resources: dict[str, float], labels: dict[str, str]) -> NodeFacts:
        types = (name.removeprefix(_ACCELERATOR_TYPE) for name in resources if name.startswith(_ACCELERATOR_TYPE))
        num_gpus = int(resources.get("GPU", 0))
        return NodeFacts(
            num_cpus=resources.get("CPU", 0.0),
            num_gpus=num_gpus,
            memory_bytes=int(resources.get("memory", 0)),
            accelerator_type=next(types, ""),
            gpu_memory_bytes=(self._given or self._memory_bytes.get(node_id, 0)) if num_gpus else 0,
            labels=tuple(sorted(labels.items())),
            node_id=node_id,
        )

    def _ask(self, node_ids: list[str]) -> None:
        """Have a task on each node that was not asked yet read the memory of its smallest GPU."""
        task = ray.remote(gpu_memory_bytes)
        asked = {}
        for node_id in node_ids:
            if node_id not in self._memory_bytes:
                strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
                asked[task.options(num_cpus=0, max_retries=0, scheduling_strategy=strategy).remote()] = node_id
        if not asked:
            return
        ray.wait(list(asked), num_returns=len(asked), timeout=_ASK_TIMEOUT_S)
        for answer, node_id in asked.items():
            try:
                self._memory_bytes[node_id] = ray.get(answer, timeout=0)
            except Exception as error:  # of the task, its node or its time: the assumption stands in
                logger.warning("the GPUs of node %s did not tell their memory: %s", node_id, type(error).__name__)
                self._memory_bytes[node_id] = 0
