"""gRPC inference requests, good and bad, with the code and text that they must get; the models are those of `cases`."""

import struct
from collections.abc import Callable
from typing import Any

from tritonclient.grpc.service_pb2 import ModelInferRequest

from tests.protocol.cases.case import strings
from tests.protocol.grpc_case import (
    INVALID,
    NOT_FOUND,
    OK,
    PREFIX,
    GrpcCase,
    message,
    pair,
    parameter,
    simple,
    tensor,
)

_CASES: list[GrpcCase] = []


def _add(
    id: str,
    section: str,
    content: ModelInferRequest | bytes | Callable[[], ModelInferRequest | bytes],
    text: str = "",
    *,
    model: str = "floats",
    code: int | None = None,
) -> None:
    made = content.SerializeToString() if isinstance(content, ModelInferRequest) else content
    _CASES.append(GrpcCase(id, section, model, made, (INVALID if text else OK) if code is None else code, text))


# Parameters of the request: 5.1
def _with(key: str, value: Any, kind: str = "") -> ModelInferRequest:
    return message(parameters={key: parameter(value, kind)})


_SEQUENCE_TYPE = "invalid value type for 'sequence_id' parameter, expected int64_param or string_param."
_PRIORITY_TYPE = "invalid value type for 'priority' parameter, expected int64_param or uint64_param."
_CUSTOM_TYPE = "invalid value type for 'p' parameter, expected int64_param, bool_param, or string_param."
_RESERVED = (
    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
    "'triton_' are allowed: triton_enable_empty_final_response"
)
for key, value, kind, text in (
    ("sequence_id", 7, "", ""),
    ("sequence_id", 0, "", ""),
    ("sequence_id", -1, "", ""),
    ("sequence_id", "x", "", ""),
    ("sequence_id", "x" * 128, "", ""),
    ("sequence_id", "x" * 129, "", "string correlation ID cannot be longer than 128 characters"),
    ("sequence_id", "ż" * 65, "", "string correlation ID cannot be longer than 128 characters"),
    ("sequence_id", True, "", _SEQUENCE_TYPE),
    ("sequence_id", 1.5, "", _SEQUENCE_TYPE),
    ("sequence_id", 1, "uint64_param", _SEQUENCE_TYPE),
    ("sequence_start", True, "", ""),
    ("sequence_start", 1, "", "invalid value type for 'sequence_start' parameter, expected bool_param."),
    ("sequence_end", False, "", ""),
    ("sequence_end", "true", "", "invalid value type for 'sequence_end' parameter, expected bool_param."),
    ("priority", 0, "", ""),
    ("priority", 2**63 - 1, "", ""),
    ("priority", 2**64 - 1, "uint64_param", ""),
    ("priority", -1, "", "invalid value for 'priority', expected value >= 0."),
    ("priority", "1", "", _PRIORITY_TYPE),
    ("priority", True, "", _PRIORITY_TYPE),
    ("priority", 1.0, "", _PRIORITY_TYPE),
    ("timeout", 2**63 - 1, "", ""),
    ("timeout", -1, "", "invalid value for 'timeout', expected value >= 0."),
    ("timeout", 1, "uint64_param", "invalid value type for 'timeout' parameter, expected int64_param."),
    ("timeout", "1", "", "invalid value type for 'timeout' parameter, expected int64_param."),
    ("triton_enable_empty_final_response", True, "", ""),
    ("triton_enable_empty_final_response", 1, "", "expected bool_param."),
    ("triton_x", True, "", _RESERVED),
    ("triton_", "x", "", _RESERVED),
    ("triton_final_response", True, "", _RESERVED),
    ("TRITON_x", True, "", ""),
    ("binary_data_output", 1, "", ""),
    ("p", -(2**63), "", ""),
    ("p", False, "", ""),
    ("p", "", "", ""),
    ("p", 1.5, "", ""),
    ("p", float("nan"), "", ""),
    ("p", 1, "uint64_param", _CUSTOM_TYPE),
    ("", "empty key", "", ""),
):
    shown = f"{str(value)[:8]}-{len(str(value))}" if isinstance(value, str) else value
    _add(f"parameter-{key}-{shown}-{kind or type(value).__name__}", "5.1", _with(key, value, kind), text)
