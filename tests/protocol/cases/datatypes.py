"""F-DTYPE: datatypes that do not exist, do not match, or have no JSON form."""

from tests.protocol.cases.case import Table, binary_input, ints, with_data

T = Table("F-DTYPE", "3.1, 4.4")

_ALL = (
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BYTES",
    "BF16",
)
for bad in (
    "fp32",
    "Fp32",
    "FLOAT",
    "FLOAT32",
    "TYPE_FP32",
    "STRING",
    "INT128",
    "FP8",
    " FP32",
    "FP32 ",
    "INVALID",
    "0",
    "\\u0000",
):
    T.add(
        f"unknown-{bad.replace(' ', '_')}",
        with_data("[1]", datatype=bad),
        "invalid datatype for input X",
    )
T.add("empty", with_data("[1]").replace('"FP32"', '""'), "invalid datatype for input X")
T.binary(
    "unknown-in-binary", {"inputs": [binary_input("X", "FLOAT", [1], 4)]}, bytes(4), "invalid datatype for input X"
)
for datatype in _ALL:
    if datatype != "FP32":
        T.binary(
            f"binary-{datatype}",
            {"inputs": [binary_input("X", datatype, [1], 4)]},
            bytes(4),
            "[request id: <id_unknown>] inference input 'X' data-type is "
            f"'{datatype}', but model 'floats' expects 'FP32'",
        )
for datatype in ("UINT32", "INT64", "FP32"):
    T.add(
        f"json-{datatype}",
        ints(str(list(range(16)))).replace('"INT32"', f'"{datatype}"', 1),
        f"inference input 'INPUT0' data-type is '{datatype}', but model 'simple' expects 'INT32'",
        model="simple",
    )
T.add(
    "fp16-as-json",
    with_data("[1,2,3,4]", model="halves"),
    "receiving FP16 data via JSON is not supported. Please use the binary data format for input H",
    model="halves",
)
T.add(
    "bf16-as-json-for-fp16",
    with_data("[1,2,3,4]", datatype="BF16", model="halves"),
    "receiving BF16 data via JSON is not supported. Please use the binary data format for input H",
    model="halves",
)
_H = binary_input("H", "FP16", [1, 4], 8)
_NO_JSON = "sending FP16 data via JSON is not supported. Please use the binary data format for output"
T.binary("fp16-output-as-json", {"inputs": [_H]}, bytes(8), _NO_JSON, model="halves")
T.binary(
    "fp16-output-listed-as-json", {"inputs": [_H], "outputs": [{"name": "HO"}]}, bytes(8), _NO_JSON, model="halves"
)
T.binary(
    "fp16-output-in-binary",
    {"inputs": [_H], "parameters": {"binary_data_output": True}},
    bytes(8),
    '"datatype":"FP16","shape":[1,4],"parameters":{"binary_data_size":8}',
    model="halves",
    status=200,
)
T.add("fp32-overflow", with_data("[1e39]"), "value out of range of FP32 for input 'X'")
T.add("fp32-negative-overflow", with_data("[-1e39]"), "value out of range of FP32 for input 'X'")
T.add("fp32-overflow-beside-infinity", with_data("[Infinity,1e39]", [2]), "value out of range of FP32")
T.add("fp32-maximum", with_data("[3.4028234663852886e38]"), "3.4028235e+38", status=200)
T.binary(
    "bool-2-in-binary",
    {"inputs": [binary_input("B", "BOOL", [1, 4], 4)]},
    b"\x00\x01\x02\xff",
    "[false,true,true,true]",
    model="flags",
    status=200,
)
T.add("bool-2", with_data("[2,true,true,true]", model="flags"), "non-boolean as boolean", model="flags")

CASES = tuple(T.cases)
