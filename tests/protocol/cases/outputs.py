"""F-OUT: requested outputs and classification."""

from typing import Any

from tests.protocol.cases.case import Table

T = Table("F-OUT", "3.1, 4.5, 4.8")

_TENSOR = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": list(range(16))}
_INPUTS = [_TENSOR, _TENSOR | {"name": "INPUT1", "data": [1] * 16}]


def _outputs(*outputs: Any, **more: Any) -> dict[str, Any]:
    return {"inputs": _INPUTS, "outputs": list(outputs), **more}


def _out(**parameters: Any) -> dict[str, Any]:
    return {"name": "OUTPUT0", "parameters": parameters}


_CLASS = "Unable to set 'classification': "
_UINT = "attempt to access JSON non-unsigned-integer as unsigned-integer"
_BOOL = "attempt to access JSON non-boolean as boolean"
for id, document, text in (
    ("two-unknown", _outputs({"name": "Z"}, {"name": "A"}), "unexpected inference output 'A' for model 'simple'"),
    ("unknown", _outputs({"name": "OUTPUT9"}), "unexpected inference output 'OUTPUT9' for model 'simple'"),
    ("input-as-output", _outputs({"name": "INPUT0"}), "unexpected inference output 'INPUT0' for model 'simple'"),
    ("empty-name", _outputs({"name": ""}), "unexpected inference output '' for model 'simple'"),
    ("no-name", _outputs({}), "Unable to parse 'name': attempt to access non-existing object member 'name'"),
    ("name-number", _outputs({"name": 1}), "Unable to parse 'name': attempt to access JSON non-string as string"),
    ("10000", _outputs(*[{"name": f"O{i}"} for i in range(10_000)]), "request has 10000 outputs, more than 1024"),
    ("1024-unknown", _outputs(*[{"name": f"O{i}"} for i in range(1024)]), "unexpected inference output 'O0'"),
    ("binary-number", _outputs(_out(binary_data=1)), "Unable to parse 'binary_data': " + _BOOL),
    ("binary-string", _outputs(_out(binary_data="true")), "Unable to parse 'binary_data': " + _BOOL),
    ("classes-0", _outputs(_out(classification=0)), _CLASS + "expected a value from 1"),
    ("classes-negative", _outputs(_out(classification=-1)), _CLASS + _UINT),
    ("classes-float", _outputs(_out(classification=1.5)), _CLASS + _UINT),
    ("classes-string", _outputs(_out(classification="1")), _CLASS + _UINT),
    ("classes-bool", _outputs(_out(classification=True)), _CLASS + _UINT),
    ("classes-2^31", _outputs(_out(classification=2**31)), _CLASS + "expected a value from 1 to 2147483647"),
    ("classes-2^64", _outputs(_out(classification=2**64)), _CLASS + _UINT),
    (
        "classes-in-region",
        _outputs(_out(classification=1, shared_memory_region="r")),
        "Output can't set both 'shared_memory_region' and 'classification'",
    ),
    (
        "binary-in-region",
        _outputs(_out(binary_data=True, shared_memory_region="r")),
        "Output can't set both 'shared_memory_region' and 'binary_data'",
    ),
):
    T.add(id, document, text, model="simple")
T.add(
    "unknown-region",
    _outputs(_out(shared_memory_region="r", shared_memory_byte_size=64)),
    "Unable to find shared memory region: 'r'",
    model="simple",
    status=404,
)
for model, name, datatype, shape, data, bad in (
    ("flags", "B", "BOOL", [1, 4], [True] * 4, "BOOL"),
    ("strings", "TEXT", "BYTES", [1, 1], ["a"], "BYTES"),
):
    output = {"flags": "BO", "strings": "TEXT_OUT"}[model]
    T.add(
        f"classes-of-{bad}",
        {
            "inputs": [{"name": name, "datatype": datatype, "shape": shape, "data": data}],
            "outputs": [{"name": output, "parameters": {"classification": 1}}],
        },
        f"class result not available for output due to unsupported type '{bad}'",
        model=model,
    )

for id, document, text in (
    ("none-listed", _outputs(), '"OUTPUT1"'),
    ("one-listed", _outputs(_out()), '"OUTPUT0","datatype":"INT32","shape":[1,16],"data":[1,2,3'),
    ("one-binary", _outputs(_out(binary_data=True)), '"parameters":{"binary_data_size":64}'),
    ("listed-ignores-default", _outputs(_out(), parameters={"binary_data_output": True}), '"data":[1,2,3'),
    ("classes-2", _outputs(_out(classification=2)), '"BYTES","shape":[1,2],"data":["16:15","15:14"]'),
    ("classes-binary", _outputs(_out(classification=1, binary_data=True)), "16:15"),
    ("classes-2^31-1", _outputs(_out(classification=2**31 - 1)), '"shape":[1,16]'),
    (
        "twice-first-counts",
        _outputs(_out(), _out(binary_data=True)),
        '"OUTPUT0","datatype":"INT32","shape":[1,16],"data"',
    ),
    ("twice-first-binary", _outputs(_out(binary_data=True), _out()), '"parameters":{"binary_data_size":64}'),
    ("twice-first-classes", _outputs(_out(classification=1), _out()), '"data":["16:15"]'),
):
    T.add(id, document, text, model="simple", status=200)

CASES = tuple(T.cases)
