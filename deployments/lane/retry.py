"""What becomes of the requests that were under way to a replica when it died."""

from typing import Final

from deployments.lane.client import LaneCall
from deployments.lane.routes import Routes
from protocol.errors import ServingError, Unavailable

_MAX_ATTEMPTS: Final = 3


class Retry:
    """Sends them to another replica, unless a response was already delivered or it was tried often enough."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    def take(self, calls: list[LaneCall]) -> None:
        """Take the calls that a lost lane leaves unanswered."""
        for call in calls:
            error = self._send(call)
            if error is not None:
                call.sink.on_error(error)

    def _send(self, call: LaneCall) -> ServingError | None:
        target = call.target
        if call.delivered or call.attempts >= _MAX_ATTEMPTS:
            return Unavailable(f"the replica of model '{target.model_name}' that held the request died")
        return (self._routes.find(target.model_name, target.version) or target).send(call)