for key, text in (
    ("p", _CUSTOM_TYPE),
    ("sequence_id", _SEQUENCE_TYPE),
    ("sequence_start", "expected bool_param."),
    ("priority", _PRIORITY_TYPE),
):
    _add(f"parameter-{key}-without-value", "5.1", message(parameters={key: {}}), text)
_add("parameters-64", "5.1", message(parameters={f"p{i}": parameter(i) for i in range(64)}))
_MANY = "request has {} parameters, more than 64"
for count in (65, 2_000):
    many = {f"p{i}": parameter(i) for i in range(count)}
    _add(f"parameters-{count}", "5.1", message(parameters=many), _MANY.format(count))

# Where the data is: 5.1
_NO_DATA = "unable to find data for input tensor '{}' for model '{}' in request."
_MIXED = "contents field must not be specified when using raw_input_contents for '{}' for model '{}'"
_FLOATS = {"fp32_contents": [1.5, 2.5]}
_INTS = {"int_contents": list(range(16))}
_add("raw", "5.1", message())
_add("raw-with-id", "5.1", message(id="17"))
_add("raw-with-long-id", "5.1", message(id="ż" * 5000))
_add("raw-with-version", "5.1", message(model_version="1", id="17"))
_add("raw-pair", "5.1", simple(), model="simple")
_add("raw-extra-entries", "5.1", message(raw_input_contents=[bytes(8), b"x", b""]))
_add("raw-1000-extra-entries", "5.1", message(raw_input_contents=[bytes(8)] * 1000))
_add("raw-empty-for-no-elements", "5.1", message(inputs=[tensor(shape=[0])], raw_input_contents=[b""]))
_add("data-missing", "5.1", message(inputs=[tensor()]), _NO_DATA.format("X", "floats"))
_add("data-missing-of-no-elements", "5.1", message(inputs=[tensor(shape=[0])]), _NO_DATA.format("X", "floats"))
_add(
    "data-missing-for-second",
    "5.1",
    simple(raw_input_contents=[bytes(64)]),
    _NO_DATA.format("INPUT1", "simple"),
    model="simple",
)
_add("typed", "5.1", message(inputs=[tensor(contents=_FLOATS)]))
_add("typed-pair", "5.1", message("simple", pair(contents=_INTS)), model="simple")
_add("typed-empty-for-no-elements", "5.1", message(inputs=[tensor(shape=[0], contents={})]))
_add(
    "typed-empty",
    "5.1",
    message(inputs=[tensor(contents={})]),
    PREFIX + "input byte size mismatch for input 'X' for model 'floats'. Expected 8, got 0",
)
_add(
    "typed-and-raw",
    "5.1",
    message(inputs=[tensor(contents=_FLOATS)], raw_input_contents=[bytes(8)]),
    _MIXED.format("X", "floats"),
)
_add(
    "typed-empty-and-raw",
    "5.1",
    message(inputs=[tensor(contents={})], raw_input_contents=[bytes(8)]),
    _MIXED.format("X", "floats"),
)
_add(
    "typed-and-raw-in-turns",
    "5.1",
    message("simple", [pair()[0], pair(contents=_INTS)[1]], raw_input_contents=[bytes(64)]),
    _MIXED.format("INPUT1", "simple"),
    model="simple",
)
_add(
    "typed-and-missing",
    "5.1",
    message("simple", [pair(contents=_INTS)[0], pair()[1]]),
    _NO_DATA.format("INPUT1", "simple"),
    model="simple",
)

