from collections.abc import Callable
from typing import Any, cast

from deployments.lane.fleet import Fleet
from deployments.replica.group_watch import GroupWatch


class Loop:
    """Timers that the test lets run out."""

    def __init__(self) -> None:
        self.timers: list[Callable[[], None]] = []

    def call_later(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> "Timer":
        assert delay_s == 10.0
        timer = Timer(self, lambda: call(*arguments))
        self.timers.append(timer)
        return timer


class Timer:
    def __init__(self, loop: Loop, call: Callable[[], None]) -> None:
        self._loop = loop
        self._call = call

    def __call__(self) -> None:
        self._loop.timers.remove(self)
        self._call()

    def cancel(self) -> None:
        self._loop.timers.remove(self)


class Forgotten(list[str]):
    forget = list.append


def test_what_is_wanted_no_longer_is_watched_for_a_while_from_the_last_time_on() -> None:
    loop, fleet = Loop(), Forgotten()
    ended: list[str] = []
    watch = GroupWatch(cast(Fleet, fleet), cast(Any, loop), 10.0, lambda app, *_: lambda: ended.append(app))
    group = ("step", "v1")
    watch.want("steps", {group})
    watch.want("steps", set())
    watch.want("called", set())
    (first,) = loop.timers
    watch.want("steps", {group})
    assert not loop.timers, "it would be forgotten in the middle of the next while"
    watch.want("steps", set())
    (second,) = loop.timers
    assert second is not first and not ended
    second()
    assert ended == ["step"] and fleet == ["step#v1"]
    watch.want("steps", {group})
    watch.want("steps", set())
    loop.timers[0]()
    assert ended == ["step", "step"]
