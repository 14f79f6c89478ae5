from collections import Counter

import pytest

from deployments.core.version_choice import SequenceVersions, Turns, VersionChoice
from repository_loader.traffic import Traffic


@pytest.mark.parametrize("share", [0.01, 0.05, 0.25, 0.5])
@pytest.mark.parametrize("every", [1, 2, 3, 7, 10])
def test_each_share_is_kept_in_any_stretch_also_for_every_nth_request(share: float, every: int) -> None:
    turns = Turns(0.3)
    points = [turns.next() for _ in range(20_000)][::every]
    hits = [point < share for point in points]
    for start in range(0, len(hits) - 500, 250):
        assert sum(hits[start : start + 500]) == pytest.approx(500 * share, abs=8)


def test_versions_get_requests_by_their_weights() -> None:
    choice = VersionChoice(Traffic({1: 90, 2: 9, 3: 1}), 0.0)
    counts = Counter(choice.choose([1, 2, 3], 0, starts=False, ends=False) for _ in range(1000))
    assert counts == pytest.approx({1: 900, 2: 90, 3: 10}, abs=3)
    assert {choice.choose([2], 0, starts=False, ends=False) for _ in range(10)} == {2}
    assert choice.choose([4], 0, starts=False, ends=False) is None


def test_processes_agree_on_a_sequence_and_shares_of_sequences_are_kept() -> None:
    shares = {1: 0.8, 2: 0.2}
    one, other = SequenceVersions(), SequenceVersions()
    ids: list[int | str] = [*range(1, 1001), *(f"s{number}" for number in range(1000))]
    chosen = [one.choose(each, shares, shares, starts=True, ends=False) for each in ids]
    assert chosen == [other.choose(each, shares, shares, starts=False, ends=False) for each in ids]
    assert chosen.count(2) == pytest.approx(400, abs=60)


def test_version_0_is_one_like_others() -> None:
    shares, ready = {1: 0.5, 2: 0.5}, (0, 1, 2)
    one, other = SequenceVersions(), SequenceVersions()
    chosen = [one.choose(each, shares, ready, starts=True, ends=False) for each in range(1, 1001)]
    assert chosen == [other.choose(each, shares, ready, starts=False, ends=False) for each in range(1, 1001)]
    assert set(chosen) == {1, 2}


def test_a_sequence_stays_until_it_ends_or_starts_anew_or_its_version_goes() -> None:
    sequences = SequenceVersions()

    def choose(shares: dict[int, float], *, starts: bool = False, ends: bool = False) -> int:
        return sequences.choose(7, shares, (1, 2), starts=starts, ends=ends)

    assert choose({1: 1.0}, starts=True) == 1
    assert choose({2: 1.0}) == 1
    assert choose({2: 1.0}, ends=True) == 1
    assert choose({2: 1.0}) == 2, "it has ended"
    assert choose({1: 1.0}) == 2
    assert choose({1: 1.0}, starts=True) == 1, "it starts anew"
    assert sequences.choose(7, {2: 1.0}, (2,), starts=False, ends=False) == 2, "its version has gone"


def test_a_sequence_stays_whatever_becomes_of_the_traffic() -> None:
    choice = VersionChoice(Traffic({1: 1.0}))
    assert choice.choose((1, 2), "a", starts=True, ends=False) == 1
    choice.traffic = Traffic({2: 1.0})
    assert choice.choose((1, 2), "a", starts=False, ends=False) == 1
    choice.traffic = Traffic()
    assert choice.choose((1, 2), "a", starts=False, ends=True) == 1
    assert choice.choose((1, 2), "a", starts=False, ends=True, holds=lambda version, _: version == 1) == 1
    assert choice.choose((1, 2), "a", starts=True, ends=True, holds=lambda version, _: version == 1) == 2


def test_more_weight_moves_sequences_to_that_version_only() -> None:
    before, after = SequenceVersions(), SequenceVersions()
    for number in range(1, 500):
        was = before.choose(number, {1: 0.9, 2: 0.1}, (1, 2), starts=True, ends=True)
        now = after.choose(number, {1: 0.5, 2: 0.5}, (1, 2), starts=True, ends=True)
        assert was == 1 or now == 2
