"""A region of a GPU's memory that a client has registered, as an ingress has it, which copies from and to it."""

import logging
from contextlib import suppress

from deployments.replica.cuda_driver import DeviceMemoryError, NoGpuError
from deployments.replica.device_memory import DeviceAllocation, uuid_of
from deployments.replica.region_row import Row
from protocol.errors import Internal, InvalidArgument

logger = logging.getLogger(__name__)


class DeviceRegion:
    """One registered region of a GPU's memory, open as long as this lives."""

    def __init__(self, row: Row) -> None:
        """Open it.

        Raises:
            InvalidArgument: there is no GPU here, the handle cannot be opened, or has less memory behind it.
        """
        self.row = row
        try:
            self._memory = DeviceAllocation(bytes.fromhex(row.key), row.device_id)
        except NoGpuError:
            raise gpus_not_supported(row.name) from None
        except DeviceMemoryError as error:
            logger.warning("CUDA shared memory region '%s' cannot be opened: %s", row.name, error)
            raise InvalidArgument("failed to register shared memory region: invalid args") from None
        if not 0 < row.byte_size <= self._memory.size_bytes:
            raise InvalidArgument(f"failed to register shared memory region '{row.name}': invalid args")

    @classmethod
    def found(cls, row: Row) -> "DeviceRegion":
        """Open one that is about to be registered, and find out on which GPU it is. Raises as for any other."""
        region = cls(row)
        with suppress(DeviceMemoryError):  # of an old driver; models on that GPU get what is in it in host memory
            region.row = row._replace(gpu=uuid_of(row.device_id))
        return region

    def holds(self, end: int) -> bool:
        """Whether there is memory up to a position in it: an allocation does not change."""
        return end <= self.row.byte_size

    def read(self, offset: int, byte_size: int) -> bytes:
        """Return a copy of a range. Raises Internal."""
        try:
            return self._memory.read(offset, byte_size)
        except DeviceMemoryError as error:
            raise Internal(f"shared memory region '{self.row.name}' cannot be read: {error}") from None

    def write(self, offset: int, content: bytes) -> None:
        """Copy bytes to a range. Raises Internal."""
        try:
            self._memory.write(offset, content)
        except DeviceMemoryError as error:
            raise Internal(f"shared memory region '{self.row.name}' cannot be written: {error}") from None


def gpus_not_supported(name: str) -> InvalidArgument:
    """Return what Triton says to the registration of a region on a GPU where there is none."""
    return InvalidArgument(f"failed to register CUDA shared memory region: '{name}', GPUs not supported")
