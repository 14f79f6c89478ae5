"""The router that Serve runs wherever there is a handle of ours, other people's processes included.

It imports nothing of ours: there, a name like `deployments` may be theirs.
"""

import sys
from typing import Any

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter

_DIRECTORY = "deployments.control.replica_directory"


class LaneRouter(PowerOfTwoChoicesRequestRouter):  # type: ignore[misc]
    """Serve's default router, which also tells this process which replicas run and what they published."""

    def update_replicas(self, replicas: list[Any]) -> None:
        """Take Serve's list of running replicas."""
        super().update_replicas(replicas)
        directory = sys.modules.get(_DIRECTORY)
        if directory is None:  # nobody here listens
            return
        directory.publish(
            f"{self._deployment_id.app_name}#{self._deployment_id.name}",
            tuple(
                directory.RunningReplica(
                    replica.replica_id.unique_id, replica.node_id or "", dict(replica.replica_metadata)
                )
                for replica in replicas
            ),
        )
