"""Which replicas run, as Serve's routers in this process last heard; a module of its own so that all see one copy."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class RunningReplica(NamedTuple):
    """A running replica and the metadata that it published once, when it started."""

    replica_id: str
    node_id: str
    metadata: Mapping[str, Any]


Listener = Callable[[tuple[RunningReplica, ...]], None]

_lock = threading.Lock()
_replicas: dict[str, tuple[RunningReplica, ...]] = {}
_listeners: dict[str, Listener] = {}


def publish(deployment: str, replicas: tuple[RunningReplica, ...]) -> None:
    """Take the list of running replicas of a deployment; called on a router's thread."""
    with _lock:
        if _replicas.get(deployment) == replicas:
            return
        _replicas[deployment] = replicas
        listener = _listeners.get(deployment)
    if listener is not None:
        listener(replicas)


def listen(deployment: str, listener: Listener) -> None:
    """Call the listener, on whatever thread, with the present list and after every change."""
    with _lock:
        _listeners[deployment] = listener
        replicas = _replicas.get(deployment)
    if replicas is not None:
        listener(replicas)


def forget(deployment: str) -> None:
    """Listen no longer."""
    with _lock:
        _listeners.pop(deployment, None)
        _replicas.pop(deployment, None)


def let_go(deployment: str) -> None:
    """Keep the list of a deployment no longer that nobody listens to."""
    with _lock:
        if deployment not in _listeners:
            _replicas.pop(deployment, None)
