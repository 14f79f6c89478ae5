"""Inputs of a batch that a GPU fetches from where they lie, request by request, without their being joined before.

To join images in the memory of the CPU takes about as long as a GPU takes to compute them; a GPU that fetches each from
pinned memory has them in a tenth of that.
"""

import ctypes
import logging
import math
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np

from deployments.lane.lendable import Lendable, Pin, address_of, lendable_under
from deployments.replica.cuda_driver import DeviceMemoryError, call, call_quickly, context, current
from deployments.replica.guarded_mapping import GuardedMapping
from protocol.infer import Array

log = logging.getLogger(__name__)

LEAST_BYTES: Final = 128 << 10
LEAST_REQUEST_BYTES: Final = 16 << 10
"""Less is joined sooner than fetched."""
MOST_PINNED_BYTES: Final = 1 << 30
"""In a process."""
_STREAM_OF_THREAD: Final = 2
_FOR_ALL_CONTEXTS: Final = ctypes.c_uint(1)
_PINNED: Final = math.inf
_NOT_TO_BE_PINNED: Final = -1.0


class DeviceRows(NamedTuple):
    """An input of a batch in the memory of a GPU, [rows, ...]."""

    address: int
    dtype: "np.dtype[Any]"
    shape: tuple[int, ...]


def first_rows(tensor: Array | DeviceRows, rows: int) -> Array | DeviceRows:
    """Return so many rows of an input."""
    return tensor._replace(shape=(rows, *tensor.shape[1:])) if isinstance(tensor, DeviceRows) else tensor[:rows]


class DeviceInputs:
    """Joins the inputs of batches in the memory of a GPU, the same for each batch of a thread.

    What it was joined for must be over when the thread joins again.
    """

    def __init__(self, device_id: int, *, pins: bool) -> None:
        self._device_id = device_id
        self._pins = pins
        self._of_thread = threading.local()

    def join(self, name: str, arrays: Sequence[Array], missing_rows: int = 0) -> Array | DeviceRows:
        """Return arrays one after the other, the last row again for each that is missing.

        Where they would be joined sooner than fetched, and where the GPU has no memory, that is an array.
        """
        if is_worth_fetching(arrays):
            try:
                return self._fetch(name, arrays, missing_rows)
            except DeviceMemoryError as error:  # the model's own run will tell what is wrong with the GPU
                log.debug("input '%s' is joined on the CPU: %s", name, error)
        filled = [*arrays, *_missing(arrays, missing_rows)]
        return np.concatenate(filled) if len(filled) > 1 else filled[0]

    def _fetch(self, name: str, arrays: Sequence[Array], missing_rows: int) -> DeviceRows:
        shape = arrays[0].shape
        if len(arrays) > 1 or missing_rows:
            shape = (sum(map(len, arrays)) + missing_rows, *shape[1:])
            arrays = [*arrays, *_missing(arrays, missing_rows)]
        with current(context(self._device_id)):
            memory = self._memory(name, sum([array.nbytes for array in arrays]))
            start_fetching(arrays, memory.address, self._device_id, _STREAM_OF_THREAD, pins=self._pins)
            call("cuStreamSynchronize", ctypes.c_void_p(_STREAM_OF_THREAD))
        return DeviceRows(memory.address, arrays[0].dtype, shape)

    def _memory(self, name: str, size_bytes: int) -> "_Memory":
        kept: dict[str, _Memory] = self._of_thread.__dict__
        if name in kept and kept[name].size_bytes < size_bytes:
            del kept[name]  # before there is another
        if name not in kept:
            kept[name] = _Memory(self._device_id, size_bytes)
        return kept[name]


def is_worth_fetching(arrays: Sequence[Array]) -> bool:
    """Whether a GPU has arrays sooner if it fetches each of them; they may be joined in either way if they can be."""
    size_bytes = sum([array.nbytes for array in arrays])
    if size_bytes < max(LEAST_BYTES, LEAST_REQUEST_BYTES * len(arrays)):
        return False
    kind = arrays[0].dtype, arrays[0].shape[1:]
    return not kind[0].hasobject and all([(array.dtype, array.shape[1:]) == kind for array in arrays])


