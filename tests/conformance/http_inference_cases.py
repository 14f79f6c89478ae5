"""Inference, binary tensors, compression and the generate extension, as data."""

import gzip
import json
import struct
import zlib
from typing import Any

from tests.conformance.http_case import HttpCase as Case

UNKNOWN = "Request for unknown model: 'nope' is not found"
ONE_RESPONSE = {"model_name": "floats", "model_version": "1"}


def x(data: Any = (1.5, -2.0), shape: Any = None, **more: Any) -> dict[str, Any]:
    """Return the input of `floats`."""
    data = list(data)
    return {"name": "X", "datatype": "FP32", "shape": [len(data)] if shape is None else shape, "data": data, **more}


def packed(document: dict[str, Any], *tensors: bytes) -> tuple[bytes, dict[str, str]]:
    """Return the body of a binary request and its header."""
    text = json.dumps(document).encode()
    return text + b"".join(tensors), {"Inference-Header-Content-Length": str(len(text))}


def floats(
    id: str, section: str, body: Any, status: int = 200, *, headers: dict[str, str] | None = None, **expected: Any
) -> Case:
    return Case(id, section, "POST", "/v2/models/floats/infer", status, body, headers or {}, **expected)


def bad(id: str, section: str, body: Any, error: str, **more: Any) -> Case:
    return floats(id, section, body, 400, error=error, **more)


_BINARY, _BINARY_HEADER = packed(
    {"inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}]},
    struct.pack("<2f", 1.5, -2.0),
)
_SHORT, _SHORT_HEADER = packed(
    {"inputs": [{"name": "X", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}]}, b"1234"
)
_LONG, _LONG_HEADER = packed(
    {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}]}, b"12345"
)
_ONE_FIELD = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But"
)
_OUT = {"name": "Y", "datatype": "FP32", "shape": [2], "data": [1.5, -2.0]}

