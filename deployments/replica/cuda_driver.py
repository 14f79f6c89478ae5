"""What is called of CUDA's driver, which is there wherever a GPU is, and whose binary interface does not change.

The first use of a GPU makes a context on it: some hundred MiB of its memory, and a fraction of a second. Every thread
keeps the context that it had, so a model's code may call the driver too.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_LIBRARY: Final = "libcuda.so.1"


class DeviceMemoryError(Exception):
    """The driver refused; the message says what, and why."""


class NoGpuError(DeviceMemoryError):
    """There is no GPU here, or no driver for it."""


def find_gpu() -> None:
    """See that there is a GPU; blocks. Raises NoGpuError."""
    driver()


@cache
def driver() -> Any:
    """Return the driver, ready for use; raises NoGpuError."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise NoGpuError("there is no driver") from None
    # Ray hides all GPUs from an actor that has asked for none; the driver looks once.
    hidden = os.environ.get(VISIBLE) == ""
    if hidden:
        del os.environ[VISIBLE]
    try:
        refused = library.cuInit(0)
    finally:
        if hidden:
            os.environ[VISIBLE] = ""
    if refused:
        raise NoGpuError("the driver finds no GPU")
    return library


@cache
def _quick_driver() -> Any:
    """Return the driver for calls in which the interpreter's other threads wait; raises NoGpuError."""
    driver()
    return ctypes.PyDLL(_LIBRARY)


@cache
def context(device_id: int) -> ctypes.c_void_p:
    """Return the context of a GPU that all libraries of a process share."""
    handle = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(handle), device(device_id))
    return handle


def device(device_id: int) -> ctypes.c_int:
    """Return the driver's number of a GPU. Raises DeviceMemoryError where there is none with that number."""
    number = ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(number), ctypes.c_int(device_id))
    return number


@contextmanager
def current(handle: ctypes.c_void_p) -> Iterator[None]:
    """Have this thread use a context for a while."""
    call("cuCtxPushCurrent_v2", handle)
    try:
        yield
    finally:
        call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def call(name: str, *arguments: Any) -> None:
    """Call a function of the driver, while other threads go on. Raises DeviceMemoryError where it fails."""
    _call(driver(), name, arguments)


def call_quickly(name: str, *arguments: Any) -> None:
    """Call a function that returns in microseconds: to let other threads go on meanwhile would take longer.

    Raises:
        DeviceMemoryError: it has failed.
    """
    _call(_quick_driver(), name, arguments)


def _call(library: Any, name: str, arguments: tuple[Any, ...]) -> None:
    try:
        function = getattr(library, name)
    except AttributeError:
        raise DeviceMemoryError(f"the driver is too old to have {name}") from None
    code = function(*arguments)
    if code:
        text = ctypes.c_char_p()
        library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
        raise DeviceMemoryError(f"{name.partition('_')[0]}: {(text.value or str(code).encode()).decode()}")
