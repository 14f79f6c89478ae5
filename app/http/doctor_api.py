"""What is unsafe or broken on the nodes, for `eagleray doctor --url`."""

from starlette.requests import Request
from starlette.responses import Response

from app.http.endpoint import Endpoint, json_response
from app.service.service import Service


class DoctorApi:
    """Runs the checks when it is asked; an extension of ours."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoint by the name that the table of routes has for it."""
        return {"doctor": self.examine}

    async def examine(self, request: Request) -> Response:
        """Return what the checks find on each node."""
        found = await self._service.cluster.examine()
        return json_response({"findings": [{"node": each.node_id, **each.finding._asdict()} for each in found]})