INFERENCE = (
    floats(
        "infer",
        "4.6",
        {"inputs": [x()]},
        has={**ONE_RESPONSE, "outputs": [_OUT]},
        headers_back={"content-type": "application/json"},
    ),
    Case(
        "infer by version",
        "4.1",
        "POST",
        "/v2/models/floats/versions/1/infer",
        body={"inputs": [x()]},
        has=ONE_RESPONSE,
    ),
    Case("infer with a query", "4.1", "POST", "/v2/models/floats/infer?a=b", body={"inputs": [x()]}, has=ONE_RESPONSE),
    floats("id comes back", "4.6", {"id": "7", "inputs": [x()]}, has={"id": "7"}),
    floats("nested data", "4.4", {"inputs": [x([[1.5], [-2.0]], [2])]}, has={"outputs": [_OUT]}),
    floats("empty tensor", "4.4", {"inputs": [x([])]}, has={"outputs": [{"shape": [0], "data": []}]}),
    floats("NaN goes in and out", "4.4", b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[NaN]}]}'),
    floats("chosen output", "4.4", {"inputs": [x()], "outputs": [{"name": "Y"}]}, has={"outputs": [_OUT]}),
    floats(
        "custom parameters",
        "4.4",
        {"parameters": {"a": 1, "b": "c", "d": True, "e": 0.5}, "inputs": [x()]},
        has=ONE_RESPONSE,
    ),
    Case("infer on unknown", "4.2", "POST", "/v2/models/nope/infer", 404, body={}, error=UNKNOWN),
    Case(
        "infer on unknown version",
        "4.2",
        "POST",
        "/v2/models/floats/versions/7/infer",
        404,
        body={},
        error="Request for unknown model: 'floats' version 7 is not found",
    ),
    Case(
        "infer on broken",
        "4.2",
        "POST",
        "/v2/models/broken_initialize/infer",
        404,
        body={},
        error="Request for unknown model: 'broken_initialize' has no available versions",
    ),
    bad(
        "empty body",
        "4.4",
        b"",
        "failed to parse the request JSON buffer: The document is empty. at 0",
        deviates="500 there",
    ),
    bad("no JSON", "4.4", b"?", "failed to parse the request JSON buffer: Invalid value. at 0", deviates="500 there"),
    bad(
        "no inputs",
        "4.4",
        {},
        "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'",
        deviates="500 there",
    ),
    bad(
        "inputs are no array",
        "4.4",
        {"inputs": {}},
        "Unable to parse 'inputs': attempt to access JSON non-array as array",
    ),
    bad(
        "no content",
        "4.4",
        {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1]}]},
        f"{_ONE_FIELD} no field is set",
    ),
    bad(
        "two contents",
        "4.4",
        {"inputs": [x(parameters={"binary_data_size": 8})]},
        f"{_ONE_FIELD} set 'data' 'binary_data_size'",
    ),
    bad("unknown datatype", "4.4", {"inputs": [x() | {"datatype": "FP31"}]}, "invalid datatype for input X"),
    bad(
        "too many elements",
        "4.4",
        {"inputs": [x([1, 2, 3], [2])]},
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    ),
    bad(
        "too few elements",
        "4.4",
        {"inputs": [x([1], [2])]},
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
        deviates="500 there",
    ),
    bad(
        "negative dimension",
        "4.4",
        {"inputs": [x([1], [-1])]},
        "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
        deviates="500 there",
    ),
    bad(
        "string in numbers",
        "4.4",
        {"inputs": [x(["a"])]},
        "Unable to parse 'data': attempt to access JSON non-number as double",
    ),
    bad(
        "reserved parameter",
        "4.4",
        {"parameters": {"triton_x": 1}, "inputs": [x()]},
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
    ),
    bad(
        "parameter that is an array",
        "4.4",
        {"parameters": {"a": [1]}, "inputs": [x()]},
        "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'.",
    ),
    bad(
        "priority of a wrong type",
        "4.4",
        {"parameters": {"priority": -1}, "inputs": [x()]},
        "Unable to parse 'priority': attempt to access JSON non-unsigned-integer as unsigned-integer",
    ),
    bad(
        "sequence start of a wrong type",
        "4.4",
        {"parameters": {"sequence_start": 1}, "inputs": [x()]},
        "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean",
    ),
    bad("input twice", "4.4", {"inputs": [x(), x()]}, "[request id: <id_unknown>] input 'X' already exists in request"),
    Case(
        "half floats as JSON",
        "4.4",
        "POST",
        "/v2/models/halves/infer",
        400,
        body={"inputs": [{"name": "H", "datatype": "FP16", "shape": [1, 4], "data": [1, 2, 3, 4]}]},
        error="receiving FP16 data via JSON is not supported. Please use the binary data format for input H",
    ),
    Case(
        "booleans",
        "4.4",
        "POST",
        "/v2/models/flags/infer",
        body={"inputs": [{"name": "B", "datatype": "BOOL", "shape": [1, 4], "data": [True, False, True, True]}]},
        has={"outputs": [{"datatype": "BOOL", "data": [True, False, True, True]}]},
    ),
    Case(
        "numbers are no booleans",
        "4.4",
        "POST",
        "/v2/models/flags/infer",
        400,
        body={"inputs": [{"name": "B", "datatype": "BOOL", "shape": [1, 4], "data": [1, 0, 1, 1]}]},
        error="Unable to parse 'data': attempt to access JSON non-boolean as boolean",
    ),
    Case(
        "strings",
        "4.4",
        "POST",
        "/v2/models/strings/infer",
        body={"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1, 2], "data": ["a", "é"]}]},
        has={"outputs": [{"datatype": "BYTES", "shape": [1, 2], "data": ["a", "é"]}]},
    ),
)

_WANTED = {"outputs": [{"name": "Y", "parameters": {"binary_data": True}}]}

