"""What becomes of the requests that were under way to a replica when it went away."""

from typing import Final

from deployments.core.refusals import Refusals
from deployments.lane.client import LaneCall
from deployments.lane.routes import Routes
from deployments.lane.sequence_lanes import SequenceCall
from deployments.lane.suspects import Suspects
from protocol.errors import Internal, ServingError, Unavailable

_MAX_ATTEMPTS: Final = 3


class Retry:
    """Sends them to another replica, unless a response was already delivered or they were tried often enough.

    When a replica dies, one of its requests may be the cause, and would kill the next replica too. A request that was
    the only one in a replica that ended itself (`DeathMark`: a segmentation fault, `os._exit`), or that was in two
    that died of whatever, fails. What other processes had in a replica is not known: where these have lanes to it too,
    none was the only one. Others go again a few at a time (`Suspects`), so that no innocent request is in two deaths.
    One that was alone when somebody else killed the replica goes again once: it is hardly the cause.
    A request within a sequence fails: what the replica knew of the sequence is gone.
    """

    def __init__(self, routes: Routes, refusals: Refusals) -> None:
        self._routes = routes
        self._refusals = refusals
        self._suspects: dict[tuple[str, int], Suspects] = {}

    def take(self, calls: list[LaneCall], *, died: bool, alone: bool) -> None:
        """Take the calls that a lost lane leaves unanswered.

        Not `died` says that the replica was meant to go; `alone` that it ended itself, and that nobody else had a lane
        to it.
        """
        guilty = alone and len(calls) == 1
        again: dict[tuple[str, int], list[LaneCall]] = {}
        for call in calls:
            call.deaths += died
            error = _refusal(call, guilty)
            if error is None and died:
                again.setdefault((call.target.model_name, call.target.version), []).append(call)
                continue
            error = error or self._send(call)
            if error is not None:
                call.target.refuse(call, error)
        for key, suspects in again.items():
            self._suspects_of(key).add(suspects)

    def _suspects_of(self, key: tuple[str, int]) -> Suspects:
        self._suspects = {key: suspects for key, suspects in self._suspects.items() if suspects}
        return self._suspects.setdefault(key, Suspects(self._send))

    def _send(self, call: LaneCall) -> ServingError | None:
        target = call.target
        self._refusals.count_retry(target.model_name, target.version)
        return (self._routes.find(target.model_name, target.version) or target).send(call)


def _refusal(call: LaneCall, guilty: bool) -> ServingError | None:
    """Return why a call is not sent again, None if it is."""
    name = call.target.model_name
    if isinstance(call, SequenceCall):
        return Unavailable(
            f"the replica of model '{name}' that held sequence {call.mark.sequence_id} is gone; start the sequence anew"
        )
    if call.delivered or call.attempts >= _MAX_ATTEMPTS:
        return Unavailable(f"the replica of model '{name}' that held the request died")
    if call.deaths > 1:
        return Internal(f"two replicas of model '{name}' died while the request was under way in them")
    if guilty:
        return Internal(f"the replica of model '{name}' died while the request was the only one under way in it")
    return None
