"""DLPack capsules: what NumPy lacks of them, which is BF16 and plain capsules.

A capsule named `dltensor` points to a `DLManagedTensor`, which starts with: data pointer (8 bytes), device type and
device id (int32 each), rank (int32), type code and bits (uint8 each). Source: `dlpack.h`, version 0.
"""

import ctypes
import sys
from typing import Any

import numpy as np

from deployments.backends.python.errors import TritonModelException
from protocol.infer import Array

CPU = 1
_HOST_DEVICES = (CPU, 3, 11)  # 3 and 11 are host memory that CUDA and ROCm pinned
_UINT = 1
_BFLOAT = 4
_DEVICE_OFFSET = 8
_CODE_OFFSET = 20

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


class Capsule:
    """A bare capsule as an object that answers the DLPack protocol, once."""

    __slots__ = ("_capsule",)

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: object) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        address = _address(self._capsule) + _DEVICE_OFFSET
        return (ctypes.c_int32.from_address(address).value, ctypes.c_int32.from_address(address + 4).value)


def export(array: Array, bfloat16: bool) -> object:
    """Return a capsule that shares the array's memory; `bfloat16` marks the uint16 of the array as BF16."""
    capsule: object = (array if array.flags.writeable else array.copy()).__dlpack__()
    if bfloat16:
        _type_code(capsule).value = _BFLOAT
    return capsule


def is_on_host(source: Any) -> bool:
    """Return whether the memory of an object with `__dlpack_device__` can be read by the CPU."""
    return source.__dlpack_device__()[0] in _HOST_DEVICES


def import_host(source: Any) -> tuple[Array, bool]:
    """Return an array over the memory of a host tensor, and whether its uint16 stand for BF16."""
    capsule = source.__dlpack__()
    code = _type_code(capsule)
    bfloat16 = code.value == _BFLOAT
    if bfloat16:
        code.value = _UINT
    return np.from_dlpack(Capsule(capsule)), bfloat16  # type: ignore[arg-type]


def import_device(source: Any) -> tuple[Array, bool]:
    """Copy a GPU tensor to the host with the framework that made it; the flag says that uint16 stand for BF16."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None:
        tensor = torch.from_dlpack(source).cpu()
        if tensor.dtype == torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(np.uint16), True
        return tensor.numpy(), False
    if cupy is not None:
        array: Array = cupy.from_dlpack(source).get()
        return array, False
    raise TritonModelException("A tensor in GPU memory can be returned only by a model that uses PyTorch or CuPy.")


def _address(capsule: object) -> int:
    try:
        address: int = _get_pointer(capsule, b"dltensor")
    except ValueError as error:
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
            f"`__dlpack_device__` attributes, found type '{type(capsule)}'."
        ) from error
    return address


def _type_code(capsule: object) -> ctypes.c_uint8:
    return ctypes.c_uint8.from_address(_address(capsule) + _CODE_OFFSET)