BINARY = (
    floats("binary input", "4.5", _BINARY, headers=_BINARY_HEADER, has={"outputs": [_OUT]}),
    floats(
        "binary output",
        "4.5",
        {"inputs": [x()], **_WANTED},
        headers_back={"content-type": "application/octet-stream"},
    ),
    floats(
        "binary outputs by default",
        "4.5",
        {"inputs": [x()], "parameters": {"binary_data_output": True}},
        headers_back={"content-type": "application/octet-stream"},
    ),
    floats(
        "header name in another case",
        "4.5",
        _BINARY,
        headers={"inference-header-CONTENT-length": _BINARY_HEADER["Inference-Header-Content-Length"]},
    ),
    bad(
        "body too short",
        "4.5",
        _SHORT,
        "unexpected size for input 'X', expecting 4 additional bytes for model 'floats'",
        headers=_SHORT_HEADER,
    ),
    bad("body too long", "4.5", _LONG, "unexpected additional input data for model 'floats'", headers=_LONG_HEADER),
    bad(
        "header length is no number",
        "4.5",
        b"{}",
        "Unable to parse Inference-Header-Content-Length, got: x",
        headers={"Inference-Header-Content-Length": "x"},
    ),
    bad(
        "header length out of range",
        "4.5",
        b"{}",
        "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: 2147483648",
        headers={"Inference-Header-Content-Length": "2147483648"},
    ),
    bad(
        "header longer than the body",
        "4.5",
        b"{}",
        "inference header size should be in range (0, 2), got: 3",
        headers={"Inference-Header-Content-Length": "3"},
    ),
    bad(
        "header length negative",
        "4.5",
        b"{}",
        "inference header size should be in range (0, 2), got: -1",
        headers={"Inference-Header-Content-Length": "-1"},
    ),
    floats(
        "raw request",
        "4.9",
        struct.pack("<3f", 1, 2, 3),
        headers={"Inference-Header-Content-Length": "0"},
        headers_back={"content-type": "application/octet-stream"},
    ),
    Case(
        "raw request to two inputs",
        "4.9",
        "POST",
        "/v2/models/simple/infer",
        400,
        body=b"1234",
        headers={"Inference-Header-Content-Length": "0"},
        error="[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in "
        "'simple' model configuration",
    ),
)

_PLAIN = json.dumps({"inputs": [x()]}).encode()

COMPRESSION = (
    floats("gzip request", "4.7", gzip.compress(_PLAIN), headers={"Content-Encoding": "gzip"}, has={"outputs": [_OUT]}),
    floats(
        "deflate request",
        "4.7",
        zlib.compress(_PLAIN),
        headers={"Content-Encoding": "deflate"},
        has={"outputs": [_OUT]},
    ),
    floats("identity request", "4.7", _PLAIN, headers={"Content-Encoding": "identity"}, has={"outputs": [_OUT]}),
    floats(
        "compressed binary request",
        "4.7",
        gzip.compress(_BINARY),
        headers={"Content-Encoding": "gzip", **_BINARY_HEADER},
        has={"outputs": [_OUT]},
    ),
    *(
        floats(
            f"request in {coding}",
            "4.7",
            _PLAIN,
            501,
            headers={"Content-Encoding": coding},
            error="Unsupported compression type",
            headers_back={"accept-encoding": "gzip, deflate"},
        )
        for coding in ("br", "zstd", "gzip, gzip", "compress")
    ),
    bad(
        "damaged gzip",
        "4.7",
        _PLAIN,
        "failed to decompress the request body: invalid data",
        headers={"Content-Encoding": "gzip"},
    ),
    bad(
        "bomb",
        "4.7",
        gzip.compress(bytes(8 << 20)),
        "decompressed request is more than 100 times as large as the compressed one. "
        "Use --http-max-decompression-ratio to increase the limit.",
        headers={"Content-Encoding": "gzip"},
        deviates="Triton has no limit on the ratio",
    ),
    *(
        floats(f"response for {accepted}", "4.7", _PLAIN, headers={"Accept-Encoding": accepted}, headers_back=back)
        for accepted, back in (
            ("gzip", {"content-encoding": "gzip"}),
            ("deflate", {"content-encoding": "deflate"}),
            ("gzip;q=0.5, deflate", {"content-encoding": "deflate"}),
            ("identity, gzip;q=0.1", {"content-type": "application/json"}),
        )
    ),
    bad(
        "errors are not compressed",
        "4.7",
        b"",
        "failed to parse the request JSON buffer: The document is empty. at 0",
        headers={"Accept-Encoding": "gzip"},
    ),
)