# Kinds of contents: 5.1
_KIND = "unexpected explicit tensor data for input tensor '{}' for model '{}' of type '{}', expected datatype '{}'"
_OF_KIND: dict[str, tuple[list[Any], str]] = {
    "bool_contents": ([True, False], "BOOL"),
    "int_contents": ([1, 2], "INT32"),
    "int64_contents": ([1, 2], "INT64"),
    "uint_contents": ([1, 2], "UINT32"),
    "uint64_contents": ([1, 2], "UINT64"),
    "fp32_contents": ([1.0, 2.0], "FP32"),
    "fp64_contents": ([1.0, 2.0], "FP64"),
    "bytes_contents": ([b"a", b"b"], "BYTES"),
}
for field, (values, called) in _OF_KIND.items():
    if field != "fp32_contents":
        text = _KIND.format("X", "floats", called, "FP32")
        _add(f"kind-{field}-for-FP32", "5.1", message(inputs=[tensor(contents={field: values})]), text)
        _add(
            f"kind-{field}-and-fp32",
            "5.1",
            message(inputs=[tensor(contents={field: values, **_FLOATS})]),
            "unexpected explicit tensor data for input tensor 'X' for model 'floats'",
        )
    if field != "bytes_contents":
        text = _KIND.format("TEXT", "strings", called, "BYTES")
        content = message("strings", [tensor("strings", contents={field: values})])
        _add(f"kind-{field}-for-BYTES", "5.1", content, text, model="strings")
    text = _KIND.format("H", "halves", called, "FP16")
    content = message("halves", [tensor("halves", contents={field: values * 2})])
    _add(f"kind-{field}-for-FP16", "5.1", content, text, model="halves")
_add(
    "kind-two-right-one-first",
    "5.1",
    message(inputs=[tensor(contents={**_FLOATS, "fp64_contents": [1.0]})]),
    "unexpected explicit tensor data for input tensor 'X' for model 'floats', binary data was already supplied.",
)
_add("kind-bool", "5.1", message("flags", [tensor("flags", contents={"bool_contents": [True] * 4})]), model="flags")
_add("kind-raw-fp16", "5.1", message("halves"), model="halves")
_add("kind-raw-bool", "5.1", message("flags", raw_input_contents=[b"\x00\x01\x02\xff"]), model="flags")

# Names, shapes and datatypes: 3.1
_NOTE = "NOTE: Setting a non-zero max_batch_size"


def _shape(*dims: int, size: int = 8) -> Callable[[], ModelInferRequest]:
    return lambda: message(inputs=[tensor(shape=dims)], raw_input_contents=[bytes(size)])


_SPECIFIED = "All input dimensions should be specified for input 'X' for model 'floats', got [{}]"
_EXPECTED = PREFIX + "unexpected shape for input 'X' for model 'floats'. Expected [-1], got [{}]. "
_SIZE = PREFIX + "input byte size mismatch for input 'X' for model 'floats'. Expected {}, got {}"
for id, made, text in (
    ("negative", _shape(-1), _SPECIFIED.format("-1")),
    ("very-negative", _shape(-(2**63)), _SPECIFIED.format(-(2**63))),
    ("no-dims", _shape(), _EXPECTED.format("")),
    ("rank-2", _shape(1, 2), _EXPECTED.format("1,2")),
    ("2^31", _shape(2**31), "input 'X' has a dimension of 2147483648, more than 2147483647"),
    ("2^63-1", _shape(2**63 - 1), "input 'X' has a dimension of 9223372036854775807"),
    ("2^60", _shape(2**60), "input 'X' has a dimension of"),
    ("product-overflows", _shape(2**4, 2**30), "input 'X' has 17179869184 elements, more than 2147483647"),
    ("product-overflows-64", _shape(*[2**16] * 4), "input 'X' has 18446744073709551616 elements"),
    (
        "product-beside-0-overflows",
        _shape(0, 2**30, 2**30, 2**30, size=0),
        "input 'X' has 1237940039285380274899124224",
    ),
    ("33-dims", _shape(*[1] * 33), "input 'X' has 33 dimensions, more than 32"),
    ("10000-dims", _shape(*[1] * 10_000), "input 'X' has 10000 dimensions, more than 32"),
    ("one-byte-short", _shape(2, size=7), _SIZE.format(8, 7)),
    ("one-byte-more", _shape(2, size=9), _SIZE.format(8, 9)),
    ("no-bytes", _shape(2, size=0), _SIZE.format(8, 0)),
    ("bytes-for-no-elements", _shape(0, size=4), _SIZE.format(0, 4)),
    ("good", _shape(2), ""),
    ("long", _shape(100_000, size=400_000), ""),
):
    _add(f"shape-{id}", "3.1", made, text)
