"""`pb_utils.Tensor`: a named array that a model reads or returns."""

from typing import Any

import numpy as np

from deployments.backends.python import dlpack
from deployments.backends.python.byte_tensor import host_bytes
from deployments.backends.python.errors import TritonModelException
from deployments.backends.python.text import text_argument
from protocol.datatypes import BY_NAME, of_array
from protocol.device_input import DeviceInput
from protocol.infer import Array


class Tensor:
    """A name and an array in host memory.

    BYTES arrays hold `bytes` when they come from a request; a model may return `bytes`, `str` or NumPy strings.
    """

    __slots__ = ("_array", "_name")

    def __init__(self, name: str, array: Array) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"Tensor '{name}' needs a numpy.ndarray, found type '{type(array)}'.")
        self._name = _checked_name(name)
        if type(array) is not np.ndarray:
            array = np.asarray(array)
        self._array: Array = array if array.flags.c_contiguous else array.copy(order="C")

    def name(self) -> str:
        """Return the name of the input or output."""
        return self._name

    def as_numpy(self) -> Array:
        """Return the array itself; the model may write to it."""
        return self._array

    def shape(self) -> list[int]:
        """Return the shape, the batch dimension included."""
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        """Return the datatype's number in `model_config.proto`."""
        return of_array(self._array).enum

    def is_cpu(self) -> bool:
        """Return whether the array is in host memory."""
        return True

    def to_dlpack(self) -> object:
        """Return a DLPack capsule over the tensor's memory."""
        return self.__dlpack__()

    @staticmethod
    def from_dlpack(name: str, source: Any) -> "Tensor":
        """Return a tensor over the memory of a DLPack capsule or of an object that can make one.

        Raises:
            TritonModelException: it is neither, or its name is empty.
        """
        name = _checked_name(name)
        if isinstance(source, DeviceTensor):
            return source.renamed(name)
        owner = source if hasattr(source, "__dlpack__") else dlpack.Capsule(source)
        if not dlpack.is_on_host(owner):
            return DeviceTensor(name, owner)
        array, bfloat16 = dlpack.import_host(owner)
        return BFloat16Tensor(name, array) if bfloat16 else Tensor(name, array)

    def host_bytes(self) -> int:
        """Return how much memory the array takes."""
        return host_bytes(self._array)

    def on_host(self) -> "Tensor":
        """Return the tensor in host memory: itself, or a copy."""
        return self

    def host_array(self, bfloat16: bool) -> Array:
        """Return the array as an output; `bfloat16` says that the model's output is configured as BF16."""
        return self._array

    def __dlpack__(self, *, stream: object = None, **_: object) -> object:
        if self._array.dtype.kind in "OSU":
            raise TritonModelException("DLPack does not have support for string tensors.")
        return dlpack.export(self._array, bfloat16=False)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CPU, 0)


class BFloat16Tensor(Tensor):
    """A tensor whose array holds the raw 16 bits of BF16 as uint16; NumPy has no such type."""

    __slots__ = ()

    def as_numpy(self) -> Array:
        """Refuse, as Triton does."""
        raise TritonModelException(
            "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
        )

    def triton_dtype(self) -> int:
        """Return the number of TYPE_BF16."""
        return BY_NAME["BF16"].enum

    def host_array(self, bfloat16: bool) -> Array:
        """Return the raw bits, which only an output of TYPE_BF16 can take."""
        if not bfloat16:
            raise TritonModelException(
                f"Tensor '{self._name}' is BF16, which the model configuration does not specify."
            )
        return self._array

    def __dlpack__(self, *, stream: object = None, **_: object) -> object:
        return dlpack.export(self._array, bfloat16=True)


class DeviceTensor(Tensor):
    """A tensor in GPU memory; it is copied to the host when it is returned as an output."""

    __slots__ = ("_source",)

    def __init__(self, name: str, source: Any) -> None:
        self._name = name
        self._source = source

    def renamed(self, name: str) -> "DeviceTensor":
        """Return a tensor of another name over the same memory."""
        return DeviceTensor(name, self._source)

    def as_numpy(self) -> Array:
        """Refuse, as Triton does."""
        raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")

    def shape(self) -> list[int]:
        """Return the shape that the owner of the memory knows."""
        return list(self._source.shape)

    def triton_dtype(self) -> int:
        """Return the datatype's number; the tensor is copied to the host to learn it."""
        return self.on_host().triton_dtype()

    def is_cpu(self) -> bool:
        """Return False."""
        return False

    def on_host(self) -> Tensor:
        """Return a copy."""
        array, bfloat16 = dlpack.import_device(self._source)
        return BFloat16Tensor(self._name, array) if bfloat16 else Tensor(self._name, array)

    def host_bytes(self) -> int:
        """Return how much memory a copy takes."""
        return self.on_host().host_bytes()

    def host_array(self, bfloat16: bool) -> Array:
        """Return a copy in host memory."""
        return self.on_host().host_array(bfloat16)

    def __dlpack__(self, *, stream: object = None, **_: object) -> object:
        return self._source.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._source.__dlpack_device__()
        return device


class InputOnDevice(DeviceTensor):
    """An input that its client has put into a GPU's memory, which stays open as long as this or a capsule of it lives.

    The client wrote it before it sent its request, so whatever stream a model reads it on need not wait.
    """

    __slots__ = ("_memory", "given")

    def __init__(self, name: str, given: DeviceInput) -> None:
        """Open it, unless it is open. Raises ServingError."""
        self._name = name
        self.given = given
        self._memory = given.memory.open()

    def renamed(self, name: str) -> DeviceTensor:
        """Return a tensor of another name over the same memory."""
        return InputOnDevice(name, self.given)

    def shape(self) -> list[int]:
        """Return the shape, the batch dimension included."""
        return list(self.given.shape)

    def triton_dtype(self) -> int:
        """Return the datatype's number."""
        return self.given.datatype.enum

    def on_host(self) -> Tensor:
        """Return a copy, which needs no framework. Raises ServingError."""
        _, offset, shape, datatype = self.given
        if datatype.name == "BOOL":
            raw = np.empty(shape, np.uint8)
            self._memory.copy_out(offset, raw.ctypes.data, raw.nbytes)
            return Tensor(self._name, raw != 0)
        array: Array = np.empty(shape, datatype.numpy)
        self._memory.copy_out(offset, array.ctypes.data, array.nbytes)
        return BFloat16Tensor(self._name, array) if datatype.name == "BF16" else Tensor(self._name, array)

    def __dlpack__(self, *, stream: object = None, **_: object) -> object:
        memory, given = self._memory, self.given
        return dlpack.export_device(
            memory.address(given.offset),
            memory.device_id,
            given.shape,
            given.datatype.numpy,
            memory,
            bfloat16=given.datatype.name == "BF16",
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CUDA, self._memory.device_id)


# Python's own errors, which reach clients, call them as models know them.
BFloat16Tensor.__name__ = DeviceTensor.__name__ = InputOnDevice.__name__ = Tensor.__name__


def _checked_name(name: object) -> str:
    text = name if isinstance(name, str) else text_argument("The name of a Tensor", name)
    if not text:
        raise TritonModelException("Tensor name cannot be an empty string.")
    return text
