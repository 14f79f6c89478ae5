"""Tensors as JSON: an input's `data`, flat or nested, becomes an array; an output becomes a flat `data`."""

import math
import re
from itertools import chain
from typing import Any

import numpy as np
import orjson

from protocol.bytes_tensor import as_bytes, object_array
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.infer import Array
from protocol.json_document import (
    NON_ARRAY,
    NON_BOOLEAN,
    NON_NUMBER,
    NON_SIGNED,
    NON_STRING,
    NON_UNSIGNED,
    too_deep,
    unparsable,
)
from protocol.limits import Limits
from protocol.normalise import Shape, request_prefix

_FP32_BOUND = float(2**128 - 2**103)  # from here on a double rounds to infinity
_BINARY_ONLY = ("FP16", "BF16")
# Elements, and bytes of strings, that are written in about a millisecond.
_PIECE = 1 << 15
_PIECE_BYTES = 1 << 20
_STRING_BYTES = 32  # what a string takes, however short it is
_FIRST_STRINGS = 4
_STRINGS_STEP = 8
_CHARACTER_BYTES = 4
_UNSAFE = re.compile(rb'["\\\x00-\x1f]')


def array_from_json(
    data: Any, datatype: DataType, shape: Shape, name: str, model_name: str, limits: Limits, request_id: str = ""
) -> Array:
    """Return the array that an input's `data` spells, row-major whatever its nesting; not for FP16 and BF16.

    Unlike Triton, which casts, numbers that do not fit the datatype are refused.

    Raises:
        InvalidArgument: wrong kind of element, wrong count, out of range, too deep, too many.
    """
    count = math.prod(shape)
    _check_size(count, datatype, name, limits)
    if not isinstance(data, list):
        raise unparsable("data", NON_ARRAY)
    elements, kinds = _flatten(data, limits)
    if datatype.name == "BYTES":
        return _bytes_array(elements, kinds, shape, name, model_name, limits, request_id)
    _check_kinds(kinds, datatype)
    if len(elements) != count:
        raise unparsable("data", "Shape does not match true shape of 'data' field")
    if datatype.numpy.kind == "b":
        return np.frombuffer(bytearray(elements), dtype=np.bool_).reshape(shape)
    return (_floats if datatype.numpy.kind == "f" else _integers)(elements, datatype, name).reshape(shape)


def check_has_json_form(datatype: DataType, name: str) -> None:
    """Raise `InvalidArgument` if values of that type cannot be sent as JSON."""
    if datatype.name in _BINARY_ONLY:
        raise InvalidArgument(
            f"receiving {datatype.name} data via JSON is not supported. Please use the binary data format for "
            f"input {name}"
        )


def _check_size(count: int, datatype: DataType, name: str, limits: Limits) -> None:
    if count > limits.json_max_elements:
        raise InvalidArgument(f"JSON input '{name}' has {count} elements, more than {limits.json_max_elements}")
    byte_size = count * datatype.byte_size
    if byte_size > limits.http_max_input_size_bytes:
        raise _too_large(name, byte_size, limits)


def _too_large(name: str, byte_size: int, limits: Limits) -> InvalidArgument:
    return InvalidArgument(
        f"JSON input '{name}' has a byte_size ({byte_size} bytes) that exceeds the maximum allowed value of "
        f"{limits.http_max_input_size_bytes} bytes. Use --http-max-input-size to increase the limit."
    )


def _flatten(data: list[Any], limits: Limits) -> tuple[list[Any], set[type]]:
    """Return the scalars in row-major order and their types; each list is visited once, however they nest."""
    depth = 1
    while True:
        kinds = set(map(type, data))
        if list not in kinds:
            break
        if depth >= limits.json_max_depth:
            raise too_deep(limits)
        if len(kinds) > 1:
            data = _flatten_mixed(data, depth, limits)
            kinds = set(map(type, data))
            break
        data = list(chain.from_iterable(data))
        depth += 1
    if len(data) > limits.json_max_elements:
        raise InvalidArgument(f"JSON 'data' has {len(data)} elements, more than {limits.json_max_elements}")
    return data, kinds


