"""Memory of GPUs that clients share by CUDA's interprocess handles, opened in this process and copied from and to."""

import ctypes
import logging
import os
import weakref
from collections.abc import Sequence
from typing import Final

from deployments.replica.cuda_driver import (
    VISIBLE,
    DeviceMemoryError,
    call,
    context,
    current,
    device,
    driver,
    find_gpu,
)

HANDLE_BYTES: Final = 64
"""Size of a handle, CUDA's `cudaIpcMemHandle_t`."""
_LAZY_ENABLE_PEER_ACCESS: Final = 1
_UUID_BYTES: Final = 16
_MAX_ID: Final = 2**31 - 1
_DEFAULT_STREAM: Final = ctypes.c_void_p()
"""The one in which copies are made; to wait for it is not to wait for streams that do not wait for it either."""
_CAPTURES: Final = "CUDA_ERROR_STREAM_CAPTURE"
"""How errors begin of a GPU that cannot be waited for while a thread records a graph of kernels."""

logger = logging.getLogger(__name__)


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class DeviceAllocation:
    """An allocation of a client's, open as long as this lives; `size_bytes` is all of it. Any thread may use it."""

    def __init__(self, handle: bytes, device_id: int) -> None:
        """Open it.

        Raises:
            NoGpuError: there is none here.
            DeviceMemoryError: there is no such GPU, or the handle is none that can be opened.
        """
        find_gpu()
        if len(handle) != HANDLE_BYTES:
            raise DeviceMemoryError(f"a handle has {HANDLE_BYTES} bytes, not {len(handle)}")
        if abs(device_id) > _MAX_ID:
            raise DeviceMemoryError(f"there is no GPU {device_id}")
        self.device_id = device_id
        self._context = context(device_id)
        self._address = ctypes.c_uint64()
        flags = ctypes.c_uint(_LAZY_ENABLE_PEER_ACCESS)
        size = ctypes.c_size_t()
        with current(self._context):
            call("cuIpcOpenMemHandle_v2", ctypes.byref(self._address), _Handle.from_buffer_copy(handle), flags)
            finalizer = weakref.finalize(self, _close, self._context, self._address)
            finalizer.atexit = False  # the end of the process closes everything
            call("cuMemGetAddressRange_v2", None, ctypes.byref(size), self._address)
        self.size_bytes = size.value

    def address(self, offset: int) -> int:
        """Return where a position in it is in the GPU's memory, as this process has it."""
        return self._address.value + offset

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return a copy of a range, which must be inside.

        Raises:
            DeviceMemoryError: the driver could not copy it.
        """
        content = (ctypes.c_char * size_bytes)()
        self.copy_out(offset, ctypes.addressof(content), size_bytes)
        return content.raw

    def copy_out(self, offset: int, target: int, size_bytes: int) -> None:
        """Copy a range, which must be inside, to an address in host memory. Raises DeviceMemoryError."""
        copy_out(self.device_id, self.address(offset), target, size_bytes)

    def write(self, offset: int, content: bytes) -> None:
        """Copy bytes to a range, which must be inside; when this returns, they are there for every process.

        Raises:
            DeviceMemoryError: the driver could not copy them.
        """
        if content:
            with current(self._context):
                target = ctypes.c_uint64(self.address(offset))
                call("cuMemcpyHtoD_v2", target, content, ctypes.c_size_t(len(content)))
                # The copy may still be under way: of a few KiB CUDA only takes a copy of its own before it returns.
                call("cuStreamSynchronize", _DEFAULT_STREAM)


def copy_out(device_id: int, address: int, target: int, size_bytes: int) -> None:
    """Copy from an address in a GPU's memory to one in host memory. Raises DeviceMemoryError."""
    if size_bytes:
        with current(context(device_id)):
            source, size = ctypes.c_uint64(address), ctypes.c_size_t(size_bytes)
            call("cuMemcpyDtoH_v2", ctypes.c_void_p(target), source, size)


def _close(handle: ctypes.c_void_p, address: ctypes.c_uint64) -> None:
    try:
        with current(handle):
            call("cuCtxSynchronize")  # a model may have let go of what its kernels still read
            call("cuIpcCloseMemHandle", address)
    except DeviceMemoryError as error:
        logger.warning("memory of a GPU that a client has shared cannot be closed: %s", error)


def visible_gpus() -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that CUDA shows to this process, in its order, () where there are none; blocks."""
    if os.environ.get(VISIBLE) == "":
        return ()
    try:
        count = ctypes.c_int()
        call("cuDeviceGetCount", ctypes.byref(count))
        return tuple([uuid_of(device_id) for device_id in range(count.value)])
    except DeviceMemoryError:
        return ()


def only_gpu(ids: Sequence[str], uuids: Sequence[str]) -> str:
    """Return which of a node's GPUs a process has, by the number or the UUID that Ray names it by, "" for several."""
    if len(ids) != 1:
        return ""
    found = (uuid for number, uuid in enumerate(uuids) if ids[0] == str(number) or uuid.startswith(ids[0]))
    return next(found, "")


def uuid_of(device_id: int) -> str:
    """Return the UUID of a GPU, by which other processes know it, whatever number it has there.

    Raises:
        DeviceMemoryError: there is no such GPU.
    """
    uuid = (ctypes.c_char * _UUID_BYTES)()
    call("cuDeviceGetUuid_v2", uuid, device(device_id))
    return uuid.raw.hex()


def has_lost_gpu() -> bool:
    """Return whether a GPU that this process uses answers every call with an error; waits for what runs there.

    A process from which Ray hides all GPUs, and that has opened no memory of one, uses none; the driver stays as it is.
    """
    if os.environ.get(VISIBLE) == "" and not driver.cache_info().currsize:
        return False
    try:
        count = ctypes.c_int()
        call("cuDeviceGetCount", ctypes.byref(count))
    except DeviceMemoryError:
        return False
    return any(_is_lost(device_id) for device_id in range(count.value))


def _is_lost(device_id: int) -> bool:
    flags, active = ctypes.c_uint(), ctypes.c_int()
    try:
        call("cuDevicePrimaryCtxGetState", device(device_id), ctypes.byref(flags), ctypes.byref(active))
        if active.value:
            with current(context(device_id)):
                call("cuCtxSynchronize")
    except DeviceMemoryError as error:
        return _CAPTURES not in str(error)
    return False
