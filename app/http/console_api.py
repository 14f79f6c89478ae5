"""The console's page and its files, and what it asks for: states and counters, the plan, a model's details and log."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from app.console.assets import HEADERS, PAGE, Asset, read_assets
from app.console.live_state import LiveState
from app.console.model_details import ModelDetails
from app.http.endpoint import Endpoint, json_response, path_name
from app.service.service import Service
from protocol.errors import NotFound

_UNKEPT: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class ConsoleApi:
    """All of it on one port; `manages` says whether that serves the admin API."""

    def __init__(self, service: Service, state: LiveState, *, manages: bool) -> None:
        self._service = service
        self._state = state
        self._details = ModelDetails(service, manages=manages)
        self._assets = read_assets()

    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoints by the names that the table of routes has for them."""
        return {
            "console_page": self.page,
            "console_file": self.file,
            "console_state": self.state,
            "console_plan": self.plan,
            "console_model": self.model,
            "console_log": self.log,
        }

    async def page(self, request: Request) -> Response:
        """Return the page."""
        return _asset(request, self._assets[PAGE])

    async def file(self, request: Request) -> Response:
        """Return one of its files."""
        asset = self._assets.get(path_name(request, "file"))
        if asset is None:
            raise NotFound("Not Found")
        return _asset(request, asset)

    async def state(self, request: Request) -> Response:
        """Return the states and counters of all models."""
        document = await self._state.document()
        if _takes_gzip(request):
            headers = {**_UNKEPT, "Content-Encoding": "gzip"}
            return Response(document.compressed, media_type="application/json", headers=headers)
        return Response(document.content, media_type="application/json", headers=_UNKEPT)

    async def plan(self, request: Request) -> Response:
        """Return what was planned, and why, and what runs where."""
        return json_response(await self._service.cluster.plan())

    async def model(self, request: Request) -> Response:
        """Return the details of a model."""
        return json_response(self._details.document(path_name(request, "model")))

    async def log(self, request: Request) -> Response:
        """Return what a model has logged."""
        return json_response(await self._details.log(path_name(request, "model")))


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def _asset(request: Request, asset: Asset) -> Response:
    headers = {**HEADERS, "ETag": asset.tag, "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == asset.tag:
        return Response(status_code=304, headers=headers)
    if _takes_gzip(request):
        headers["Content-Encoding"] = "gzip"
        return Response(asset.compressed, headers=headers, media_type=asset.media_type)
    return Response(asset.content, headers=headers, media_type=asset.media_type)
