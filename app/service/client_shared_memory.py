"""The regions of system shared memory that clients register."""

from typing import Any

from deployments.replica.shared_memory import Regions
from protocol.errors import Unsupported


class ClientSharedMemory:
    """Registers regions for all ingresses and replicas of this node, if the operator `allowed` it."""

    def __init__(self, regions: Regions, *, allowed: bool) -> None:
        self._regions = regions
        self._allowed = allowed

    def status(self, region: str = "") -> list[dict[str, Any]]:
        """Return the registered regions, or one; raises NotFound for an unknown one."""
        return self._regions.status(region)

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a region; raises as `Regions.register`."""
        self.check_allowed()
        self._regions.register(name, key, offset, byte_size)

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all of them."""
        self.check_allowed()
        self._regions.unregister(name)

    def check_allowed(self) -> None:
        """Raise Unsupported unless the operator allows clients to register shared memory."""
        if not self._allowed:
            raise Unsupported(
                "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
            )
