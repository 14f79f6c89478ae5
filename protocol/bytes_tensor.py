"""BYTES tensors: on the wire each element is a little-endian uint32 length and its bytes, row-major."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np

from protocol.errors import Internal, InvalidArgument
from protocol.infer import Array
from protocol.limits import DEFAULT_LIMITS, Limits
from protocol.normalise import Shape, request_prefix

_LENGTH = Struct("<I")
_EVEN_FROM_COUNT = 16  # below, looking for elements of equal length costs more than it saves
# No single call takes more elements: a thread that does this gives the interpreter away only between calls.
_CHUNK_COUNT = 1 << 16
# Characters that are encoded by one.
_STEP = 1 << 20


def object_array(elements: Iterable[object], shape: Shape) -> Array:
    """Return an array of Python objects; NumPy left alone would look into strings and lists."""
    array = np.empty(math.prod(shape), dtype=object)
    listed = elements if isinstance(elements, list) else list(elements)
    if len(listed) <= _CHUNK_COUNT:
        array[:] = listed
    else:
        for at in range(0, len(listed), _CHUNK_COUNT):
            array[at : at + _CHUNK_COUNT] = listed[at : at + _CHUNK_COUNT]
    return array.reshape(shape)


def blank_array(dtype: np.dtype[np.generic], shape: Shape) -> Array:
    """Return a tensor of zeros, or of empty elements."""
    return np.full(shape, b"", object) if dtype.kind == "O" else np.zeros(shape, dtype)


def decode_bytes(
    buffer: bytes | memoryview,
    offset: int,
    byte_size: int,
    shape: Shape,
    name: str,
    model_name: str,
    request_id: str = "",
    limits: Limits = DEFAULT_LIMITS,
    kind: str = "input",
) -> Array:
    """Return the `bytes` objects of `buffer[offset : offset + byte_size]` in an object array of that shape.

    Errors speak of the `input` or `output` of that name.

    Raises:
        InvalidArgument: the elements do not fill the range exactly or are not as many as the shape says.
    """
    count = math.prod(shape)
    if not isinstance(buffer, bytes):
        buffer, offset = bytes(buffer[offset : offset + byte_size]), 0
    longest = limits.max_bytes_element_bytes
    elements = _even(buffer, offset, byte_size, count, longest) if count >= _EVEN_FROM_COUNT else None
    if elements is None:
        where = _Where(kind, name, model_name, request_id)
        elements = _walk(buffer, offset, offset + byte_size, count, where, longest)
        if len(elements) != count:
            raise where.too_few(count, len(elements))
    return object_array(elements, shape)


@dataclass(frozen=True, slots=True)
class _Where:
    """The tensor that is wrong, and Triton's texts for what is."""

    kind: str
    name: str
    model_name: str
    request_id: str

    def error(self, what: str, more: str) -> InvalidArgument:
        where = f" for inference {self.kind} '{self.name}' for model '{self.model_name}'"
        return InvalidArgument(f"{request_prefix(self.request_id)}{what}{where}{more}")

    def too_few(self, count: int, found: int) -> InvalidArgument:
        return self.error(f"expected {count} string elements", f", got {found}")

    def cut(self, length: int, available: int) -> InvalidArgument:
        """Return the error for a last element that is not all there; Triton's backends find it, not its core."""
        return InvalidArgument(
            f"incomplete string data for inference {self.kind} '{self.name}', expecting string of length {length} "
            f"but only {available} bytes available"
        )


