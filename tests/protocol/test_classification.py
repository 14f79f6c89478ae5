import numpy as np
import pytest

from protocol.classification import classify
from protocol.datatypes import BY_NAME, of_array
from protocol.errors import InvalidArgument
from protocol.limits import Limits


def entries(values: object, count: int, batched: bool = False, labels: tuple[str, ...] = ()) -> list[object]:
    array = np.asarray(values)
    return classify(array, of_array(array), count, batched, labels).tolist()


def test_entries_are_value_index_and_label() -> None:
    assert entries(np.array([0.1, 0.7, 0.2], np.float32), 2, labels=("CAT", "", "COW")) == [
        b"0.700000:1",
        b"0.200000:2:COW",
    ]
    assert entries(np.array([5, -7], np.int64), 9, labels=("A",)) == [b"5:0:A", b"-7:1"]
    assert entries(np.array([2**64 - 1, 0], np.uint64), 1) == [b"18446744073709551615:0"]


def test_a_label_that_is_not_utf8_is_answered_as_it_is() -> None:
    assert entries(np.array([5], np.int64), 1, labels=("caf\udce9",)) == [b"5:0:caf\xe9"]


def test_each_row_of_a_batch_is_ranked_by_itself() -> None:
    values = np.array([[[1, 2], [3, 4]], [[8, 7], [6, 5]]], np.int32)
    assert entries(values, 2, batched=True) == [[b"4:3", b"3:2"], [b"8:0", b"7:1"]]


def test_equal_values_come_by_index_and_nan_last() -> None:
    assert entries(np.array([1, 2, 2, 1, 2], np.uint8), 5) == [b"2:1", b"2:2", b"2:4", b"1:0", b"1:3"]
    assert entries(np.array([np.nan, 1.0, np.inf]), 3) == [b"inf:2", b"1.000000:1", b"nan:0"]
    assert entries(np.array([np.nan, -np.inf, 1.0] + [np.nan] * 20), 2) == [b"1.000000:2", b"-inf:1"]


def test_the_ends_of_a_range_are_in_their_places() -> None:
    assert entries(np.array([-128, 127, 0], np.int8), 3) == [b"127:1", b"0:2", b"-128:0"]
    assert entries(np.array([0, 255, 1], np.uint8), 3) == [b"255:1", b"1:2", b"0:0"]


def test_few_of_many_are_the_same_as_all_sorted() -> None:
    values = np.random.default_rng(7).integers(0, 50, 2000).astype(np.float32)
    assert entries(values, 5) == entries(values, 2000)[:5]


def test_nothing_to_rank() -> None:
    assert classify(np.zeros((2, 0), np.int8), BY_NAME["INT8"], 3, True).shape == (2, 0)
    assert classify(np.zeros((0, 4), np.int8), BY_NAME["INT8"], 3, True).shape == (0, 3)


@pytest.mark.parametrize("datatype", ["BOOL", "FP16", "BF16", "BYTES"])
def test_types_without_an_order_are_refused(datatype: str) -> None:
    with pytest.raises(InvalidArgument, match=f"due to unsupported type '{datatype}'"):
        classify(np.zeros(1, BY_NAME[datatype].numpy), BY_NAME[datatype], 1, False)


def test_size_is_bounded_on_both_sides() -> None:
    limits = Limits(max_classification_elements=4)
    assert classify(np.zeros((3, 4)), BY_NAME["FP64"], 1, True, limits=limits).shape == (3, 1)
    with pytest.raises(InvalidArgument, match="classification output tensor too large"):
        classify(np.zeros((3, 5)), BY_NAME["FP64"], 1, True, limits=limits)
