"""JSON that Triton reads and writes, and orjson does not: what hangs on it are sequences, large requests and regions."""

import math

import pytest

from app.json_helper.binary_form import to_binary
from protocol.json_document import parse
from protocol.json_text import read_json, write_json
from protocol.limits import DEFAULT_LIMITS
from protocol.sequence_mark import SequenceMark, http_sequence


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":[1,null,true],"b":"null"}',
        b'{"a":[NaN,Infinity,-Infinity,1.5]}',
        b'{"a":["\xff\xfe","\xc3\xa9"],"b":NaN}',
        b'{"a":18446744073709551615}',
    ],
)
def test_what_is_read_is_written_as_it_was(text: bytes) -> None:
    assert write_json(read_json(text)) == text


@pytest.mark.parametrize("text", [b"", b"{", b"[1] 2", b"[" * 100_000, b'{"a":nan}'])
def test_what_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        read_json(text)


def test_names_that_only_triton_knows_are_read_beside_bytes_that_are_no_text() -> None:
    assert repr(read_json(b'{"a":[Inf,-Inf,-NaN],"b":"\xff Inf"}')) == "{'a': [inf, -inf, nan], 'b': '\\udcff Inf'}"


def test_json_with_a_byte_order_mark_is_read_and_belongs_to_its_sequence() -> None:
    text = '\ufeff{"parameters":{"sequence_id":7,"sequence_end":true},"inputs":[]}'.encode()
    assert read_json(text) == parse(text, DEFAULT_LIMITS)
    assert http_sequence(text) == SequenceMark(7, False, True)


@pytest.mark.parametrize("value", ["1.5", "NaN", "-Infinity", "Infinity"])
def test_a_request_belongs_to_its_sequence_whatever_numbers_it_holds(value: str) -> None:
    tensor = f'{{"name":"INPUT","datatype":"FP32","shape":[1],"data":[{value}]}}'
    text = f'{{"parameters":{{"sequence_id":7,"sequence_start":true}},"inputs":[{tensor}]}}'
    assert http_sequence(text.encode()) == SequenceMark(7, True, False)


def test_parameters_that_are_not_finite_stay_so_in_a_large_request() -> None:
    text = b'{"parameters":{"x":NaN,"y":1.5},"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[2]}]}'
    header, _ = to_binary(parse(text, DEFAULT_LIMITS), memoryview(b""), "m", DEFAULT_LIMITS)
    parameters = read_json(header)["parameters"]
    assert math.isnan(parameters["x"]) and parameters["y"] == 1.5
