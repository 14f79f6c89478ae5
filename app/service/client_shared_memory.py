"""The regions of shared memory that clients register: of the system, and of GPUs."""

from typing import Any

from deployments.replica.shared_memory import Regions, require_gpu
from protocol.errors import Unsupported


class ClientSharedMemory:
    """Registers regions for all ingresses and replicas of this node, if the operator `allowed` it."""

    def __init__(self, regions: Regions, *, allowed: bool) -> None:
        self._regions = regions
        self._allowed = allowed

    def status(self, region: str = "", *, on_device: bool = False) -> list[dict[str, Any]]:
        """Return the registered regions of a kind, or one; raises NotFound for an unknown one."""
        return self._regions.status(region, on_device=on_device)

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a region; raises as `Regions.register`."""
        self.check_allowed()
        self._regions.register(name, key, offset, byte_size)

    async def register_device(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Register a region of a GPU's memory; raises as `Regions.register_device`."""
        await self.check_devices(name)
        await self._regions.register_device(name, handle, device_id, byte_size)

    def unregister(self, name: str = "", *, on_device: bool = False) -> None:
        """Forget a region of a kind, or all of them."""
        self.check_allowed()
        self._regions.unregister(name, on_device=on_device)

    async def check_devices(self, name: str) -> None:
        """Raise InvalidArgument unless a region of that name may be in a GPU's memory, as `check_allowed` besides."""
        self.check_allowed()
        await require_gpu(name)

    def check_allowed(self) -> None:
        """Raise Unsupported unless the operator allows clients to register shared memory."""
        if not self._allowed:
            raise Unsupported(
                "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
            )
