import json
import sys
from typing import Any

import pytest

from app.http.generate_mapping import GenerateMapping
from protocol.errors import InvalidArgument
from protocol.limits import DEFAULT_LIMITS


def tensor(name: str, datatype: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


TEXT = tensor("text", "BYTES", -1, 1)


def mapped(document: object, *inputs: dict[str, Any], **forwarded: str) -> Any:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return json.loads(GenerateMapping(inputs or [TEXT], DEFAULT_LIMITS).request(body, forwarded))


REQUESTS = {
    "scalar": ({"text": "hello"}, {"inputs": [{**TEXT, "shape": [1, 1], "data": ["hello"]}]}),
    "array": ({"text": ["a", "b"]}, {"inputs": [{**TEXT, "shape": [2, 1], "data": ["a", "b"]}]}),
    "id is a parameter too": (
        {"id": "7", "text": "a"},
        {"id": "7", "parameters": {"id": "7"}, "inputs": [{**TEXT, "shape": [1, 1], "data": ["a"]}]},
    ),
    "other keys are parameters": (
        {"text": "a", "stream": True, "n": 3, "top_p": 0.5, "stop": "x"},
        {
            "parameters": {"stream": True, "n": 3, "top_p": 0.5, "stop": "x"},
            "inputs": [{**TEXT, "shape": [1, 1], "data": ["a"]}],
        },
    ),
    "nested parameters are flattened": (
        {"text": "a", "parameters": {"n": 3}},
        {"parameters": {"n": 3}, "inputs": [{**TEXT, "shape": [1, 1], "data": ["a"]}]},
    ),
    "an input among the parameters": (
        {"parameters": {"text": "a"}},
        {"inputs": [{**TEXT, "shape": [1, 1], "data": ["a"]}]},
    ),
    "no input": ({"n": 3}, {"parameters": {"n": 3}, "inputs": []}),
    "the form of the outputs stays ours": ({"binary_data_output": True}, {"inputs": []}),
}


@pytest.mark.parametrize(("document", "request_"), REQUESTS.values(), ids=REQUESTS.keys())
def test_flat_json_becomes_a_request(document: dict[str, Any], request_: dict[str, Any]) -> None:
    assert mapped(document) == request_


SHAPES = {
    "scalar for a batch": ((-1, 1), 1, [1, 1]),
    "innermost takes the rest": ((-1, -1), 6, [1, 6]),
    "fixed dimensions divide": ((-1, 3), 6, [2, 3]),
    "between fixed ones": ((2, -1, 2), 8, [2, 2, 2]),
    "all fixed": ((2, 2), 4, [2, 2]),
    "no dimensions": ((), 1, []),
    "one fixed": ((1,), 1, [1]),
    "nothing": ((-1,), 0, [0]),
}


@pytest.mark.parametrize(("dims", "count", "shape"), SHAPES.values(), ids=SHAPES.keys())
def test_shape_is_made_from_the_number_of_elements(dims: tuple[int, ...], count: int, shape: list[int]) -> None:
    assert mapped({"x": [1] * count}, tensor("x", "INT32", *dims))["inputs"][0]["shape"] == shape


@pytest.mark.parametrize(("dims", "count"), [((-1, 3), 4), ((2, 2), 8), ((4,), 1), ((), 2), ((-1, 3), 1)])
def test_elements_that_fit_no_shape_are_refused(dims: tuple[int, ...], count: int) -> None:
    with pytest.raises(InvalidArgument, match=r"^The schema can not convert input 'x' to tensor with proper shape$"):
        mapped({"x": [1] * count}, tensor("x", "INT32", *dims))


BAD = {
    "array": (b"[]", "attempt to get members for non-object"),
    "not JSON": (b"{", "failed to parse the request JSON buffer"),
    "empty": (b"", "The document is empty. at 0"),
    "object as parameter": (
        b'{"a":{}}',
        "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'.",
    ),
    "array as parameter": (b'{"a":[1]}', "parameter 'a' has invalid type"),
    "null as parameter": (b'{"a":null}', "parameter 'a' has invalid type"),
    "id of a wrong type": (b'{"id":7}', "Unable to parse 'id': attempt to access JSON non-string as string"),
    "parameters that are none": (
        b'{"parameters":3}',
        "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
    ),
    "object among the parameters": (
        b'{"parameters":{"p":{}}}',
        "Converting keyword: 'parameters': parameter 'p' has invalid type.",
    ),
}


@pytest.mark.parametrize(("body", "text"), BAD.values(), ids=BAD.keys())
def test_bad_json_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        mapped(body)
    assert text in error.value.message


TOO_DEEP = {
    "an input": b'{"text":%b}',
    "another member": b'{"text":"a","other":%b}',
    "behind an escape": b'{"text":"\\u0061","other":%b}',
}


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="its parser takes thousands, and the codec refuses them")
@pytest.mark.parametrize("body", TOO_DEEP.values(), ids=TOO_DEEP.keys())
def test_json_that_nests_as_deep_as_a_parser_takes_is_refused(body: bytes) -> None:
    depth = sys.getrecursionlimit() + 20
    with pytest.raises(InvalidArgument):
        mapped(body % (b"[" * depth + b"]" * depth))


