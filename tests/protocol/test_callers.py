"""Who waits for a request, as one process tells another."""

import pytest

from protocol.callers import MAX_CALLERS, caller, chain, may_be, read_callers


@pytest.mark.parametrize(
    "entries",
    [(caller("m", "1"), caller("n", "12")), ("m", caller("n", "1")), (caller("m", "1"), "n"), ("m", "n"), ("m",)],
)
def test_entries_travel_with_versions_and_as_earlier_processes_say_them_without(entries: tuple[str, ...]) -> None:
    assert read_callers("/".join(entries)) == entries
    # Which is how those read them: no name of theirs is lost.
    assert {entry.partition("/")[0] for entry in entries} <= set("/".join(entries).split("/"))


def test_more_than_there_may_be_are_told_from_those_that_may() -> None:
    for entry in ("m", caller("m", "1")):
        assert len(read_callers("/".join([entry] * MAX_CALLERS))) == MAX_CALLERS
        assert len(read_callers("/".join([entry] * 1000))) > MAX_CALLERS
        assert len(read_callers("/" * 100_000)) < 100


def test_another_version_is_told_where_both_are_known() -> None:
    entry = caller("m", "1")
    assert may_be(entry, "m", 1) and may_be(entry, "m", -1) and may_be("m", "m", 2)
    assert not may_be(entry, "m", 2) and not may_be(entry, "n", 1) and not may_be("m", "n", -1)
    assert chain((entry, "n"), "m") == "m -> n -> m"