def start_fetching(arrays: Sequence[Array], target: int, device_id: int, stream: int, *, pins: bool) -> None:
    """Have a GPU fetch arrays one after the other to an address in its memory, on a stream that must be waited for.

    Until then they stay as they are. With `pins`, shared memory is pinned once as much of it was fetched as it has.

    Raises:
        DeviceMemoryError: the driver has refused; the stream was waited for.
    """
    with current(context(device_id)):
        try:
            _start_each(arrays, target, device_id, ctypes.c_void_p(stream), pins=pins)
        except Exception:
            with suppress(DeviceMemoryError):  # of a GPU that is lost
                call("cuStreamSynchronize", ctypes.c_void_p(stream))
            raise


def _start_each(arrays: Sequence[Array], target: int, device_id: int, stream: ctypes.c_void_p, *, pins: bool) -> None:
    for array in arrays:
        in_order = np.ascontiguousarray(array)
        mapping = lendable_under(in_order)
        is_pinned = pins and mapping is not None and _pinned.is_pinned(mapping, device_id, array.nbytes)
        if not is_pinned and isinstance(mapping, GuardedMapping):
            in_order = array.copy()  # where its client makes it smaller meanwhile, the driver is not to be interrupted
        start = call_quickly if is_pinned else call  # from other memory CUDA may copy before it returns
        source, size = ctypes.c_void_p(address_of(in_order)), ctypes.c_size_t(array.nbytes)
        start("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(target), source, size, stream)
        if in_order is not array:  # which goes away
            call("cuStreamSynchronize", stream)
        target += array.nbytes


def _missing(arrays: Sequence[Array], count: int) -> list[Array]:
    return [next(array for array in reversed(arrays) if len(array))[-1:]] * count if count else []


class _Memory:
    """An allocation on a GPU; raises DeviceMemoryError where there is none left."""

    def __init__(self, device_id: int, size_bytes: int) -> None:
        address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        self.address = address.value
        self.size_bytes = size_bytes
        weakref.finalize(self, _let_go, device_id, "cuMemFree_v2", address).atexit = False


class _PinnedMemory:
    """Mappings from which a GPU can fetch by itself; any thread may ask."""

    def __init__(self) -> None:
        self._fetched_bytes: weakref.WeakKeyDictionary[Lendable, float] = weakref.WeakKeyDictionary()
        self._size_bytes = 0
        self._lock = threading.Lock()

    def is_pinned(self, mapping: Lendable, device_id: int, size_bytes: int) -> bool:
        """Note that so many bytes are fetched from a mapping; pin it once that is worth it."""
        with self._lock:
            fetched_bytes = self._fetched_bytes.get(mapping, 0)
            if fetched_bytes in (_PINNED, _NOT_TO_BE_PINNED):
                return fetched_bytes == _PINNED
            fetched_bytes += size_bytes
            if fetched_bytes >= len(mapping) and (version := mapping.version()) is not None:
                fetched_bytes = _PINNED if self._pin(mapping, Pin(version), device_id) else _NOT_TO_BE_PINNED
            self._fetched_bytes[mapping] = fetched_bytes
            return fetched_bytes == _PINNED

    def _pin(self, mapping: Lendable, pin: Pin, device_id: int) -> bool:
        size_bytes = len(mapping)
        if not mapping.may_be_pinned or self._size_bytes + size_bytes > MOST_PINNED_BYTES:
            return False
        address = ctypes.c_void_p(mapping.address)
        try:
            call("cuMemHostRegister_v2", address, ctypes.c_size_t(size_bytes), _FOR_ALL_CONTEXTS)
        except DeviceMemoryError as error:
            log.info("shared memory of %d bytes cannot be pinned: %s", size_bytes, error)
            return False
        self._size_bytes += size_bytes
        mapping.pin = pin
        weakref.finalize(pin, self._unpin, device_id, address, size_bytes).atexit = False
        return True

    def _unpin(self, device_id: int, address: ctypes.c_void_p, size_bytes: int) -> None:
        _let_go(device_id, "cuMemHostUnregister", address)
        self._size_bytes -= size_bytes


def _let_go(device_id: int, name: str, address: Any) -> None:
    try:
        with current(context(device_id)):
            call(name, address)
    except DeviceMemoryError as error:
        log.debug("%s", error)  # of a GPU that is lost


_pinned = _PinnedMemory()