_add(
    "shape-typed-too-few",
    "3.1",
    message(inputs=[tensor(shape=[3], contents=_FLOATS)]),
    _SIZE.format(12, 8),
)
_UNFIT = "unexpected shape for input 'INPUT1' for model 'simple'. Expected [-1,16], got [{}]. "
_add("shape-typed-too-many", "3.1", message(inputs=[tensor(shape=[1], contents=_FLOATS)]), _SIZE.format(4, 8))
for id, shape, text in (
    ("batch-9", [9, 16], "inference request batch-size must be <= 8 for 'simple'"),
    ("no-batch", [], "input 'INPUT1' has no shape but model requires batch dimension for 'simple'"),
    ("17", [1, 17], _UNFIT.format("1,17") + _NOTE),
    ("rank-1", [1], _UNFIT.format("1") + _NOTE),
    ("negative-batch", [-1, 16], "All input dimensions should be specified for input 'INPUT1'"),
):
    inputs = [pair()[0] | {"shape": shape}, pair()[1] | {"shape": shape}]
    content = message("simple", inputs, raw_input_contents=[bytes(64)] * 2)
    _add(f"shape-batched-{id}", "3.1", content, PREFIX + text, model="simple")
_add(
    "shape-batches-differ",
    "3.1",
    message("simple", [pair()[0], pair()[1] | {"shape": [2, 16]}], raw_input_contents=[bytes(64), bytes(128)]),
    PREFIX + "input 'INPUT0' batch size does not match other inputs for 'simple'",
    model="simple",
)
_add(
    "shape-no-rows",
    "3.1",
    message("simple", [each | {"shape": [0, 16]} for each in pair()], raw_input_contents=[b"", b""]),
    model="simple",
)
for datatype, text in (
    ("FP64", PREFIX + "inference input 'X' data-type is 'FP64', but model 'floats' expects 'FP32'"),
    ("INT32", PREFIX + "inference input 'X' data-type is 'INT32', but model 'floats' expects 'FP32'"),
    ("", "invalid datatype for input X"),
    ("fp32", "invalid datatype for input X"),
    ("TYPE_FP32", "invalid datatype for input X"),
):
    content = message(inputs=[tensor(datatype=datatype)], raw_input_contents=[bytes(8)])
    _add(f"datatype-{datatype or 'none'}", "3.1", content, text)
for id, names, text in (
    ("one-of-two", ["INPUT0"], "expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], but "),
    ("none", [], "expected 2 inputs but got 0 inputs for model 'simple'"),
    ("three", ["INPUT0", "INPUT1", "INPUT2"], "expected 2 inputs but got 3 inputs for model 'simple'"),
    ("unknown", ["INPUT0", "OTHER"], "unexpected inference input 'OTHER' for model 'simple'"),
    ("no-name", ["INPUT0", ""], "unexpected inference input '' for model 'simple'"),
    ("twice", ["INPUT0", "INPUT0"], PREFIX + "input 'INPUT0' already exists in request"),
    ("1025", [f"I{i}" for i in range(1025)], "request has 1025 inputs, more than 1024"),
    ("2000", [f"I{i}" for i in range(2_000)], "request has 2000 inputs, more than 1024"),
    ("other-order", ["INPUT1", "INPUT0"], ""),
):
    inputs = [{"name": name, "datatype": "INT32", "shape": [1, 16]} for name in names]
    content = message("simple", inputs, raw_input_contents=[bytes(64)] * min(len(names), 300))
    _add(f"inputs-{id}", "3.1", content, text, model="simple")
