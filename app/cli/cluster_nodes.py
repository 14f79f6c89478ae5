"""Asks every node of a running Ray cluster the same."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from app.cli.cluster_address import require_listener

T = TypeVar("T")
_TIMEOUT_S: Final = 60.0


def ask_each_node(address: str, function: Callable[..., T], *arguments: Any) -> dict[str, T]:
    """Join a cluster, run a function in a task on each node, leave; returns the results by the nodes' addresses.

    Raises:
        click.ClickException: there is no such cluster, or a node does not answer in time.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    try:
        require_listener(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises whatever its parts raise
        raise click.ClickException(f"no Ray cluster can be joined at {address}: {_line(error)}") from None
    try:
        task = ray.remote(num_cpus=0, max_retries=0)(function)
        asked: dict[str, Any] = {}
        for node in ray.nodes():
            if node["Alive"]:
                strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                name = f"{node['NodeManagerAddress']} {node['NodeID'][:8]}"
                asked[name] = task.options(scheduling_strategy=strategy).remote(*arguments)
        return dict(zip(asked, ray.get(list(asked.values()), timeout=_TIMEOUT_S), strict=True))
    except Exception as error:
        raise click.ClickException(f"not every node answers: {_line(error)}") from None
    finally:
        ray.shutdown()


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