_GENERATE, _STREAM = "/v2/models/strings/generate", "/v2/models/strings/generate_stream"
_SCHEMA = "The schema can not convert input 'INPUT0' to tensor with proper shape"

GENERATE = (
    Case(
        "generate",
        "4.11",
        "POST",
        _GENERATE,
        body={"TEXT": "hello"},
        has={"model_name": "strings", "model_version": "1", "TEXT_OUT": "hello"},
    ),
    Case(
        "generate by version",
        "4.11",
        "POST",
        "/v2/models/strings/versions/1/generate",
        body={"TEXT": "a"},
        has={"TEXT_OUT": "a"},
    ),
    Case("generate with an array", "4.11", "POST", _GENERATE, body={"TEXT": ["a", "b"]}, has={"TEXT_OUT": ["a", "b"]}),
    Case(
        "generate with parameters",
        "4.11",
        "POST",
        _GENERATE,
        body={"TEXT": "a", "n": 1, "parameters": {"m": 2}},
        has={"TEXT_OUT": "a"},
    ),
    Case("generate with an id", "4.11", "POST", _GENERATE, body={"id": "7", "TEXT": "a"}, has={"id": "7"}),
    Case("generate on unknown", "4.11", "POST", "/v2/models/nope/generate", 404, body={}, error=UNKNOWN),
    Case(
        "generate with a wrong count",
        "4.11",
        "POST",
        "/v2/models/simple/generate",
        400,
        body={"INPUT0": [1, 2]},
        error=_SCHEMA,
    ),
    Case(
        "generate with an object",
        "4.11",
        "POST",
        _GENERATE,
        400,
        body={"TEXT": "a", "b": {}},
        error="parameter 'b' has invalid type. It should be either 'int', 'bool', or 'string'.",
    ),
    *(
        Case(
            f"{path.rsplit('/', 1)[1]} in gzip",
            "4.11",
            "POST",
            path,
            400,
            body=b"{}",
            headers={"Content-Encoding": "gzip"},
            error="Unsupported content-encoding, only 'identity' is supported.",
        )
        for path in (_GENERATE, _STREAM)
    ),
    Case(
        "stream",
        "4.11",
        "POST",
        _STREAM,
        body={"TEXT": "hello"},
        headers_back={"content-type": "text/event-stream; charset=utf-8"},
    ),
    Case(
        "stream by version",
        "4.11",
        "POST",
        "/v2/models/strings/versions/1/generate_stream",
        body={"TEXT": "a"},
        sent=b'data: {"model_name":"strings","model_version":"1","TEXT_OUT":"a"}\n\n',
    ),
    Case("stream on unknown", "4.11", "POST", "/v2/models/nope/generate_stream", 404, body={}, error=UNKNOWN),
    Case(
        "stream without an input",
        "4.11",
        "POST",
        _STREAM,
        400,
        body={"b": 1},
        headers_back={"content-type": "application/json"},
        error="[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'strings'. Got input(s) [], but "
        "missing required input(s) ['TEXT']. Please provide all required input(s).",
    ),
    Case(
        "stream with a number for a string",
        "4.11",
        "POST",
        _STREAM,
        400,
        body={"TEXT": 1},
        headers_back={"content-type": "application/json"},
        error="Unable to parse JSON bytes array: attempt to access JSON non-string as string",
    ),
    Case(
        "stream that fails",
        "4.11",
        "POST",
        "/v2/models/failing/generate_stream",
        500,
        body={"MODE": "error"},
        sent=b'data: {"error":"this request, and no other, is refused"}\n\n',
        headers_back={"content-type": "text/event-stream; charset=utf-8"},
    ),
)
