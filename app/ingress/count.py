"""How many ingresses run on each node."""

from typing import Final

import ray

from app.settings import Settings

_CORES_PER_INGRESS: Final = 4
_MAX_AUTOMATIC: Final = 16


def ingresses_per_node(settings: Settings) -> int:
    """Return the number that is set, or for 0 one for every four cores of the average node, 16 at most.

    An ingress is one process and keeps one core busy; the models need the others. The number is the same on all nodes,
    as Serve places so many. It is 1 where an ingress holds the models itself: each would have a copy of its own.
    """
    if settings.ingresses_per_node:
        return settings.ingresses_per_node
    cores = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]] if ray.is_initialized() else []
    return automatic(settings.placement, [count for count in cores if count])


def automatic(placement: str, cores: list[float]) -> int:
    """Return the number for nodes of so many cores each."""
    if placement == "embedded" or not cores:
        return 1
    return max(1, min(_MAX_AUTOMATIC, int(sum(cores) / len(cores) / _CORES_PER_INGRESS)))
