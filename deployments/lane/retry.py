"""What becomes of the requests that were under way to a replica when it went away."""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Final

from deployments.core.refusals import Refusals
from deployments.lane.client import CallTarget, LaneCall
from deployments.lane.routes import Routes
from deployments.lane.suspects import Suspects
from deployments.lane.target import not_ready
from protocol.errors import Internal, ServingError, Unavailable

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS: Final = 6
_MAX_DEATHS: Final = 4


@dataclass(frozen=True, slots=True)
class Death:
    """What is known of the end of a replica.

    Not `unmeant`: it was told to go. `by_itself`: a segmentation fault, `os._exit` (`DeathMark`); nobody has killed it.
    `sole_lane`: no other process had a lane to it then. `alone` is the id of the call that had it to itself, 0 for one
    of another lane, None when none had (`LoneRequests`).
    """

    unmeant: bool = True
    by_itself: bool = False
    sole_lane: bool = False
    alone: int | None = None


class Retry:
    """Sends them to another replica, unless a response was already delivered or they were tried often enough.

    When a replica dies, one of its requests may be the cause, and would kill the next replica too. Only one that had
    the replica to itself fails: at once when the replica ended itself, the second time when somebody may have killed
    it. Others go again a few at a time, the likeliest of them alone (`Suspects`). So a request that kills takes one to
    three replicas along, four where it never has one to itself, and none pays for another or for an operator, unless it
    was in four deaths.
    A request within a sequence fails, as what the replica knew of the sequence is gone, unless the sequence starts with
    what a replica leaves unanswered that was told to go: all of that goes to another one, in its order.
    """

    def __init__(self, routes: Routes, refusals: Refusals) -> None:
        self._routes = routes
        self._refusals = refusals
        self._suspects: dict[tuple[str, int], Suspects] = {}
        self._expected: Collection[tuple[str, int]] | None = None

    def take(self, calls: list[LaneCall], death: Death) -> None:
        """Take the calls that a lost lane leaves unanswered."""
        alone = death.alone
        if alone is None and death.by_itself and death.sole_lane and len(calls) == 1:
            alone = calls[0].id
        again: dict[tuple[str, int], list[LaneCall]] = {}
        started: set[tuple[CallTarget, int | str]] = set()
        for call in calls:
            if call.cancelled:
                continue
            suspected = death.unmeant and alone in (None, call.id)
            if suspected:
                call.lone_deaths = (call.lone_deaths if call.deaths else 0) + (alone is not None)
                call.deaths += 1
            guilty = suspected and alone is not None and (death.by_itself or call.lone_deaths > 1)
            whole = not death.unmeant and _is_of_a_whole(call, started)
            error = None if whole else _refusal(call, unmeant=death.unmeant, guilty=guilty)
            if error is None and call.deaths:
                again.setdefault((call.target.model_name, call.target.version), []).append(call)
                continue
            error = error or self._send(call)
            if error is not None:
                call.target.refuse(call, error)
        for key, suspects in again.items():
            self._suspects_of(key).add([call for call in suspects if not call.cancelled])

    def waiting_count(self, name: str, version: int) -> int:
        """Return how many calls for a version wait here for a replica."""
        suspects = self._suspects.get((name, version))
        return 0 if suspects is None else suspects.waiting_count

    def replicas_changed(self) -> None:
        """Send the calls that wait for a replica which they shall have alone."""
        for suspects in tuple(self._suspects.values()):
            suspects.go_on()

    def expect(self, taken: Collection[tuple[str, int]]) -> None:
        """Take which versions will have replicas; until the first time, all may."""
        self._expected = taken
        self.replicas_changed()

    def clear(self, call: LaneCall) -> None:
        """Note that a call has had its time with a replica to itself."""
        suspects = self._suspects.get((call.target.model_name, call.target.version))
        if suspects is not None:
            suspects.cleared(call)

    def _suspects_of(self, key: tuple[str, int]) -> Suspects:
        self._suspects = {key: suspects for key, suspects in self._suspects.items() if suspects}
        return self._suspects.setdefault(key, Suspects(self._send, partial(self._is_expected, key)))

    def _is_expected(self, key: tuple[str, int]) -> bool:
        return self._expected is None or key in self._expected

    def _send(self, call: LaneCall, alone: bool = False) -> ServingError | None:
        target = call.target
        key = target.model_name, target.version
        found = self._routes.find(*key, call.interface) or self._routes.awaited(*key) or target
        if not found.serves(call.interface):
            return not_ready(*key)
        try:
            send = found.send_alone if alone else found.send if call.mark is None else found.start_anew
            error = send(call)
        except Exception:  # others wait to be sent behind it
            logger.exception("a request for model '%s' could not be sent again", target.model_name)
            return Internal("the request could not be sent again")
        if error is None:
            self._refusals.count_retry(*key)
        return error


def _is_of_a_whole(call: LaneCall, started: set[tuple[CallTarget, int | str]]) -> bool:
    """Whether a call is of a sequence that has delivered nothing; `started` are those of the calls before it."""
    if call.mark is None:
        return False
    key = call.target, call.mark.sequence_id
    if call.delivered or call.attempts >= _MAX_ATTEMPTS:
        started.discard(key)
    elif call.mark.starts:
        started.add(key)
    return key in started


def _refusal(call: LaneCall, *, unmeant: bool, guilty: bool) -> ServingError | None:
    """Return why a call is not sent again, None if it is."""
    name = call.target.model_name
    if call.mark is not None:
        return Unavailable(
            f"the replica of model '{name}' that held sequence {call.mark.sequence_id} is gone; start the sequence anew"
        )
    if guilty:
        return Internal(f"the replica of model '{name}' died while the request was the only one under way in it")
    if call.deaths >= _MAX_DEATHS:
        # Nobody knows whether they died of it; 503 would have its client send it once more.
        return Internal(f"the request was under way in {call.deaths} replicas of model '{name}' when they died")
    if call.delivered or call.attempts >= _MAX_ATTEMPTS:
        what = "that held the request died" if unmeant else "ended before it had answered the request"
        return Unavailable(f"the replica of model '{name}' {what}")
    return None
