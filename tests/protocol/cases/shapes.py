"""F-SHAPE: names, counts and shapes."""

import json

from tests.protocol.cases.case import Table, ints, with_data

T = Table("F-SHAPE", "3.1")

_UNSIGNED = "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer"
_COUNT = "Unable to parse 'data': Shape does not match true shape of 'data' field"
_NOTE = "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension"

for id, shape, data, text in (
    ("negative", "[-1]", "[1]", _UNSIGNED),
    ("very-negative", "[-9223372036854775808]", "[1]", _UNSIGNED),
    ("float", "[1.0]", "[1]", _UNSIGNED),
    ("float-half", "[0.5]", "[1]", _UNSIGNED),
    ("string", '["1"]', "[1]", _UNSIGNED),
    ("null", "[null]", "[1]", _UNSIGNED),
    ("bool", "[true]", "[1]", _UNSIGNED),
    ("nested", "[[1]]", "[1]", _UNSIGNED),
    ("object", "[{}]", "[1]", _UNSIGNED),
    ("2^64", "[18446744073709551616]", "[1]", _UNSIGNED),
    ("nan", "[NaN]", "[1]", _UNSIGNED),
    ("2^31", "[2147483648]", "[1]", "has a dimension of 2147483648, more than 2147483647"),
    ("2^60", "[1152921504606846976]", "[1]", "has a dimension of 1152921504606846976"),
    ("2^63", "[9223372036854775808]", "[1]", "has a dimension of 9223372036854775808"),
    ("overflow-to-64-bytes", "[16,1152921504606846978]", "[1]", "has a dimension of"),
    ("overflow-to-8-elements", "[4,1152921504606846978]", "[1]", "has a dimension of"),
    ("2^31-elements", "[65536,32768]", "[1]", "has 2147483648 elements, more than 2147483647"),
    ("2^62-elements", "[2147483647,2147483647]", "[1]", "elements, more than"),
    ("0-beside-2^62-elements", "[0,2147483647,2147483647]", "[]", "elements beside its dimension of 0, more than"),
    ("33-dims", json.dumps([1] * 33), "[1]", "has 33 dimensions, more than 32"),
    ("10000-dims", json.dumps([1] * 10_000), "[1]", "has 10000 dimensions, more than 32"),
    (
        "32-dims",
        json.dumps([1] * 32),
        "[1]",
        "unexpected shape for input 'X' for model 'floats'. Expected [-1], got [1,1",
    ),
    ("scalar", "[]", "[1]", "Expected [-1], got []. "),
    ("rank-2", "[1,1]", "[1]", "Expected [-1], got [1,1]. "),
    ("too-many-elements", "[17000000]", "[1]", "has 17000000 elements, more than 16777216"),
    ("most-elements-but-no-data", "[16777216]", "[1]", "has a byte_size (67108864 bytes)"),
    ("one-too-few", "[3]", "[1,2]", _COUNT),
    ("one-too-many", "[3]", "[1,2,3,4]", _COUNT),
    ("empty-data", "[1]", "[]", _COUNT),
    ("nested-empty-data", "[1]", "[[],[[]]]", _COUNT),
    ("data-for-no-elements", "[0]", "[1]", _COUNT),
    ("ragged-too-few", "[4]", "[[1,2],[3]]", _COUNT),
):
    wanted = 200 if id == "most-elements-but-no-data" else None
    if wanted is None:
        T.add(id, with_data(data, shape), text)
T.add("most-elements-but-no-data", with_data("[1]", "[16777216]"), _COUNT)

T.add("no-elements", with_data("[]", "[0]"), '"shape":[0],"data":[]', status=200)
T.add("no-elements-nested", with_data("[[]]", "[0]"), '"shape":[0],"data":[]', status=200)
T.add("ragged-but-enough", with_data("[[1,2],[3],4]", "[4]"), "[1.0,2.0,3.0,4.0]", status=200)
T.add("nested-data", with_data("[[[1,2]],[[3,4]]]", "[4]"), "[1.0,2.0,3.0,4.0]", status=200)

