"""A canary goes its steps, waits for evidence, and gives its requests back when they come to too little."""

import pytest

from deployments.control.canary import MAX_EVENTS, ROLLED_BACK, SUCCEEDED, Canary, Figures, Rules
from repository_loader.traffic import Traffic

RULES = Rules(2, (1.0, 25.0, 100.0), 60.0, 0.01, 50.0, 100)
GOOD = Figures(1000, 5, {100: 995})
"""995 of them took up to 2^12.5 µs, 5.8 ms."""


def begun(before: Traffic | None = None, versions: tuple[int, ...] = (1, 2)) -> Canary:
    return Canary.begun(RULES, before or Traffic(), versions, None, 1.0)


def test_requests_that_the_canary_does_not_get_go_where_they_went_before() -> None:
    assert begun().traffic.shares([1, 2]) == pytest.approx({1: 0.99, 2: 0.01})
    canary = begun(Traffic({1: 30, 3: 10, 2: 60}), (1, 2, 3))
    assert canary.traffic.shares([1, 2, 3]) == pytest.approx({1: 0.7425, 3: 0.2475, 2: 0.01})
    assert begun(Traffic({2: 100})).traffic.shares([1, 2]) == pytest.approx({1: 0.99, 2: 0.01})
    with pytest.raises(ValueError, match="no version beside 2"):
        begun(versions=(2,))


def test_it_advances_when_the_time_is_over_and_enough_was_answered() -> None:
    canary = begun()
    assert canary.verdict(GOOD, 59.0, ready=True) is None
    assert canary.verdict(Figures(99), 1e9, ready=True) is None, "too few to say"
    assert canary.verdict(GOOD, 60.0, ready=True) == ""
    second = canary.advanced(GOOD, 2.0)
    assert (second.percent, second.state) == (25.0, "running")
    assert second.measured != canary.measured
    last = second.advanced(GOOD, 3.0)
    assert last.traffic.shares([1, 2]) == {2: 1.0}
    done = last.advanced(GOOD, 4.0)
    assert (done.state, done.measured, done.traffic.shares([1, 2])) == (SUCCEEDED, "", {2: 1.0})
    assert [event.text for event in done.events] == ["begun", "next step", "next step", SUCCEEDED]


LIMITS = {
    "errors": (Figures(1000, 11), True, "1.10% of the requests failed, the limit is 1.00%"),
    "p99-of-seconds": (Figures(1000, 0, {174: 1000}), True, "the p99 is 3530 ms, the limit 50 ms"),
    "p99": (Figures(1000, 0, {100: 980, 136: 20}), True, "the p99 is 131 ms, the limit 50 ms"),
    "gone": (GOOD, False, "version 2 is not ready"),
}


@pytest.mark.parametrize(("figures", "ready", "reason"), LIMITS.values(), ids=LIMITS.keys())
def test_over_a_limit_it_is_rolled_back_at_once(figures: Figures, ready: bool, reason: str) -> None:
    canary = begun(Traffic({1: 1, 3: 3}), (1, 2, 3)).advanced(GOOD, 2.0)
    assert canary.verdict(figures, 0.0, ready=ready) == reason
    back = canary.rolled_back(reason, figures, 3.0)
    assert (back.state, back.measured) == (ROLLED_BACK, "")
    assert back.traffic.shares([1, 2, 3]) == {1: 0.25, 3: 0.75}
    assert back.events[-1].to_dict()["event"] == f"rolled back: {reason}"


def test_one_slow_request_in_a_hundred_is_within_the_p99() -> None:
    assert begun().verdict(Figures(1000, 0, {100: 991, 200: 9}), 60.0, ready=True) == ""


def test_reports_of_ingresses_add_up() -> None:
    report = {"step": "x/0", "requests": 10, "errors": 1, "buckets": {"3": 9}}
    assert Figures.sum([report, report]) == Figures(20, 2, {3: 18})


def test_the_history_is_of_all_canaries_of_the_model_and_bounded() -> None:
    canary = begun()
    for number in range(100):
        canary = Canary.begun(RULES, Traffic(), (1, 2), canary.stopped(float(number)), float(number))
    assert len(canary.events) == MAX_EVENTS
    assert [event.text for event in canary.events[-3:]] == ["begun", "stopped", "begun"]


BAD_RULES = {
    "no version": ({}, "'version' must be"),
    "version of text": ({"version": "2"}, "'version' must be"),
    "unknown": ({"version": 2, "limit": 1}, "a canary has no 'limit'; it has version, steps"),
    "no steps": ({"version": 2, "steps": []}, "'steps' must be 1 to 32 percentages"),
    "falling": ({"version": 2, "steps": [5, 1]}, "'steps' must rise"),
    "too much": ({"version": 2, "steps": [101]}, "'steps' must be a number"),
    "rate": ({"version": 2, "max_error_rate": 2}, "'max_error_rate' must be a number from 0 to 1"),
    "true": ({"version": 2, "interval_s": True}, "'interval_s' must be a number"),
}


@pytest.mark.parametrize(("given", "error"), BAD_RULES.values(), ids=BAD_RULES.keys())
def test_rules_that_make_no_sense_are_refused(given: dict[str, object], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Rules.from_dict(given)


def test_rules_come_back_from_their_plain_form() -> None:
    assert Rules.from_dict(RULES.to_dict()) == RULES