def _walk(buffer: bytes, position: int, end: int, count: int, where: _Where, longest: int) -> list[bytes]:
    unpack = _LENGTH.unpack_from
    elements: list[bytes] = []
    append = elements.append
    last = end - 4
    while position <= last:
        stop = position + 4 + unpack(buffer, position)[0]
        length = stop - position - 4
        if stop > end:
            found = len(elements) + 1  # the one that is cut counts
            raise where.too_few(count, found) if found < count else where.cut(length, end - position - 4)
        if length > longest:
            raise where.error(f"string element of {length} bytes", f" is longer than {longest} bytes")
        append(buffer[position + 4 : stop])
        position = stop
        if len(elements) > count:
            raise where.error(f"unexpected number of string elements {len(elements)}", f", expecting {count}")
    if position != end:
        raise where.error(
            "incomplete string length indicator",
            f", expecting 4 bytes but only {end - position} bytes available. "
            "Please make sure the string length indicator is in one buffer.",
        )
    return elements


def _even(buffer: bytes, offset: int, byte_size: int, count: int, longest: int) -> list[bytes] | None:
    """Return the elements if all have the length of the first; hashes, keys and fixed-width images often do."""
    length, rest = divmod(byte_size, count)
    length -= 4
    if rest or not 0 < length <= longest:
        return None
    rows = np.ndarray((count,), np.dtype([("length", "<u4"), ("element", f"V{length}")]), buffer, offset)
    if not (rows["length"] == length).all():
        return None
    elements: list[bytes] = []
    for at in range(0, count, _CHUNK_COUNT):
        elements += rows["element"][at : at + _CHUNK_COUNT].tolist()
    return elements


def encode_bytes(array: Array) -> bytes:
    """Return the wire form of an array of `bytes` (or `str`, sent as UTF-8)."""
    if array.size <= _CHUNK_COUNT:
        return _joined(as_bytes(array))
    return b"".join([_joined(chunk) for chunk in _chunks(array)])


def encode_elements(elements: Sequence[bytes]) -> bytes:
    """Return the wire form of these elements, which may be those of a protobuf message."""
    return b"".join([_joined(list(elements[at : at + _CHUNK_COUNT])) for at in range(0, len(elements), _CHUNK_COUNT)])


def _joined(elements: list[bytes]) -> bytes:
    if not elements:
        return b""
    lengths = np.fromiter(map(len, elements), "<u4", len(elements)).tobytes()
    parts = [b""] * (2 * len(elements))
    parts[0::2] = [lengths[at : at + 4] for at in range(0, len(lengths), 4)]
    parts[1::2] = elements
    return b"".join(parts)


def as_bytes(array: Array) -> list[bytes]:
    """Return the elements of a BYTES array in row-major order.

    Raises:
        Internal: the model put something else than `bytes` or `str` into it.
    """
    return [element for chunk in _chunks(array) for element in chunk] if array.size > _CHUNK_COUNT else _listed(array)


def _chunks(array: Array) -> Iterator[list[bytes]]:
    flat = array.ravel()
    for at in range(0, flat.size, _CHUNK_COUNT):
        yield _listed(flat[at : at + _CHUNK_COUNT])


def _listed(array: Array) -> list[bytes]:
    elements: list[Any] = array.ravel().tolist()
    if set(map(type, elements)) <= {bytes}:
        return elements
    return [_as_bytes(element) for element in elements]


def has_many_strings(tensors: Mapping[str, Array]) -> bool:
    """Whether to encode these tensors takes so long that a loop should not wait for it."""
    for array in tensors.values():  # noqa: SIM110, any() takes more than twice as long
        if array.size > _CHUNK_COUNT and array.dtype == object:
            return True
    return False


def strings_length(tensors: Iterable[Array]) -> int:
    """Return how many bytes or characters the strings of these tensors have together, 0 where something else is."""
    try:
        return sum([sum(map(len, array.ravel().tolist())) for array in tensors if array.dtype == object])
    except TypeError:
        return 0


def _as_bytes(element: object) -> bytes:
    if isinstance(element, bytes | bytearray | memoryview):
        return bytes(element)
    if isinstance(element, str):
        pieces = [element[at : at + _STEP] for at in range(0, len(element), _STEP)]
        return b"".join([piece.encode("utf-8", "surrogateescape") for piece in pieces])
    raise Internal(f"an element of a BYTES tensor is neither bytes nor str but {type(element).__name__}")
