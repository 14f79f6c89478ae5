"""How the versions of a model share its requests."""

from starlette.requests import Request
from starlette.responses import Response

from app.http.endpoint import Endpoint, json_object, json_response, path_name
from app.service.traffic import TrafficService


class TrafficApi:
    """Shows and changes it; an extension of ours."""

    def __init__(self, traffic: TrafficService) -> None:
        self._traffic = traffic

    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoints by the names that the table of routes has for them."""
        return {"traffic": self.show, "change_traffic": self.change}

    async def show(self, request: Request) -> Response:
        """Return a model's traffic."""
        return json_response(self._traffic.show(path_name(request, "model")))

    async def change(self, request: Request) -> Response:
        """Change it, and return it as it is then."""
        name = path_name(request, "model")
        await self._traffic.change(name, await json_object(request))
        return json_response(self._traffic.show(name))