_add(
    "inputs-twice-with-id",
    "3.1",
    message(inputs=[tensor()] * 2, raw_input_contents=[bytes(8)] * 2, id="7"),
    "[request id: 7] input 'X' already exists in request",
)
_add(
    "inputs-name-of-100000",
    "3.1",
    lambda: message(inputs=[tensor(name="ż" * 100_000)], raw_input_contents=[bytes(8)]),
    "unexpected inference input",
)

# BYTES: 3.1, 5.1
_END = " for inference input 'TEXT' for model 'strings'"
for id, shape, raw, text in (
    ("one", [1, 1], strings(b"abc"), ""),
    ("none", [1, 0], b"", ""),
    ("empty-ones", [2, 20], strings(*[b""] * 40), ""),
    ("nul", [1, 2], strings(b"a\x00", b"\x00"), ""),
    ("not-utf-8", [1, 1], strings(b"\xff\xfe"), ""),
    ("long", [1, 1], strings(b"x" * 100_000), ""),
    ("three-bytes", [1, 1], bytes(3), "incomplete string length indicator" + _END + ", expecting 4 bytes but only 3"),
    ("empty", [1, 1], b"", "expected 1 string elements" + _END + ", got 0"),
    ("too-many", [1, 1], strings(b"a", b"b"), "unexpected number of string elements 2" + _END + ", expecting 1"),
    ("too-few", [1, 3], strings(b"a", b"b"), "expected 3 string elements" + _END + ", got 2"),
    ("extra-byte", [1, 1], strings(b"a") + b"x", "incomplete string length indicator" + _END),
):
    content = message("strings", [tensor("strings", shape=shape)], raw_input_contents=[raw])
    _add(f"bytes-{id}", "3.1", content, text and PREFIX + text, model="strings")
for id, length in (("length-beyond-end", 5), ("length-huge", 0xFFFFFFFF)):
    raw = struct.pack("<I", length) + b"abcd"
    content = message("strings", [tensor("strings", shape=[1, 1])], raw_input_contents=[raw])
    text = f"incomplete string data for inference input 'TEXT', expecting string of length {length} but only 4 bytes"
    _add(f"bytes-{id}", "3.1", content, text, model="strings")
for id, elements, text in (
    ("two", [b"a", b""], ""),
    ("three", [b"a", b"b", b"c"], "unexpected number of string elements 3" + _END + ", expecting 2"),
    ("one", [b"a"], "expected 2 string elements" + _END + ", got 1"),
    ("none", [], "expected 2 string elements" + _END + ", got 0"),
):
    content = message("strings", [tensor("strings", shape=[1, 2], contents={"bytes_contents": elements})])
    _add(f"bytes-typed-{id}", "5.1", content, text, model="strings")

# Requested outputs and classification: 3.1, 4.8, 5.1
_CLASSES = "invalid value type for 'classification' parameter, expected int64_param"


def _outputs(*names: str, **parameters: Any) -> ModelInferRequest:
    return simple(outputs=[{"name": name, "parameters": parameters} for name in names])


