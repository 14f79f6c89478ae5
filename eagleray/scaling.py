"""One ingress on every node: the autoscaling policy that Serve's controller runs for the ingress deployment."""

import time
from typing import Any

import ray
from ray.serve.config import AutoscalingContext

_ASK_AGAIN_S = 2.0


def one_per_node(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Return the number of alive nodes, and the policy's state: that number and when it was asked for.

    `max_replicas_per_node` of the deployment then puts one replica on each node.
    """
    state = dict(context.policy_state or {})
    now = time.monotonic()
    if now - state.get("asked_s", float("-inf")) >= _ASK_AGAIN_S:
        state = {"asked_s": now, "nodes": sum(1 for node in ray.nodes() if node["Alive"])}
    return max(1, state["nodes"]), state
