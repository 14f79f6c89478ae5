"""Large messages get their memory in the order in which they have begun."""

from typing import Any, cast

from app.http2.reservations import Reservations
from app.http2.stream import Stream


class Waiting:
    """A stream that waits for memory."""

    def __init__(self, reservations: Reservations, size: int) -> None:
        self.has_it = False
        reservations.take(cast(Stream, self), size)

    def granted(self) -> None:
        self.has_it = True


def test_a_small_message_does_not_overtake_a_large_one_that_waits() -> None:
    reservations = Reservations(100)
    first, large, small = (Waiting(reservations, size) for size in (60, 80, 10))
    assert (first.has_it, large.has_it, small.has_it) == (True, False, False)
    reservations.give_back(cast(Any, first))
    assert large.has_it and small.has_it


def test_one_that_gives_up_waiting_lets_those_behind_it_go_on() -> None:
    reservations = Reservations(100)
    first, large, small = (Waiting(reservations, size) for size in (60, 80, 10))
    reservations.give_back(cast(Any, large))
    assert small.has_it and not large.has_it
    for each in (first, small):
        reservations.give_back(cast(Any, each))
    assert not reservations.active