for id, content, text in (
    ("one", _outputs("OUTPUT0"), ""),
    ("both", _outputs("OUTPUT1", "OUTPUT0"), ""),
    ("unknown", _outputs("OTHER"), "unexpected inference output 'OTHER' for model 'simple'"),
    ("no-name", _outputs(""), "unexpected inference output '' for model 'simple'"),
    ("input", _outputs("INPUT0"), "unexpected inference output 'INPUT0' for model 'simple'"),
    ("twice", _outputs("OUTPUT0", "OUTPUT0"), ""),
    ("2000", _outputs(*[f"O{i}" for i in range(2_000)]), "request has 2000 outputs, more than 1024"),
    ("classes-1", _outputs("OUTPUT0", classification=parameter(1)), ""),
    ("classes-2^31-1", _outputs("OUTPUT0", classification=parameter(2**31 - 1)), ""),
    ("classes-0", _outputs("OUTPUT0", classification=parameter(0)), "'classification' parameter, expected >= 0"),
    ("classes-negative", _outputs("OUTPUT0", classification=parameter(-1)), "invalid value for 'classification'"),
    ("classes-2^31", _outputs("OUTPUT0", classification=parameter(2**31)), "invalid value for 'classification'"),
    ("classes-string", _outputs("OUTPUT0", classification=parameter("1")), _CLASSES),
    ("classes-bool", _outputs("OUTPUT0", classification=parameter(True)), _CLASSES),
    ("classes-unsigned", _outputs("OUTPUT0", classification=parameter(1, "uint64_param")), _CLASSES),
    ("classes-without-value", _outputs("OUTPUT0", classification={}), _CLASSES),
    ("other-parameter", _outputs("OUTPUT0", binary_data=parameter("anything")), ""),
    (
        "classes-in-region",
        _outputs(
            "OUTPUT0",
            classification=parameter(1),
            shared_memory_region=parameter("r"),
            shared_memory_byte_size=parameter(64),
        ),
        "output can't set both 'shared_memory_region' and 'classification'",
    ),
):
    _add(f"outputs-{id}", "3.1, 4.8, 5.1", content, text, model="simple")
for model, output, datatype in (("halves", "HO", "FP16"), ("flags", "BO", "BOOL"), ("strings", "TEXT_OUT", "BYTES")):
    _add(
        f"outputs-classes-of-{datatype}",
        "4.8",
        message(model, outputs=[{"name": output, "parameters": {"classification": parameter(1)}}]),
        f"class result not available for output due to unsupported type '{datatype}'",
        model=model,
    )

# Shared memory: 4.10, 5.1
_R, _S = {"shared_memory_region": parameter("r")}, {"shared_memory_byte_size": parameter(8)}
for id, parameters, text, code in (
    ("unknown", {**_R, **_S}, "Unable to find shared memory region: 'r'", NOT_FOUND),
    ("unknown-with-offset", {**_R, **_S, "shared_memory_offset": parameter(4)}, "Unable to find shared", NOT_FOUND),
    (
        "region-number",
        {"shared_memory_region": parameter(1), **_S},
        "invalid value type for 'shared_memory_region' parameter for tensor '{}', expected string_param.",
        INVALID,
    ),
    (
        "size-string",
        {**_R, "shared_memory_byte_size": parameter("8")},
        "invalid value type for 'shared_memory_byte_size' parameter for tensor '{}', expected int64_param.",
        INVALID,
    ),
    (
        "offset-bool",
        {**_R, **_S, "shared_memory_offset": parameter(True)},
        "invalid value type for 'shared_memory_offset' parameter for tensor '{}', expected int64_param.",
        INVALID,
    ),
    (
        "size-missing",
        _R,
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor '{}'",
        INVALID,
    ),
    (
        "size-without-region",
        _S,
        "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor '{}'",
        INVALID,
    ),
    (
        "offset-without-region",
        {"shared_memory_offset": parameter(0)},
        "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor '{}'",
        INVALID,
    ),
    (
        "offset-negative",
        {**_R, **_S, "shared_memory_offset": parameter(-4)},
        "Invalid offset for shared memory region: 'r'",
        INVALID,
    ),
    (
        "size-negative",
        {**_R, "shared_memory_byte_size": parameter(-8)},
        "Invalid offset + byte size for shared memory region: 'r'",
        INVALID,
    ),
):
    _add(f"region-{id}", "4.10, 5.1", message(inputs=[tensor(parameters=parameters)]), text.format("X"), code=code)
    content = message(outputs=[{"name": "Y", "parameters": parameters}])
    _add(f"region-of-output-{id}", "4.10, 5.1", content, text.format("Y"), code=code)