def _flatten_mixed(data: list[Any], depth: int, limits: Limits) -> list[Any]:
    scalars: list[Any] = []
    stack = [iter(data)]
    while stack:
        for element in stack[-1]:
            if isinstance(element, list):
                if depth + len(stack) > limits.json_max_depth:
                    raise too_deep(limits)
                stack.append(iter(element))
                break
            scalars.append(element)
        else:
            stack.pop()
    return scalars


def _check_kinds(kinds: set[type], datatype: DataType) -> None:
    kind = datatype.numpy.kind
    if kind == "f":
        if not kinds <= {int, float}:
            raise unparsable("data", NON_NUMBER)
    elif kind == "b":
        if not kinds <= {bool}:
            raise unparsable("data", NON_BOOLEAN)
    elif not kinds <= {int}:
        raise unparsable("data", NON_UNSIGNED if kind == "u" else NON_SIGNED)


def _floats(elements: list[float], datatype: DataType, name: str) -> Array:
    try:
        wide = np.fromiter(elements, np.float64, len(elements))
    except OverflowError:
        raise _out_of_range(datatype, name) from None
    if datatype.byte_size == 8:
        return wide
    if wide.size and not -_FP32_BOUND < wide.min() <= wide.max() < _FP32_BOUND:  # not so either if there is a NaN
        beyond = np.abs(wide) >= _FP32_BOUND
        if np.isfinite(wide[beyond]).any():
            raise _out_of_range(datatype, name)
    return wide.astype(datatype.numpy)


def _integers(elements: list[int], datatype: DataType, name: str) -> Array:
    unsigned = datatype.numpy.kind == "u"
    if not elements:
        return np.empty(0, dtype=datatype.numpy)
    try:
        wide = np.fromiter(elements, np.int64, len(elements))
        low, high = int(wide.min()), int(wide.max())
    except OverflowError:
        low, high = min(elements), max(elements)
        if low >= 0 and high < 2**64 and datatype.name == "UINT64":
            return np.array(elements, dtype=np.uint64)
    if unsigned and low < 0:
        raise unparsable("data", NON_UNSIGNED)
    if not unsigned and high >= 2**63:
        raise unparsable("data", NON_SIGNED)
    bits = 8 * datatype.byte_size - (not unsigned)
    if low < (0 if unsigned else -(2**bits)) or high >= 2**bits:
        raise _out_of_range(datatype, name)
    return wide.astype(datatype.numpy, copy=False)


def _out_of_range(datatype: DataType, name: str) -> InvalidArgument:
    return unparsable("data", f"value out of range of {datatype.name} for input '{name}'")


def _bytes_array(
    elements: list[Any],
    kinds: set[type],
    shape: Shape,
    name: str,
    model_name: str,
    limits: Limits,
    request_id: str,
) -> Array:
    if not kinds <= {str}:
        raise InvalidArgument(f"Unable to parse JSON bytes array: {NON_STRING}")
    count = math.prod(shape)
    problem = f"for inference input '{name}' for model '{model_name}'"
    if len(elements) > count:
        raise InvalidArgument(
            f"{request_prefix(request_id)}unexpected number of string elements {count + 1} {problem}, expecting {count}"
        )
    if len(elements) < count:
        raise InvalidArgument(
            f"{request_prefix(request_id)}expected {count} string elements {problem}, got {len(elements)}"
        )
    encoded = [element.encode() for element in elements]
    if (byte_size := sum(map(len, encoded)) + 4 * count) > limits.http_max_input_size_bytes:
        raise _too_large(name, byte_size, limits)
    return object_array(encoded, shape)


