"""DLPack capsules: what NumPy lacks of them, which is BF16, plain capsules and the memory of GPUs.

A capsule named `dltensor` points to a `DLManagedTensor`, which starts with a `DLTensor`. Who takes it renames the
capsule to `used_dltensor`, and calls the tensor's deleter when it needs the memory no more; NumPy writes both.
Source: `dlpack.h`, version 0.
"""

import ctypes
import sys
from typing import Any, Final

import numpy as np

from deployments.backends.python.errors import TritonModelException
from deployments.replica.cuda_driver import DeviceMemoryError
from deployments.replica.device_memory import copy_out
from protocol.infer import Array

CPU = 1
CUDA = 2
_HOST_DEVICES = (CPU, 3, 11)  # 3 and 11 are host memory that CUDA and ROCm pinned
_UINT = 1
_BFLOAT = 4
_KINDS: Final = {0: "i", _UINT: "u", 2: "f", _BFLOAT: "u", 5: "c", 6: "b"}
"""NumPy's kinds by DLPack's type codes; unsigned integers stand for BF16."""

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


class _Tensor(ctypes.Structure):
    """`DLTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Capsule:
    """A bare capsule as an object that answers the DLPack protocol, once."""

    __slots__ = ("_capsule",)

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: object) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        tensor = _tensor(self._capsule)
        return (tensor.device_type, tensor.device_id)

    @property
    def shape(self) -> list[int]:
        """The shape of its tensor."""
        tensor = _tensor(self._capsule)
        return tensor.shape[: tensor.rank]  # type: ignore[no-any-return]


class _Elsewhere:
    """Memory that NumPy makes an array over without looking at it; `owner` keeps it."""

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        owner: object,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": shape,
            "typestr": dtype.str,
            "strides": strides,
        }


def export(array: Array, bfloat16: bool) -> object:
    """Return a capsule that shares the array's memory; `bfloat16` marks the uint16 of the array as BF16."""
    capsule: object = (array if array.flags.writeable else array.copy()).__dlpack__()
    if bfloat16:
        _tensor(capsule).code = _BFLOAT
    return capsule


def export_device(
    address: int, device_id: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object, *, bfloat16: bool
) -> object:
    """Return a capsule over a contiguous tensor in a GPU's memory, which keeps `owner` until its deleter has run."""
    capsule: object = np.asarray(_Elsewhere(address, shape, dtype, owner)).__dlpack__()
    tensor = _tensor(capsule)
    tensor.device_type, tensor.device_id = CUDA, device_id
    if bfloat16:
        tensor.code = _BFLOAT
    return capsule


def is_on_host(source: Any) -> bool:
    """Return whether the memory of an object with `__dlpack_device__` can be read by the CPU."""
    return source.__dlpack_device__()[0] in _HOST_DEVICES


def import_host(source: Any) -> tuple[Array, bool]:
    """Return an array over the memory of a host tensor, and whether its uint16 stand for BF16."""
    capsule = source.__dlpack__()
    tensor = _tensor(capsule)
    bfloat16 = tensor.code == _BFLOAT
    if bfloat16:
        tensor.code = _UINT
    array: Array = np.from_dlpack(Capsule(capsule))  # type: ignore[arg-type]
    if not array.flags.writeable and array.size:  # NumPy knows of no capsule of this kind whether it may be written to
        array = np.asarray(_Elsewhere(array.ctypes.data, array.shape, array.dtype, array, array.strides))
    return array, bfloat16


def import_device(source: Any) -> tuple[Array, bool]:
    """Copy a GPU tensor to the host; the flag says that uint16 stand for BF16.

    A framework that the model uses does that, whatever the tensor's layout; else CUDA's driver, if it is contiguous, as
    where PyTorch is built for the CPU.
    """
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and (source.__dlpack_device__()[0] != CUDA or torch.cuda.is_available()):
        tensor = torch.from_dlpack(source).cpu()
        if tensor.dtype == torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(np.uint16), True
        return tensor.numpy(), False
    if cupy is not None:
        array: Array = cupy.from_dlpack(source).get()
        return array, False
    return _copied(source)


def _copied(source: Any) -> tuple[Array, bool]:
    capsule = source.__dlpack__()
    tensor = _tensor(capsule)
    shape = tuple(tensor.shape[: tensor.rank])
    kind = _KINDS.get(tensor.code)
    if tensor.device_type != CUDA or kind is None or tensor.lanes != 1 or not _is_contiguous(tensor, shape):
        raise TritonModelException(
            "This tensor in GPU memory can be returned only by a model that uses PyTorch or CuPy."
        )
    array: Array = np.empty(shape, np.dtype(f"{kind}{tensor.bits // 8}"))
    try:
        copy_out(tensor.device_id, (tensor.data or 0) + tensor.byte_offset, array.ctypes.data, array.nbytes)
    except DeviceMemoryError as error:
        raise TritonModelException(f"A tensor in GPU memory cannot be copied: {error}") from None
    return array, tensor.code == _BFLOAT


def _is_contiguous(tensor: _Tensor, shape: tuple[int, ...]) -> bool:
    if not tensor.strides or 0 in shape:
        return True
    expected = 1
    for size, stride in zip(reversed(shape), reversed(tensor.strides[: tensor.rank]), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _address(capsule: object) -> int:
    try:
        address: int = _get_pointer(capsule, b"dltensor")
    except ValueError as error:
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
            f"`__dlpack_device__` attributes, found type '{type(capsule)}'."
        ) from error
    return address


def _tensor(capsule: object) -> _Tensor:
    return _Tensor.from_address(_address(capsule))