_ROW = json.dumps(list(range(16)))
for id, shape, data, text in (
    ("no-batch-dim", "[16]", _ROW, "input 'INPUT0' batch size does not match other inputs for 'simple'"),
    ("scalar-for-batching", "[]", "[1]", "input 'INPUT0' has no shape but model requires batch dimension for 'simple'"),
    ("rank-3", "[1,1,16]", _ROW, "Expected [-1,16], got [1,1,16]. " + _NOTE),
    ("wrong-dim", "[1,15]", json.dumps(list(range(15))), "Expected [-1,16], got [1,15]. " + _NOTE),
    ("dims-swapped", "[16,1]", _ROW, "batch size does not match other inputs"),
    ("other-batch", "[2,16]", json.dumps(list(range(32))), "input 'INPUT0' batch size does not match"),
    ("zero-dim", "[1,0]", "[]", "Expected [-1,16], got [1,0]. "),
):
    T.add(id, ints(data, shape), text, model="simple")


def _simple(rows: int) -> dict[str, object]:
    return {
        "inputs": [
            {"name": name, "datatype": "INT32", "shape": [rows, 16], "data": [1] * 16 * rows}
            for name in ("INPUT0", "INPUT1")
        ]
    }


T.add("batch-of-8", _simple(8), '"shape":[8,16]', model="simple", status=200)
T.add("batch-of-9", _simple(9), "inference request batch-size must be <= 8 for 'simple'", model="simple")
T.add(
    "batch-of-1000000",
    '{"inputs":['
    + ",".join(
        f'{{"name":"{name}","datatype":"INT32","shape":[1000000,16],"data":[]}}' for name in ("INPUT0", "INPUT1")
    )
    + "]}",
    "inference request batch-size must be <= 8 for 'simple'",
    model="simple",
)

_A = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": list(range(16))}
_B = _A | {"name": "INPUT1"}
_C = _A | {"name": "INPUT2"}
_EXPECTED = "expected 2 inputs but got {} inputs for model 'simple'. Got input(s) {}, but missing required input(s) {}."
for id, inputs, text in (
    ("no-inputs", [], _EXPECTED.format(0, "[]", "['INPUT0','INPUT1']")),
    ("one-input", [_A], _EXPECTED.format(1, "['INPUT0']", "['INPUT1']") + " Please provide all required input(s)."),
    ("other-input", [_B], _EXPECTED.format(1, "['INPUT1']", "['INPUT0']")),
    ("three-inputs", [_A, _B, _C], _EXPECTED.format(3, "['INPUT0','INPUT1','INPUT2']", "]")),
    ("unknown-input", [_A, _C], "unexpected inference input 'INPUT2' for model 'simple'"),
    ("duplicate-input", [_A, _B, _A], "input 'INPUT0' already exists in request"),
    ("1025-inputs", [_A | {"name": f"I{i}"} for i in range(1025)], "request has 1025 inputs, more than 1024"),
    ("1024-inputs", [_A | {"name": f"I{i}"} for i in range(1024)], "expected 2 inputs but got 1024 inputs"),
):
    T.add(id, {"inputs": inputs}, text, model="simple")
T.add("with-id", {"id": "r7", "inputs": [_A]}, "[request id: r7] expected 2 inputs", model="simple")
T.add("without-id", {"inputs": [_A]}, "[request id: <id_unknown>] expected 2 inputs", model="simple")
T.add("two-inputs-reversed", {"inputs": [_B, _A]}, '"OUTPUT0"', model="simple", status=200)

for id, shape, data, text in (
    (
        "too-few-strings",
        "[1,2]",
        '["a"]',
        "expected 2 string elements for inference input 'TEXT' for model 'strings', got 1",
    ),
    ("too-many-strings", "[1,1]", '["a","b"]', "unexpected number of string elements 2 for inference input 'TEXT'"),
    ("no-strings", "[1,1]", "[]", "expected 1 string elements"),
    ("strings-without-batch", "[1]", '["a"]', "Expected [-1,-1], got [1]. " + _NOTE),
):
    T.add(id, with_data(data, shape, model="strings"), text, model="strings")
T.add("zero-strings", with_data("[]", "[1,0]", model="strings"), '"shape":[1,0],"data":[]', model="strings", status=200)

CASES = tuple(T.cases)
