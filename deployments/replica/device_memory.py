"""Memory of GPUs that clients share by CUDA's interprocess handles, opened in this process and copied from and to.

Nine functions of CUDA's driver, which is there wherever a GPU is, whose binary interface does not change. The first use
of a GPU makes a context on it: some hundred MiB of its memory, and a fraction of a second.
"""

import ctypes
import logging
import os
import weakref
from functools import cache
from typing import Any, Final

HANDLE_BYTES: Final = 64
"""Size of a handle, CUDA's `cudaIpcMemHandle_t`."""
_LIBRARY: Final = "libcuda.so.1"
_LAZY_ENABLE_PEER_ACCESS: Final = 1
_MAX_ID: Final = 2**31 - 1
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"

logger = logging.getLogger(__name__)


class DeviceMemoryError(Exception):
    """The driver refused; the message says what, and why."""


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class NoGpuError(DeviceMemoryError):
    """There is no GPU here, or no driver for it."""


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
        self._context = _context(device_id)
        self._address = ctypes.c_uint64()
        self._enter()
        flags = ctypes.c_uint(_LAZY_ENABLE_PEER_ACCESS)
        _call("cuIpcOpenMemHandle_v2", ctypes.byref(self._address), _Handle.from_buffer_copy(handle), flags)
        weakref.finalize(self, _close, self._context, self._address)
        size = ctypes.c_size_t()
        _call("cuMemGetAddressRange_v2", None, ctypes.byref(size), self._address)
        self.size_bytes = size.value

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return a copy of a range, which must be inside.

        Raises:
            DeviceMemoryError: the driver could not copy it.
        """
        if not size_bytes:
            return b""
        self._enter()
        content = (ctypes.c_char * size_bytes)()
        _call("cuMemcpyDtoH_v2", content, self._at(offset), ctypes.c_size_t(size_bytes))
        return content.raw

    def write(self, offset: int, content: bytes) -> None:
        """Copy bytes to a range, which must be inside. Raises DeviceMemoryError."""
        if content:
            self._enter()
            _call("cuMemcpyHtoD_v2", self._at(offset), content, ctypes.c_size_t(len(content)))

    def _enter(self) -> None:
        _call("cuCtxSetCurrent", self._context)

    def _at(self, offset: int) -> ctypes.c_uint64:
        return ctypes.c_uint64(self._address.value + offset)


def _close(context: ctypes.c_void_p, address: ctypes.c_uint64) -> None:
    try:
        _call("cuCtxSetCurrent", context)
        _call("cuIpcCloseMemHandle", address)
    except DeviceMemoryError as error:
        logger.warning("memory of a GPU that a client has shared cannot be closed: %s", error)


def find_gpu() -> None:
    """See that there is a GPU; blocks. Raises NoGpuError."""
    _driver()


@cache
def _driver() -> Any:
    """Return the driver, ready for use; raises NoGpuError."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise NoGpuError("there is no driver") from None
    # Ray hides all GPUs from an actor that has asked for none; the driver looks once.
    hidden = os.environ.get(_VISIBLE) == ""
    if hidden:
        del os.environ[_VISIBLE]
    try:
        refused = library.cuInit(0)
    finally:
        if hidden:
            os.environ[_VISIBLE] = ""
    if refused:
        raise NoGpuError("the driver finds no GPU")
    return library


@cache
def _context(device_id: int) -> ctypes.c_void_p:
    """Return the context of a GPU that all libraries of a process share."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(device_id))
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    return context


def _call(name: str, *arguments: Any) -> None:
    driver = _driver()
    code = getattr(driver, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
        raise DeviceMemoryError(f"{name.partition('_')[0]}: {(text.value or str(code).encode()).decode()}")