_add(
    "region-and-contents",
    "5.1",
    message(inputs=[tensor(contents=_FLOATS, parameters={**_R, **_S})]),
    "unexpected 'content' provided when using shared memory for input tensor 'X' for model 'floats'",
)
_add(
    "region-of-wrong-size",
    "3.1",
    message(inputs=[tensor(parameters={**_R, "shared_memory_byte_size": parameter(4)})]),
    _SIZE.format(8, 4),
)

# The message itself
_BYTES = message(id="7").SerializeToString()
_BROKEN = "failed to parse the request as a ModelInferRequest"
_FIELDS = "request has more than 4096 fields"
_add("message-1000000-inputs", "5.1", lambda: b"\x0a\x06floats" + b"\x2a\x00" * 1_000_000, _FIELDS)
_add("message-1000000-raw", "5.1", lambda: b"\x3a\x00" * 1_000_000, _FIELDS)
_add("message-1000000-names", "5.1", lambda: b"\x0a\x01x" * 1_000_000, _FIELDS)
_NAME, _REST = _BYTES[:8], _BYTES[8:]
for id, body, text in (
    ("empty", b"", "expected 1 inputs but got 0 inputs"),
    ("cut-by-one", _BYTES[:-1], _BROKEN),
    ("cut-in-half", _BYTES[: len(_BYTES) // 2], _BROKEN),
    ("only-a-tag", b"\x0a", _BROKEN),
    ("length-beyond-end", b"\x0a\x7fabc", _BROKEN),
    ("length-of-2^63", _NAME + b"\x3a" + b"\xff" * 8 + b"\x7f", _BROKEN),
    ("length-without-end", _NAME + b"\x3a" + b"\xff" * 11, _BROKEN),
    ("field-0", _BYTES + b"\x02\x00", _BROKEN),
    ("group", _BYTES + b"\x7b\x7c", _BROKEN),
    ("wire-type-6", _BYTES + b"\x7e", _BROKEN),
    ("json", b'{"inputs":[]}', _BROKEN),
    ("zeros", bytes(64), _BROKEN),
    ("id-not-utf-8", _NAME + b"\x1a\x02\xff\xfe" + message().SerializeToString()[8:], _BROKEN),
    ("name-of-input-not-utf-8", _BYTES.replace(b"\x0a\x01X", b"\x0a\x01\xff"), _BROKEN),
    ("version-not-utf-8", _NAME + b"\x12\x01\xff" + _REST, _BROKEN),
    ("unknown-field", _BYTES + b"\x7a\x03abc", ""),
    ("unknown-field-first", b"\x7a\x03abc" + _BYTES, ""),
    ("unknown-varint", _BYTES + b"\x78\x05", ""),
    ("unknown-fixed", _BYTES + b"\x79" + bytes(8) + b"\x7d" + bytes(4), ""),
    ("raw-first", _BYTES[-10:] + _BYTES[:-10], ""),
    ("name-last", _REST + _NAME, ""),
    ("name-twice", _NAME + _BYTES, ""),
    ("long-form-of-tag", _BYTES.replace(b"\x3a\x08", b"\xba\x00\x08"), ""),
    ("long-form-of-length", _BYTES.replace(b"\x3a\x08", b"\x3a\x88\x00"), ""),
    ("raw-of-another-wire-type", _BYTES + b"\x38\x05", ""),
    ("name-changed-behind", _BYTES + b"\x0a\x01y", "must come before its other fields"),
    ("version-behind", _BYTES + b"\x12\x011", "must come before its other fields"),
    ("id-behind", _BYTES + b"\x1a\x018", ""),
):
    _add(f"message-{id}", "5.1", body, text)

GRPC_CASES: tuple[GrpcCase, ...] = tuple(_CASES)