def test_an_input_named_parameters_cannot_be_told_apart() -> None:
    with pytest.raises(InvalidArgument, match="the model has an input named 'parameters'"):
        mapped({"parameters": 1}, tensor("parameters", "INT32", 1))


def test_forwarded_headers_win() -> None:
    assert mapped({"X-User": "mallory"}, **{"X-User": "alice"})["parameters"] == {"X-User": "alice"}


def test_numbers_that_are_not_finite_pass() -> None:
    request = mapped(b'{"x":[NaN,1.5]}', tensor("x", "FP32", 2))
    assert str(request["inputs"][0]["data"]) == "[nan, 1.5]"


def test_names_of_what_is_not_finite_pass_beside_escaped_characters() -> None:
    request = mapped(b'{"x":[Inf,-NaN,-Inf],"note":"\\u00e9 Inf"}', tensor("x", "FP32", 3))
    assert str(request["inputs"][0]["data"]) == "[inf, nan, -inf]"
    assert request["parameters"] == {"note": "é Inf"}


def flat(document: object, *, decoupled: bool = True, final: bool = True) -> Any:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    response = GenerateMapping([], DEFAULT_LIMITS, decoupled).response(body, final)
    return None if response is None else json.loads(response)


def test_outputs_are_unwrapped() -> None:
    outputs = [
        {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hello"]},
        {"name": "scores", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 1.0]},
        {"name": "none", "datatype": "FP32", "shape": [0], "data": []},
    ]
    response = {"id": "7", "model_name": "m", "model_version": "1", "parameters": {"cost": 3}, "outputs": outputs}
    assert flat(response) == {
        "id": "7",
        "model_name": "m",
        "model_version": "1",
        "cost": 3,
        "text": "hello",
        "scores": [0.5, 1.0],
        "none": [],
    }


def test_a_response_that_only_ends_is_none() -> None:
    only_ends = {"model_name": "m", "model_version": "1", "outputs": []}
    assert flat(only_ends) is None
    assert flat(only_ends, final=False) == {"model_name": "m", "model_version": "1"}
    assert flat(only_ends, decoupled=False) == {"model_name": "m", "model_version": "1"}
    assert flat(only_ends | {"parameters": {"cost": 3}}) == {"model_name": "m", "model_version": "1", "cost": 3}


def test_what_is_no_utf_8_or_not_finite_goes_through() -> None:
    mapping = GenerateMapping([], DEFAULT_LIMITS)
    assert b'"a":"\xff"' in (mapping.response(b'{"outputs":[{"name":"a","data":["\xff"]}]}', True) or b"")
    assert b'"a":NaN' in (mapping.response(b'{"outputs":[{"name":"a","data":[NaN]}]}', True) or b"")