def array_to_json(array: Array, datatype: DataType) -> list[bytes]:
    """Return the text of an output's `data`: flat, NaN and infinities by name, BYTES as they are.

    Large text comes in pieces, since the interpreter's lock is held while one is written.

    Raises:
        InvalidArgument: FP16 and BF16 have no JSON form.
    """
    if datatype.name in _BINARY_ONLY:
        raise json_unsupported(datatype)
    if datatype.name == "BYTES":
        strings = as_bytes(array)
        count = len(strings)
        if count <= _PIECE and count * _STRING_BYTES + sum(map(len, strings)) <= _PIECE_BYTES:
            return [_bytes_to_json(strings)]
        return _strings_to_json(strings)
    flat = np.ascontiguousarray(array, dtype=datatype.numpy).ravel()
    finite = datatype.numpy.kind != "f" or bool(np.isfinite(flat).all())
    if flat.size <= _PIECE:
        return [_numbers_to_json(flat, finite)]
    numbers = [_numbers_to_json(flat[at : at + _PIECE], finite) for at in range(0, flat.size, _PIECE)]
    return _one_array([_continued(array) for array in numbers])


def _numbers_to_json(flat: Array, finite: bool) -> bytes:
    text = orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)
    if finite:
        return text
    named = flat[~np.isfinite(flat)]  # each of which is `null` now
    for name, which in ((b"NaN", np.isnan(named)), (b"Infinity", named == np.inf), (b"-Infinity", named == -np.inf)):
        if which.all():
            return text.replace(b"null", name)
    names = [b"NaN" if value != value else b"Infinity" if value > 0 else b"-Infinity" for value in named.tolist()]
    return b"".join(chain.from_iterable(zip(text.split(b"null"), [*names, b""], strict=True)))


def _strings_to_json(strings: list[bytes]) -> list[bytes]:
    """Return an array in pieces: a part of a long string, or some strings, as many as the text of those before says.

    Adding up all lengths would take long.
    """
    pieces: list[bytes] = []
    at, count = 0, _FIRST_STRINGS
    while at < len(strings):
        some = strings[at : at + count]
        if max(map(len, some)) <= _PIECE_BYTES:
            pieces.append(_continued(_bytes_to_json(some)))
        elif len(some) == 1:
            pieces += _long_string_to_json(some[0])
        else:
            count = max(1, count // _STRINGS_STEP)
            continue
        at += len(some)
        if len(pieces[-1]) > _PIECE_BYTES:
            count = max(1, count // _STRINGS_STEP)
        elif len(pieces[-1]) <= _PIECE_BYTES // _STRINGS_STEP:
            count = min(_PIECE, count * _STRINGS_STEP)
    return _one_array(pieces)


def _long_string_to_json(string: bytes) -> list[bytes]:
    """Return the text of one element behind others, cut between characters."""
    pieces = [b',"']
    at = 0
    while at < len(string):
        end = min(at + _PIECE_BYTES, len(string))
        while end < len(string) and end > at + _PIECE_BYTES - _CHARACTER_BYTES and string[end] & 0xC0 == 0x80:
            end -= 1
        pieces.append(_bytes_to_json([string[at:end]])[2:-2])
        at = end
    return [*pieces, b'"']


def _continued(array: bytes) -> bytes:
    """Return the elements of an array as they stand behind others."""
    return b"," + memoryview(array)[1:-1]


def _one_array(pieces: list[bytes]) -> list[bytes]:
    """Return the array whose elements, each behind a comma, these are."""
    return [b"[", pieces[0][1:], *pieces[1:], b"]"]


def json_unsupported(datatype: DataType) -> InvalidArgument:
    """Return the error for an output that is wanted as JSON but can only be sent in binary."""
    return InvalidArgument(
        f"sending {datatype.name} data via JSON is not supported. Please use the binary data format for output"
    )


def _bytes_to_json(elements: list[bytes]) -> bytes:
    try:
        return orjson.dumps([element.decode() for element in elements])
    except UnicodeDecodeError:
        return b"[" + b",".join([b'"' + _UNSAFE.sub(_escaped, element) + b'"' for element in elements]) + b"]"


def _escaped(match: re.Match[bytes]) -> bytes:
    return orjson.dumps(match[0].decode())[1:-1]
