"""A request that has its replica to itself: what waits for it, for how long, and who hears of it."""

import heapq
from collections.abc import Callable
from typing import Any

import pytest

from deployments.lane.frames import Kind
from deployments.lane.lone_requests import LoneRequests


class Clock:
    """A loop whose time is what the next callback is due at."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._due, (self.now_s + delay_s, len(self._due), lambda: callback(*arguments)))

    def run(self, until_s: float = 60.0) -> None:
        while self._due and self._due[0][0] <= until_s:
            self.now_s, _, callback = heapq.heappop(self._due)
            callback()


class Lane:
    """What a replica sees of an ingress; `events` has when it was paused, told and resumed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.inflight: dict[int, Any] = {}
        self.events: list[tuple[float, str]] = []

    def _note(self, what: str) -> None:
        self.events.append((round(self._clock.now_s, 1), what))

    def pause(self) -> None:
        self._note("pause")

    def resume(self) -> None:
        self._note("resume")

    def send(self, kind: int, call: int, *, size: int, number: int) -> None:
        assert (kind, size) == (Kind.ALONE, 0)
        self._note(f"{call} begins" if number else f"{call} over")

    def flush(self) -> None:
        """Write nothing."""

    def start(self, call: int) -> Callable[[], None]:
        def begin() -> None:
            self._note(f"start {call}")
            self.inflight[call] = object()

        return begin


@pytest.fixture
def clock() -> Clock:
    return Clock()


def requests(clock: Clock, *lanes: Lane) -> LoneRequests:
    return LoneRequests(lanes, clock)  # type: ignore[arg-type]


def test_it_begins_when_all_others_are_answered_and_every_lane_hears_of_it(clock: Clock) -> None:
    own, other = Lane(clock), Lane(clock)
    other.inflight[7] = object()
    clock.call_later(0.1, other.inflight.clear)
    clock.call_later(0.2, own.inflight.clear)
    requests(clock, own, other).add(own, 3, own.start(3))
    clock.run()
    assert own.events == [(0.0, "pause"), (0.1, "3 begins"), (0.1, "start 3"), (0.2, "3 over"), (0.2, "resume")]
    assert other.events == [(0.0, "pause"), (0.1, "0 begins"), (0.2, "0 over"), (0.2, "resume")]


@pytest.mark.parametrize(("patient", "longest_s"), [(False, 0.25), (True, 10.0)])
def test_others_wait_no_longer_than_they_must(clock: Clock, patient: bool, longest_s: float) -> None:
    """First for one that never ends, which nobody is told of, and then for one that is alone and never ends."""
    own, other = Lane(clock), Lane(clock)
    other.inflight[7] = object()
    lone = requests(clock, own, other)
    lone.add(own, 3, own.start(3), patient=patient)
    clock.run()
    waited = [time_s for time_s, what in other.events if what == "resume"]
    assert waited == [pytest.approx(longest_s, abs=0.1)]
    assert [what for _, what in other.events] == ["pause", "0 over", "resume"]
    own.inflight.clear()
    other.inflight.clear()
    other.events.clear()
    began_s = clock.now_s
    lone.add(own, 4, own.start(4), patient=patient)
    clock.run(began_s + 60)
    assert [what for _, what in other.events] == ["pause", "0 begins", "0 over", "resume"]
    assert other.events[-1][0] - began_s == pytest.approx(longest_s, abs=0.1)


def test_they_take_turns_and_a_new_lane_waits_too(clock: Clock) -> None:
    own = Lane(clock)
    lanes = [own]
    lone = LoneRequests(lanes, clock)  # type: ignore[arg-type]
    for call in (1, 2):
        lone.add(own, call, own.start(call))
    new = Lane(clock)
    lanes.append(new)
    lone.lane_added(new)
    clock.call_later(0.1, own.inflight.clear)
    clock.call_later(0.2, own.inflight.clear)
    clock.run()
    starts = [(time_s, what) for time_s, what in own.events if what.startswith("start")]
    assert starts == [(0.0, "start 1"), (0.1, "start 2")]
    assert [what for _, what in new.events] == 2 * ["pause", "0 begins", "0 over", "resume"]


def test_a_lane_that_is_gone_leaves_its_turn_to_the_next(clock: Clock) -> None:
    own, gone = Lane(clock), Lane(clock)
    lanes = [own, gone]
    lone = LoneRequests(lanes, clock)  # type: ignore[arg-type]
    lone.add(gone, 1, gone.start(1))
    lone.add(own, 2, own.start(2))
    lanes.remove(gone)
    clock.call_later(0.1, own.inflight.clear)
    clock.run()
    assert "start 1" not in [what for _, what in gone.events]
    assert "start 2" in [what for _, what in own.events]


def test_lanes_go_on_when_one_cannot_be_started(clock: Clock) -> None:
    def broken() -> None:
        raise RuntimeError("it cannot be submitted")

    lane = Lane(clock)
    lone = requests(clock, lane)
    lone.add(lane, 3, broken)
    lone.add(lane, 4, lane.start(4))
    with pytest.raises(RuntimeError, match="it cannot be submitted"):
        clock.run()
    clock.call_later(0.1, lane.inflight.clear)
    clock.run()
    assert [what for _, what in lane.events] == [
        *("pause", "3 begins", "3 over", "resume"),
        *("pause", "4 begins", "start 4", "4 over", "resume"),
    ]
