"""So many ingresses on every node: the autoscaling policy that Serve's controller runs for the ingress deployment."""

import time
from typing import Any

import ray
from ray.serve.config import AutoscalingContext

_ASK_AGAIN_S = 2.0


class OnEveryNode:
    """Asks for `per_node` replicas for each node that is alive.

    The resource that they ask for, a share of each node's, then puts so many on each.
    """

    def __init__(self, per_node: int) -> None:
        self._per_node = per_node

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas, and the policy's state: the number of nodes and when it was asked for."""
        state = dict(context.policy_state or {})
        now = time.monotonic()
        if now - state.get("asked_s", float("-inf")) >= _ASK_AGAIN_S:
            state = {"asked_s": now, "nodes": sum(1 for node in ray.nodes() if node["Alive"])}
        return self._per_node * max(1, state["nodes"]), state
