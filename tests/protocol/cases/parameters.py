"""F-PARAM: parameters of a request."""

import json
from typing import Any

from tests.protocol.cases.case import Table, with_data

T = Table("F-PARAM", "4.4")


def _with(parameters: Any) -> str:
    return with_data("[1]", more=f'"parameters":{json.dumps(parameters)},')


_UINT = "attempt to access JSON non-unsigned-integer as unsigned-integer"
_STRING = "attempt to access JSON non-string as string"
_LONG_ID = "string correlation ID cannot be longer than 128 characters"
_BOOL = "attempt to access JSON non-boolean as boolean"
_RESERVED = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
_NO_OBJECT = "failed to get request params.: attempt to get members for non-object"
for id, parameters, text in (
    ("null", None, _NO_OBJECT),
    ("array", [], _NO_OBJECT),
    ("string", "x", _NO_OBJECT),
    ("number", 1, _NO_OBJECT),
    ("triton-key", {"triton_x": 1}, _RESERVED),
    ("triton-final", {"triton_enable_empty_final_response": True}, _RESERVED),
    ("triton-only", {"triton_": "x"}, _RESERVED),
    ("custom-null", {"p": None}, "parameter 'p' has invalid type. It should be either 'int', 'bool', or 'string'."),
    ("custom-array", {"p": [1]}, "parameter 'p' has invalid type."),
    ("custom-object", {"p": {"a": 1}}, "parameter 'p' has invalid type."),
    ("priority-negative", {"priority": -1}, "Unable to parse 'priority': " + _UINT),
    ("priority-float", {"priority": 1.0}, "Unable to parse 'priority': " + _UINT),
    ("priority-string", {"priority": "1"}, "Unable to parse 'priority': " + _UINT),
    ("priority-bool", {"priority": True}, "Unable to parse 'priority': " + _UINT),
    ("priority-2^64", {"priority": 2**64}, "Unable to parse 'priority': " + _UINT),
    ("timeout-negative", {"timeout": -1}, "Unable to parse 'timeout': " + _UINT),
    ("timeout-float", {"timeout": 0.5}, "Unable to parse 'timeout': " + _UINT),
    ("timeout-null", {"timeout": None}, "Unable to parse 'timeout': " + _UINT),
    ("sequence-id-negative", {"sequence_id": -1}, "Unable to parse 'sequence_id': " + _STRING),
    ("sequence-id-float", {"sequence_id": 1.5}, "Unable to parse 'sequence_id': " + _STRING),
    ("sequence-id-bool", {"sequence_id": True}, "Unable to parse 'sequence_id': " + _STRING),
    ("sequence-id-null", {"sequence_id": None}, "Unable to parse 'sequence_id': " + _STRING),
    ("sequence-id-too-long", {"sequence_id": "x" * 129}, _LONG_ID),
    ("sequence-id-too-long-in-bytes", {"sequence_id": "ż" * 65}, _LONG_ID),
    ("sequence-start-number", {"sequence_start": 1}, "Unable to parse 'sequence_start': " + _BOOL),
    ("sequence-end-string", {"sequence_end": "true"}, "Unable to parse 'sequence_end': " + _BOOL),
    ("binary-output-number", {"binary_data_output": 1}, "Unable to parse 'binary_data_output': " + _BOOL),
    ("65", {f"p{i}": i for i in range(65)}, "request has 65 parameters, more than 64"),
    ("10000", {f"p{i}": i for i in range(10_000)}, "request has 10000 parameters, more than 64"),
):
    T.add(id, _with(parameters), text)
T.add("custom-too-big-with-nan", with_data("[NaN]", more='"parameters":{"p":' + "9" * 400 + "},"), "Number too big")

for id, parameters in (
    ("empty", {}),
    ("64", {f"p{i}": i for i in range(64)}),
    ("all-types", {"a": 1, "b": -1, "c": True, "d": 1.5, "e": "x", "f": "", "": "empty key"}),
    ("2^64-as-double", {"a": 2**64, "b": 2**63}),
    ("priority-and-timeout", {"priority": 0, "timeout": 2**64 - 1}),
    ("priority-beyond-levels", {"priority": 2**64 - 1}),
    ("sequence-id-0", {"sequence_id": 0}),
    ("sequence-id-128-bytes", {"sequence_id": "x" * 128}),
    ("sequence-id-2^64-1", {"sequence_id": 2**64 - 1, "sequence_start": True, "sequence_end": True}),
    ("upper-case-triton", {"TRITON_X": 1}),
    ("binary-output", {"binary_data_output": True}),
    ("pickle-like", {"p": "cos\nsystem\n(S'true'\ntR."}),
):
    T.add(id, _with(parameters))

CASES = tuple(T.cases)
