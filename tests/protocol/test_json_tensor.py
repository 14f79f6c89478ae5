import warnings
from typing import Any

import numpy as np
import pytest

from protocol.datatypes import BY_NAME
from protocol.errors import InvalidArgument
from protocol.json_document import parse
from protocol.json_tensor import array_from_json, array_to_json
from protocol.limits import DEFAULT_LIMITS, Limits

INTEGERS = ["UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"]


def read(data: Any, datatype: str, shape: tuple[int, ...] | None = None, limits: Limits = DEFAULT_LIMITS) -> Any:
    return array_from_json(data, BY_NAME[datatype], (len(data),) if shape is None else shape, "I", "m", limits)


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_reach_exactly_to_their_bounds(datatype: str) -> None:
    bounds = np.iinfo(BY_NAME[datatype].numpy)  # type: ignore[type-var]
    for extra in (0, 1):
        data = [int(bounds.min), int(bounds.max), extra]
        array = read(data, datatype)
        assert array.dtype == BY_NAME[datatype].numpy
        assert array.tolist() == data
    for bad in (int(bounds.min) - 1, int(bounds.max) + 1, 2**64, -(2**63) - 1):
        for data in ([bad], [1, bad], [bad, 2**63], [-1, bad]):
            with pytest.raises(InvalidArgument, match="Unable to parse 'data'"):
                read(data, datatype)


@pytest.mark.parametrize("datatype", INTEGERS)
@pytest.mark.parametrize("bad", [1.0, 1.5, True, "1", None, {}, float("nan"), 1.8446744073709552e19])
def test_integers_are_nothing_else(datatype: str, bad: object) -> None:
    kind = "unsigned" if datatype.startswith("U") else "signed"
    for data in ([bad], [1, bad], [[1], [bad]]):
        with pytest.raises(InvalidArgument, match=f"access JSON non-{kind}-integer as {kind}-integer"):
            read(data, datatype, (len(data),))


def test_floats_take_integers() -> None:
    assert read([1, 2.5, 2**64, -3], "FP64").tolist() == [1.0, 2.5, 2.0**64, -3.0]


def test_floats_refuse_integers_that_no_double_holds() -> None:
    for datatype in ("FP32", "FP64"):
        with pytest.raises(InvalidArgument, match="out of range"):
            read([10**400], datatype)


def test_single_precision_overflows_only_by_name() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        array = read([float("inf"), float("-inf"), float("nan"), 3.4e38], "FP32")
        assert read([3.4028235e38, -3.4028235e38], "FP32").tolist() == [3.4028234663852886e38, -3.4028234663852886e38]
        assert np.isinf(array[:2]).all() and np.isnan(array[2]) and np.isfinite(array[3])
        for data in ([3.5e38], [-3.4028236e38], [float("nan"), 3.5e38]):
            with pytest.raises(InvalidArgument, match="value out of range of FP32 for input 'I'"):
                read(data, "FP32")


@pytest.mark.parametrize(
    ("data", "flat"),
    [
        ([[1, 2], [3, 4]], [1, 2, 3, 4]),
        ([[[1], [2]], [[3], [4]]], [1, 2, 3, 4]),
        ([1, [2, [3]], 4], [1, 2, 3, 4]),
        ([[1, [2]], 3, [], [[], [4]]], [1, 2, 3, 4]),
    ],
)
def test_nesting_does_not_matter(data: Any, flat: list[int]) -> None:
    assert read(data, "INT32", (2, 2)).ravel().tolist() == flat


def test_depth_is_bounded_on_both_sides() -> None:
    limits = Limits(json_max_depth=3)
    assert read([[[1]]], "INT8", (1,), limits).tolist() == [1]
    assert read([[[1]], 2], "INT8", (2,), limits).tolist() == [1, 2]
    for deep in ([[[[1]]]], [[[[1]]], 2], [2, [[[]]]]):
        with pytest.raises(InvalidArgument, match=r"nesting depth exceeds maximum allowed limit .3."):
            read(deep, "INT8", (2,), limits)


