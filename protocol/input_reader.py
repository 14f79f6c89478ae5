"""Inputs that are more than numbers lying in the body: inline JSON, shared memory, BYTES and BOOL."""

from typing import Any

import numpy as np

from protocol.bytes_tensor import decode_bytes, object_array
from protocol.device_input import DeviceInput, DeviceRegions
from protocol.infer import Array
from protocol.json_tensor import array_from_json
from protocol.limits import Limits
from protocol.normalise import Shape
from protocol.request_header import InputSource
from protocol.shared_memory import SharedMemory, open_view
from protocol.signature import Signature, TensorSpec


class InputReader:
    """Reads such inputs for one model; those on GPUs stay in `device_regions`, None: the model takes none there."""

    def __init__(
        self,
        signature: Signature,
        limits: Limits,
        shared_memory: SharedMemory,
        device_regions: DeviceRegions | None = None,
    ) -> None:
        self._model_name = signature.model_name
        self._limits = limits
        self._shared_memory = shared_memory
        self._device_regions = device_regions

    def read(
        self,
        body: bytes | memoryview,
        offset: int,
        byte_size: int,
        shape: Shape,
        source: InputSource,
        request_id: str,
    ) -> Array | DeviceInput:
        """Return an input that is not in the JSON, shaped as the model sees it; in shared memory a view, not a copy.

        Raises:
            ServingError: the values do not fit datatype or shape, or the region is not there.
        """
        spec = source.spec
        if source.whole:
            return object_array([bytes(body[offset : offset + byte_size])], shape)
        if source.region is not None:
            if self._device_regions is not None and spec.datatype.byte_size:
                memory = self._device_regions.memory(source.region)
                if memory is not None:
                    return DeviceInput(memory, source.region.offset, tuple(shape), spec.datatype)
            body = open_view(self._shared_memory, source.region).toreadonly()
            offset, byte_size = 0, source.region.byte_size
        return self._from_buffer(body, offset, byte_size, shape, spec, request_id)

    def from_json(self, data: Any, shape: Shape, spec: TensorSpec, request_id: str) -> Array:
        """Return the input that JSON spells.

        Raises:
            InvalidArgument: it does not fit datatype or shape.
        """
        return array_from_json(data, spec.datatype, shape, spec.name, self._model_name, self._limits, request_id)

    def _from_buffer(
        self, buffer: bytes | memoryview, offset: int, byte_size: int, shape: Shape, spec: TensorSpec, request_id: str
    ) -> Array:
        kind = spec.datatype.numpy.kind
        if kind == "O":
            return decode_bytes(buffer, offset, byte_size, shape, spec.name, self._model_name, request_id, self._limits)
        if kind == "b":
            return booleans(buffer, offset, shape)
        return np.ndarray(shape, spec.datatype.numpy, buffer, offset)


def booleans(buffer: bytes | memoryview, offset: int, shape: Shape) -> Array:
    """Return a BOOL tensor; a byte other than 0 and 1, which NumPy must never see in a bool array, counts as true."""
    raw = np.ndarray(shape, np.uint8, buffer, offset)
    return raw != 0 if raw.size and raw.max() > 1 else raw.view(np.bool_)
