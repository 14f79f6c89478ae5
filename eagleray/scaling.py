"""So many ingresses on each node: the autoscaling policy that Serve's controller runs for the ingress deployment."""

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.serve.config import AutoscalingContext

_ASK_AGAIN_S = 2.0
_SETTLED_S = 30.0


def _nodes_in_use() -> frozenset[str]:
    from eagleray import nodes_in_use

    found: frozenset[str] = nodes_in_use()
    return found


class OnEveryNode:
    """Asks for `per_node` replicas for each node that is alive.

    The resource that they ask for, a share of each node's, then puts so many on each.

    With `min_nodes`, nodes on which nothing else runs count no longer once this has been so for a while, as long as so
    many are left: of a node with an ingress Ray's autoscaler takes it that it is busy. Serve ends the replicas on nodes
    with the fewest first, and those on the head last. While that changes all nodes count, so that one where something
    has begun to run gets its ingresses, whatever others have room for them.

    Args:
        nodes: returns the nodes that are alive; blocks.
        in_use: returns those on which something else may run, the head one of them; blocks.
    """

    def __init__(
        self,
        per_node: int,
        min_nodes: int = 0,
        nodes: Callable[[], list[dict[str, Any]]] = ray.nodes,
        in_use: Callable[[], frozenset[str]] = _nodes_in_use,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_node = per_node
        self._min_nodes = min_nodes
        self._nodes = nodes
        self._in_use = in_use
        self._clock = clock

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas, and the policy's state: the number of nodes and when it was asked for."""
        state = dict(context.policy_state or {})
        now = self._clock()
        if now - state.get("asked_s", float("-inf")) >= _ASK_AGAIN_S:
            alive = sum(1 for node in self._nodes() if node["Alive"])
            state |= {"asked_s": now, "nodes": min(alive, self._wanted(state, now)) if self._min_nodes else alive}
        return self._per_node * max(1, state["nodes"]), state

    def _wanted(self, state: dict[str, Any], now: float) -> float:
        """Return how many nodes are to have ingresses, and note in the state which are in use, and since when."""
        in_use = self._in_use()
        if in_use != state.get("in_use"):
            state |= {"in_use": in_use, "changed_s": now}
        return max(self._min_nodes, len(in_use)) if now - state["changed_s"] >= _SETTLED_S else float("inf")
