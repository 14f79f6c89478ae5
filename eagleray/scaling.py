"""So many ingresses on each node: the autoscaling policy that Serve's controller runs for the ingress deployment.

Serve hands it over with the code of this module. What the controller has imported of Eagleray meanwhile is that of its
start, and may be another version, so nothing else of Eagleray is used here.
"""

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.serve.config import AutoscalingContext

_ASK_AGAIN_S = 2.0
_SETTLED_S = 30.0
_HEAD = "node:__internal_head__"


def draining_nodes() -> frozenset[str]:
    """Return the ids of the nodes that Ray drains: what runs there is to go, and nothing else is placed; blocks."""
    from ray._private.state import state

    return frozenset(state.get_draining_nodes())


def nodes_in_use() -> frozenset[str]:
    """Return the ids of the head, and of the nodes of whose CPUs, GPUs or other resources something is taken; blocks.

    Ingresses take none of these.
    """
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    return frozenset(
        node["NodeID"]
        for node in ray.nodes()
        if node["Alive"]
        for name, count in node["Resources"].items()
        if name == _HEAD
        or (not name.startswith(("node:", "object_store_memory")) and free.get(node["NodeID"], {}).get(name, 0) < count)
    )


class OnEveryNode:
    """Asks for `per_node` replicas for each node that is alive, and not about to go.

    In place of those on a node that drains Serve would start others, for which there is no room: Ray's autoscaler would
    start a node for them. That is right only where no other node stays beside the head, and then they stay until then.

    The resource that they ask for, a share of each node's, then puts so many on each.

    With `min_nodes`, nodes on which nothing else runs count no longer once this has been so for a while, as long as so
    many are left: of a node with an ingress Ray's autoscaler takes it that it is busy. Serve ends the replicas on nodes
    with the fewest first, and those on the head last. While that changes all nodes count, so that one where something
    has begun to run gets its ingresses, whatever others have room for them.

    Args:
        nodes: returns the nodes that are alive; blocks.
        draining: returns those that drain; blocks.
        in_use: returns those on which something else may run, the head one of them; blocks.
    """

    def __init__(
        self,
        per_node: int,
        min_nodes: int = 0,
        nodes: Callable[[], list[dict[str, Any]]] = ray.nodes,
        draining: Callable[[], frozenset[str]] = draining_nodes,
        in_use: Callable[[], frozenset[str]] = nodes_in_use,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_node = per_node
        self._min_nodes = min_nodes
        self._nodes = nodes
        self._draining = draining
        self._in_use = in_use
        self._clock = clock

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas, and the policy's state: the nodes and when they were asked for."""
        state = dict(context.policy_state or {})
        now = self._clock()
        if now - state.get("asked_s", float("-inf")) >= _ASK_AGAIN_S:
            nodes = [node for node in self._nodes() if node["Alive"]]
            workers = frozenset(node["NodeID"] for node in nodes if _HEAD not in node["Resources"])
            alive = frozenset(node["NodeID"] for node in nodes)
            in_use = self._in_use() if self._min_nodes else alive
            if (alive, in_use) != (state.get("alive"), state.get("in_use")):
                state["changed_s"] = now
            state |= {"asked_s": now, "alive": alive, "workers": workers, "in_use": in_use}
            state["draining"] = frozenset()
        # One that has died meanwhile drains no longer.
        draining = state["draining"] = state.get("draining", frozenset()) | self._draining()
        staying = state["alive"] - draining if state["workers"] - draining else state["alive"]
        count = len(staying)
        if self._min_nodes and now - state["changed_s"] >= _SETTLED_S:
            count = min(count, max(self._min_nodes, len(state["in_use"] & staying)))
        return self._per_node * max(1, count), state
