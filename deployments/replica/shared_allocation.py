"""Memory of a GPU that a client has registered as a region, as the process sees it in which a model runs."""

import threading

from deployments.replica.cuda_driver import DeviceMemoryError
from deployments.replica.device_memory import DeviceAllocation, visible_gpus
from deployments.replica.region_row import Row
from protocol.errors import Internal, InvalidArgument


class OpenAllocation(DeviceAllocation):
    """One of which a model is told, with errors that a client may hear."""

    def copy_out(self, offset: int, target: int, size_bytes: int) -> None:
        """Copy a range to an address in host memory. Raises Internal."""
        try:
            super().copy_out(offset, target, size_bytes)
        except DeviceMemoryError as error:
            raise Internal(f"memory of a GPU cannot be read: {error}") from None


class SharedAllocation:
    """What a region on a GPU is in; any thread may use it.

    A request that names it holds it, so it outlives its registration. It is opened where it is first asked for, which
    the replica of a model in another process never does, and closed when nothing holds it or what `open` has returned.
    """

    def __init__(self, row: Row) -> None:
        self.row = row
        self._opened: OpenAllocation | None = None
        self._lock = threading.Lock()

    def holds(self, end: int) -> bool:
        """Whether there is memory up to a position in it: an allocation does not change."""
        return end <= self.row.byte_size

    def open(self) -> OpenAllocation:
        """Return the allocation; blocks the first time.

        Raises:
            InvalidArgument: it cannot be opened in this process, as its client has died, or has freed it.
        """
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def _open(self) -> OpenAllocation:
        row = self.row
        try:
            if row.gpu not in (gpus := visible_gpus()):
                raise DeviceMemoryError("its GPU is none of this process")
            opened = OpenAllocation(bytes.fromhex(row.key), gpus.index(row.gpu))
            if row.byte_size > opened.size_bytes:
                raise DeviceMemoryError(f"it has {opened.size_bytes} bytes")
        except DeviceMemoryError as error:
            text = f"shared memory region '{row.name}' cannot be opened in the process of the model: {error}"
            raise InvalidArgument(text) from None
        return opened