def test_elements_and_bytes_are_bounded_on_both_sides() -> None:
    assert read([1, 2, 3], "INT64", limits=Limits(json_max_elements=3)).size == 3
    with pytest.raises(InvalidArgument, match="has 4 elements, more than 3"):
        read([1, 2, 3, 4], "INT64", limits=Limits(json_max_elements=3))
    with pytest.raises(InvalidArgument, match="has 4 elements, more than 3"):
        read([1, 2, 3, 4], "INT64", (1,), limits=Limits(json_max_elements=3))
    assert read([1, 2, 3], "INT64", limits=Limits(http_max_input_size_bytes=24)).size == 3
    with pytest.raises(InvalidArgument, match=r"JSON input 'I' has a byte_size .32 bytes. that exceeds"):
        read([1, 2, 3, 4], "INT64", limits=Limits(http_max_input_size_bytes=24))
    with pytest.raises(InvalidArgument, match=r"JSON input 'I' has a byte_size .9 bytes. that exceeds"):
        read(["abcde"], "BYTES", limits=Limits(http_max_input_size_bytes=8))


def test_elements_are_counted_before_they_are_parsed() -> None:
    limits = Limits(json_max_elements=4)
    assert parse(b"[1,2,3,4]", limits) == [1, 2, 3, 4]
    assert parse(b'["a,[b,c,d,\\"e,f,g", 2, 3, 4]', limits)[1:] == [2, 3, 4]
    for text in (b"[1,2,3,4,5]", b"[[],[],[],[],[]]", b'["a,b","c","d","e","f"]', b"[[[[[]]]]]"):
        with pytest.raises(InvalidArgument, match="request JSON has more than 4 elements"):
            parse(text, limits)


def test_strings_become_utf_8() -> None:
    assert read([["ż"], ["a\x00"]], "BYTES", (2, 1)).tolist() == [["ż".encode()], [b"a\x00"]]


def test_non_finite_numbers_are_written_by_name() -> None:
    array = np.array([[1.5, np.nan], [np.inf, -np.inf]], np.float32)
    assert b"".join(array_to_json(array, BY_NAME["FP32"])) == b"[1.5,NaN,Infinity,-Infinity]"
    for number, name in ((np.nan, b"NaN"), (np.inf, b"Infinity"), (-np.inf, b"-Infinity")):
        text = b"".join(array_to_json(np.array([number, 1.5, number]), BY_NAME["FP64"]))
        assert text == b"[%b,1.5,%b]" % (name, name)


def test_a_number_is_written_alike_whatever_is_beside_it() -> None:
    array = np.full(100_000, 0.1, np.float32)
    array[[5, 99_999]] = np.nan, -np.inf
    pieces = b"".join(array_to_json(array, BY_NAME["FP32"]))[1:-1].split(b",")
    assert len(pieces) == array.size
    assert (pieces[5], pieces[99_999]) == (b"NaN", b"-Infinity")
    assert {*pieces} == {b"0.1", b"NaN", b"-Infinity"}


def test_output_is_flat_whatever_its_layout() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3).T
    assert b"".join(array_to_json(array, BY_NAME["INT32"])) == b"[0,3,1,4,2,5]"
    assert b"".join(array_to_json(np.array(7, np.int8), BY_NAME["INT8"])) == b"[7]"
    assert b"".join(array_to_json(np.array([True, False]), BY_NAME["BOOL"])) == b"[true,false]"


def test_strings_that_are_not_utf_8_pass_through() -> None:
    array = np.array([b'\xff"\\\n\x01', "ż".encode()], dtype=object)
    assert b"".join(array_to_json(array, BY_NAME["BYTES"])) == b'["\xff\\"\\\\\\n\\u0001","\xc5\xbc"]'


def test_half_precision_has_no_json_form() -> None:
    for datatype in ("FP16", "BF16"):
        with pytest.raises(InvalidArgument, match=f"sending {datatype} data via JSON is not supported"):
            array_to_json(np.zeros(1, BY_NAME[datatype].numpy), BY_NAME[datatype])


def test_limits_follow_a_raised_input_size() -> None:
    raised, lowered = Limits.of_input_size(1 << 30), Limits.of_input_size(1000)
    assert (raised.json_max_elements, raised.max_bytes_element_bytes) == (1 << 28, 1 << 30)
    assert (lowered.json_max_elements, lowered.max_bytes_element_bytes) == (16 << 20, 64 << 20)
