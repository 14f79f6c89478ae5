"""Which lane gets the next request."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from random import Random
from typing import Any

import pytest

from deployments.lane.choice import NEAR_ADVANTAGE, LaneChoice


@dataclass(eq=False)
class Lane:
    """A lane as the choice sees it: on this node or not, with calls under way."""

    name: str
    near: bool
    calls: dict[int, Any] = field(default_factory=dict)


def choice_of(lanes: str, chances: Iterator[float]) -> LaneChoice:
    """Return a choice between lanes such as "near:0 far:3": where each leads, and how many calls are under way."""
    choice = LaneChoice(lambda: next(chances))
    for number, word in enumerate(lanes.split()):
        place, _, count = word.partition(":")
        choice.add(Lane(word, place.startswith("near"), dict.fromkeys(range(int(count)))), number)  # type: ignore[arg-type]
    return choice


@pytest.mark.parametrize(
    ("lanes", "only_near", "chances", "expected"),
    [
        ("", False, [0.0], None),
        ("near:7", False, [0.0], "near:7"),
        ("far:7", False, [0.0], "far:7"),
        ("far:7", True, [0.0], None),
        ("near1:1 near2:0", False, [0.0, 0.0], "near2:0"),
        ("near1:1 near2:0", False, [0.9, 0.0], "near2:0"),
        ("near1:0 near2:0", False, [0.0, 0.0], "near1:0"),
        ("near1:0 near2:0", False, [0.9, 0.0], "near2:0"),
        ("near1:5 near2:3 near3:0", False, [0.0, 0.0], "near3:0"),
        ("near1:5 near2:3 near3:0", False, [0.0, 0.9], "near2:3"),
        ("near:9 far:0", False, [0.0], "near:9"),
        (f"near:{NEAR_ADVANTAGE - 1} far:0", False, [0.0], f"near:{NEAR_ADVANTAGE - 1}"),
        (f"near:{NEAR_ADVANTAGE} far:0", False, [0.0], "far:0"),
        (f"near:{NEAR_ADVANTAGE} far:0", True, [0.0], f"near:{NEAR_ADVANTAGE}"),
        (f"near:{NEAR_ADVANTAGE} far:1", False, [0.0], f"near:{NEAR_ADVANTAGE}"),
    ],
)
def test_prefers_this_node_and_then_the_less_loaded_of_two(
    lanes: str, only_near: bool, chances: list[float], expected: str | None
) -> None:
    chosen = choice_of(lanes, cycle(chances)).next(near=only_near)
    assert (chosen and chosen.name) == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_an_idle_cluster_spreads_its_requests(count: int) -> None:
    random = Random(1)
    choice = choice_of(" ".join(f"near{number}:0" for number in range(count)), iter(random.random, None))
    chosen = Counter(choice.next(near=False).name for _ in range(1000 * count))  # type: ignore[union-attr,attr-defined]
    assert len(chosen) == count
    assert min(chosen.values()) > 850


def test_a_lane_that_is_gone_is_not_chosen() -> None:
    choice = choice_of("near1:0 near2:9", cycle([0.0]))
    first, second = choice.lanes
    assert choice.remove(first)
    assert not choice.remove(first)
    assert choice.next(near=False) is second
    choice.add(second, 5)
    assert choice.near() == [second]
    assert choice.lanes == {second: 5}


@pytest.mark.parametrize(
    ("lanes", "expected"),
    [
        ("near_gpu:0 near_cpu:0", "near_gpu:0"),
        ("near_gpu:3 near_cpu:0", "near_gpu:3"),
        ("near_gpu:4 near_cpu:0", "near_cpu:0"),
        ("near_gpu:4 near_cpu:3", "near_cpu:3"),
        ("near_gpu:9 near_cpu:4", "near_gpu:9"),
        ("near_gpu1:9 near_gpu2:3 near_gpu3:9 near_cpu:0", "near_gpu2:3"),
        ("near_gpu:4 far_gpu:3 near_cpu:0", "far_gpu:3"),
        ("near_cpu:9", "near_cpu:9"),
    ],
)
def test_gpus_come_first_and_the_cpu_gets_what_they_have_no_idle_instance_for(lanes: str, expected: str) -> None:
    """Four requests keep the instances of each replica busy."""
    choice = LaneChoice(lambda: 0.0)
    made = []
    for number, word in enumerate(lanes.split()):
        place, _, count = word.partition(":")
        lane: Any = Lane(word, place.startswith("near"), dict.fromkeys(range(int(count))))
        choice.add(lane, number, capacity=4, spill="cpu" in place)
        made.append(lane)
    chosen: Any = choice.next(near=False)
    assert chosen.name == expected
    assert len(choice.near()) == sum(lane.near for lane in made)
    for lane in made:
        assert choice.remove(lane)
    assert choice.next(near=False) is None
