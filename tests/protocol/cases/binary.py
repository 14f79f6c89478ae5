"""F-BIN: the binary tensor data extension, and requests without JSON."""

import json
from typing import Any

from tests.protocol.cases.case import Table, binary_input, with_data

T = Table("F-BIN", "4.5, 4.9")

_X = {"inputs": [binary_input("X", "FP32", [2], 8)]}
_HEAD = json.dumps(_X).encode()
_BODY = _HEAD + bytes(8)
_PAIR = {"inputs": [binary_input("INPUT0", "INT32", [1, 16], 64), binary_input("INPUT1", "INT32", [1, 16], 64)]}
_MORE = "unexpected additional input data for model '{}'"
_LESS = "unexpected size for input '{}', expecting {} additional bytes for model '{}'"
_RANGE = f"inference header size should be in range (0, {len(_BODY)}), got: "
_UNPARSED = "Unable to parse Inference-Header-Content-Length, got: "
_NOT_32_BIT = "value is out of range [ -2147483648, 2147483647 ], got: "

T.binary("good", _X, bytes(8))
T.binary("good-pair", _PAIR, bytes(128), model="simple")
T.binary("one-byte-short", _X, bytes(7), _LESS.format("X", 1, "floats"))
T.binary("no-bytes", _X, b"", _LESS.format("X", 8, "floats"))
T.binary("one-byte-more", _X, bytes(9), _MORE.format("floats"))
T.binary("twice-the-bytes", _X, bytes(16), _MORE.format("floats"))
T.binary("second-short", _PAIR, bytes(127), _LESS.format("INPUT1", 1, "simple"), model="simple")
T.binary("second-missing", _PAIR, bytes(64), _LESS.format("INPUT1", 64, "simple"), model="simple")
T.binary("pair-long", _PAIR, bytes(129), _MORE.format("simple"), model="simple")
T.add("no-header", _HEAD, _LESS.format("X", 8, "floats"))
T.add("no-header-but-bytes", _BODY, "failed to parse the request JSON buffer: ")
for id, value, text in (
    ("length-negative", -1, _RANGE + "-1"),
    ("length-very-negative", -2147483648, _RANGE),
    ("length-one-over", len(_BODY) + 1, _RANGE + str(len(_BODY) + 1)),
    ("length-large", 2147483647, _RANGE),
    ("length-2^31", 2147483648, _NOT_32_BIT),
    ("length-99999999999", 99999999999, _NOT_32_BIT + "99999999999"),
    ("length-float", "1.5", _UNPARSED + "1.5"),
    ("length-exponent", "1e2", _UNPARSED + "1e2"),
    ("length-word", "abc", _UNPARSED + "abc"),
    ("length-empty", "", _UNPARSED),
    ("length-hex", "0x10", _UNPARSED + "0x10"),
    ("length-underscore", "1_0", _UNPARSED + "1_0"),
    ("length-two-values", f"{len(_HEAD)}, {len(_HEAD)}", _UNPARSED),
    ("length-one-short", len(_HEAD) - 1, "failed to parse the request JSON buffer: "),
    ("length-one-long", len(_HEAD) + 1, "failed to parse the request JSON buffer: "),
    ("length-all", len(_BODY), "failed to parse the request JSON buffer: "),
    ("length-1", 1, "failed to parse the request JSON buffer: "),
):
    T.add(id, _BODY, text, json_length=value)
T.add("length-plus", _BODY, json_length=f"+{len(_HEAD)}")
T.add("length-of-json-body", with_data("[1]"), json_length=len(with_data("[1]")))

_UINT = "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as unsigned-integer"
for id, size, text in (
    ("size-negative", -8, _UINT),
    ("size-float", 8.0, _UINT),
    ("size-string", "8", _UINT),
    ("size-null", None, _UINT),
    ("size-bool", True, _UINT),
    ("size-array", [8], _UINT),
    ("size-2^64", 2**64, _UINT),
    ("size-2^64-1", 2**64 - 1, _LESS.format("X", 2**64 - 9, "floats")),
    ("size-2^63", 2**63, "additional bytes"),
):
    T.binary(id, {"inputs": [binary_input("X", "FP32", [2], size)]}, bytes(8), text)
_OVERFLOW = {
    "inputs": [binary_input("INPUT0", "INT32", [1, 16], 64), binary_input("INPUT1", "INT32", [1, 16], 2**64 - 64)]
}
T.binary("sum-overflow", _OVERFLOW, bytes(128), "unexpected size for input 'INPUT1'", model="simple")

