"""The one module that touches Ray Serve where it has no public API; `tests/deployments/test_serve_internals.py` fails
loudly on a Ray that changed any of it.
"""

from collections.abc import Callable
from typing import Any, Final

from ray import serve
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.handle import DeploymentHandle

from deployments.control import replica_directory

LANE_ROUTER: Final = "deployments.serve_internals:LaneRouter"


class LaneRouter(PowerOfTwoChoicesRequestRouter):  # type: ignore[misc]
    """Serve's default router, which also tells this process which replicas run and what they published."""

    def update_replicas(self, replicas: list[Any]) -> None:
        """Take Serve's list of running replicas."""
        super().update_replicas(replicas)
        replica_directory.publish(
            _key(self._deployment_id.app_name, self._deployment_id.name),
            tuple(
                replica_directory.RunningReplica(
                    replica.replica_id.unique_id, replica.node_id or "", dict(replica.replica_metadata)
                )
                for replica in replicas
            ),
        )


def _key(app_name: str, deployment_name: str) -> str:
    return f"{app_name}#{deployment_name}"


def watch_replicas(app_name: str, deployment_name: str, listener: replica_directory.Listener) -> Callable[[], None]:
    """Call the listener, on a thread of Serve's, with every change of a deployment's running replicas.

    Returns a function that ends the watch. The router that hears of the changes exists once its handle is
    initialised; the handle is kept for as long as the watch.
    """
    key = _key(app_name, deployment_name)
    replica_directory.listen(key, listener)
    handle: DeploymentHandle = serve.get_deployment_handle(deployment_name, app_name, _check_exists=False)
    if not handle.is_initialized:
        handle._init()

    def end() -> None:
        replica_directory.forget(key)
        handle.shutdown()

    return end


def pin_version(deployment: serve.Deployment, version: str) -> serve.Deployment:
    """Give a deployment a version, so that deploying it again restarts its replicas only when the version changes."""
    return deployment.options(version=version, _internal=True)


def handle_of(deployment_name: str, app_name: str) -> DeploymentHandle:
    """Return a handle to a deployment that may not exist yet; its first call waits until it does."""
    return serve.get_deployment_handle(deployment_name, app_name, _check_exists=False)
