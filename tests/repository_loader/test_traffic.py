"""Which version gets a request that names none."""

import re

import pytest

from repository_loader.traffic import Traffic, parse_versions, read_percentages, read_weights

BAD_WEIGHTS = {
    "below zero": ({"-1": 1}, "'-1' is no version"),
    "no number": ({"one": 1}, "'one' is no version"),
    "twice": ({"1": 1, "01": 2}, "'01' is no version"),
    "negative": ({"1": -1}, "the weight of version 1 must be a number from 0 to 1e9"),
    "not a number": ({"1": float("nan")}, "the weight of version 1"),
    "infinite": ({"1": float("inf")}, "the weight of version 1"),
    "a text": ({"1": "much"}, "the weight of version 1"),
    "true": ({"1": True}, "the weight of version 1"),
    "all zero": ({"1": 0, "2": 0}, "one version must have a weight above 0"),
    "a list": ([1, 2], "expected a weight for each version"),
    "too many": ({str(number): 1 for number in range(1, 66)}, "more than 64 versions"),
}


def test_without_weights_the_highest_ready_version_gets_everything() -> None:
    assert Traffic().shares([1, 3, 2]) == {3: 1.0}
    assert Traffic().shares([]) == {}


def test_weights_need_not_add_up_to_anything() -> None:
    assert Traffic({1: 3, 2: 1}).shares([1, 2]) == {1: 0.75, 2: 0.25}
    assert Traffic({1: 190, 2: 10}).shares([1, 2]) == {1: 0.95, 2: 0.05}


def test_a_version_that_is_not_ready_or_has_no_weight_gets_nothing() -> None:
    assert Traffic({1: 95, 2: 5}).shares([1, 3]) == {1: 1.0}
    assert Traffic({1: 100, 2: 0}).shares([1, 2]) == {1: 1.0}
    assert Traffic({1: 100, 2: 0}).shares([2, 3]) == {}


def test_a_weight_of_which_no_part_is_left_gets_nothing() -> None:
    assert Traffic({1: 1e9, 2: 5e-324}).shares({1, 2}) == {1: 1.0}


def test_weights_of_versions_that_are_gone_are_void() -> None:
    assert Traffic({1: 95, 2: 5}).among([2, 3]).weights == {2: 5}
    assert not Traffic({1: 95, 2: 5}).among([3])
    assert not Traffic({1: 95, 2: 0}, {4: 1}).among([2, 3])


def test_copies_are_void_when_no_version_is_left_to_answer() -> None:
    given = Traffic({1: 1}, {2: 10, 3: 10})
    assert given.among([2, 3]) == Traffic()
    assert given.among([2, 4]) == Traffic({}, {2: 10})
    assert Traffic({3: 1}, {3: 10}).among([3]) == Traffic({3: 1}, {3: 10})


def test_a_version_that_gets_copies_gets_no_requests_unless_it_has_a_weight() -> None:
    assert Traffic(shadow={3: 10}).shares([1, 2, 3]) == {2: 1.0}
    assert Traffic(shadow={3: 10}).shares([3]) == {}
    assert Traffic({3: 1}, {3: 10}).shares([1, 3]) == {3: 1.0}


@pytest.mark.parametrize(("given", "error"), BAD_WEIGHTS.values(), ids=BAD_WEIGHTS.keys())
def test_what_is_no_weight_is_refused(given: object, error: str) -> None:
    with pytest.raises(ValueError, match=re.escape(error)):
        read_weights(given)


@pytest.mark.parametrize("percent", [0, 101, -1])
def test_a_percentage_is_above_0_and_at_most_100(percent: float) -> None:
    with pytest.raises(ValueError, match="version 3 must be"):
        read_percentages({"3": percent})


def test_the_written_form_has_commas_or_spaces() -> None:
    assert parse_versions("1=95,2=5") == parse_versions(" 1=95  2=5 ") == {"1": "95", "2": "5"}
    assert read_weights(parse_versions("0=95,2=5")) == {0: 95.0, 2: 5.0}
    for wrong in ("1", "=5", "1=", "1=2,1=3"):
        with pytest.raises(ValueError, match=r"version"):
            parse_versions(wrong)


def test_the_plain_form_comes_back() -> None:
    traffic = Traffic({2: 5.0, 1: 95.0}, {3: 10.0})
    assert Traffic.from_dict(traffic.to_dict()) == traffic