_MISMATCH = "[request id: <id_unknown>] input byte size mismatch for input '{}' for model '{}'. Expected {}, got {}"
for id, shape, size in (
    ("size-7-of-8", [2], 7),
    ("size-0-of-8", [2], 0),
    ("size-8-of-0", [0], 8),
    ("size-12-of-8", [2], 12),
):
    expected = shape[0] * 4
    T.binary(
        id,
        {"inputs": [binary_input("X", "FP32", shape, size)]},
        bytes(size),
        _MISMATCH.format("X", "floats", expected, size),
    )
T.binary(
    "overlap",
    {"inputs": [binary_input("INPUT0", "INT32", [1, 16], 128), binary_input("INPUT1", "INT32", [1, 16], 0)]},
    bytes(128),
    _MISMATCH.format("INPUT1", "simple", 64, 0),
    model="simple",
)
T.binary("no-elements", {"inputs": [binary_input("X", "FP32", [0], 0)]}, b"", '"shape":[0]', status=200)

_ONE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But"
)


def _fields(data: Any = None, **parameters: Any) -> dict[str, Any]:
    tensor: dict[str, Any] = {"name": "X", "datatype": "FP32", "shape": [2], "parameters": parameters}
    return {"inputs": [tensor if data is None else tensor | {"data": data}]}


T.binary("no-field", _fields(), b"", f"{_ONE} no field is set")
T.binary("data-and-size", _fields([1, 2], binary_data_size=8), bytes(8), f"{_ONE} set 'data' 'binary_data_size'")
T.binary(
    "size-and-region",
    _fields(binary_data_size=8, shared_memory_region="r"),
    bytes(8),
    f"{_ONE} set 'binary_data_size' 'shared_memory_region'",
)
T.add("data-and-region", _fields([1, 2], shared_memory_region="r"), f"{_ONE} set 'data' 'shared_memory_region'")
T.add("parameters-array", json.dumps(_fields()).replace("{}", "[]", 1), f"{_ONE} no field is set")
T.add(
    "unknown-region",
    _fields(shared_memory_region="r", shared_memory_byte_size=8),
    "Unable to find shared memory region: 'r'",
    status=404,
)
T.add("region-number", _fields(shared_memory_region=1), "Unable to parse 'shared_memory_region'")
T.add(
    "region-offset-negative",
    _fields(shared_memory_region="r", shared_memory_offset=-1, shared_memory_byte_size=8),
    "Unable to parse 'shared_memory_offset'",
)
T.add(
    "region-size-string",
    _fields(shared_memory_region="r", shared_memory_byte_size="8"),
    "Unable to parse 'shared_memory_byte_size'",
)
T.binary("data-and-extra-bytes", with_data("[1]"), bytes(4), _MORE.format("floats"))
_MIXED = {
    "inputs": [
        binary_input("INPUT0", "INT32", [1, 16], 64),
        {"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16},
    ]
}
T.binary("binary-then-json", _MIXED, bytes(64), '"data":[1,1,1', model="simple", status=200)
T.binary("json-then-binary", {"inputs": _MIXED["inputs"][::-1]}, bytes(64), '"data":[1,1,1', model="simple", status=200)

T.add("raw", bytes(8), '"shape":[2]', json_length=0, status=200)
T.add("raw-empty", b"", '"shape":[0]', json_length=0, status=200)
T.add("raw-not-whole-elements", bytes(7), _MISMATCH.format("X", "floats", 4, 7), json_length=0)
T.add("raw-halves", bytes(8), '"shape":[1,4]', model="halves", json_length=0, status=200)
T.add("raw-halves-short", bytes(6), _MISMATCH.format("H", "halves", 8, 6), model="halves", json_length=0)
T.add("raw-halves-two-rows", bytes(16), _MISMATCH.format("H", "halves", 8, 16), model="halves", json_length=0)
T.add("raw-flags", b"\x01\x00\x01\x00", '"shape":[1,4]', model="flags", json_length=0, status=200)
T.add(
    "raw-two-inputs",
    bytes(128),
    "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in "
    "'simple' model configuration",
    model="simple",
    json_length=0,
)
T.add(
    "raw-strings",
    b"hello",
    "[request id: <id_unknown>] For BYTE datatype raw input 'TEXT', the model must have input shape [1]",
    model="strings",
    json_length=0,
)
T.add(
    "raw-too-large",
    lambda: bytes((64 << 20) + 4),
    "Raw input has a byte_size (67108868 bytes) that exceeds the maximum allowed value of 67108864 bytes",
    json_length=0,
)

CASES = tuple(T.cases)
