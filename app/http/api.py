"""Every HTTP route but inference, as an ASGI application over the service; the table of routes says which there are.

Paths, methods, codes and texts are Triton's.
"""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.edge.restricted_api import LOGGING, MODEL_REPOSITORY, SHARED_MEMORY, TRACE
from app.http.console_api import ConsoleApi
from app.http.docs_api import DocsApi
from app.http.doctor_api import DoctorApi
from app.http.endpoint import Endpoint
from app.http.model_api import ModelApi
from app.http.repository_api import RepositoryApi
from app.http.responses import error_body
from app.http.routes import ROUTE_TABLE
from app.http.same_site import require_same_site
from app.http.settings_api import SettingsApi
from app.http.shared_memory_api import SharedMemoryApi
from app.http.traffic_api import TrafficApi
from app.service.service import Service
from protocol.errors import ServingError

_CHANGING: Final = frozenset({MODEL_REPOSITORY, SHARED_MEMORY, TRACE, LOGGING})


class Api:
    """Finds the route of a request, and answers; routes of the console are none without one."""

    def __init__(self, service: Service, console: ConsoleApi | None = None) -> None:
        self.endpoints: dict[str, Endpoint] = {
            **ModelApi(service).endpoints(),
            **RepositoryApi(service).endpoints(),
            **SettingsApi(service.settings).endpoints(),
            **SharedMemoryApi(service.shared_memory).endpoints(),
            **TrafficApi(service.traffic).endpoints(),
            **DocsApi(service.metadata).endpoints(),
            **DoctorApi(service).endpoints(),
            **({} if console is None else console.endpoints()),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            response = await self._respond(scope, receive)
        except ServingError as error:
            response = error_response(error.http_status, error.message)
        response.headers.setdefault("Cache-Control", "no-store")  # it is of this moment
        await response(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive) -> Response:
        match = ROUTE_TABLE.match(scope["path"])
        if match is None:
            return error_response(404, "Not Found")
        name = match.endpoints.get(scope["method"])
        if name is None:
            return error_response(405, "Method Not Allowed", {"Allow": ", ".join(sorted(match.endpoints))})
        scope["path_params"] = match.parameters
        request = Request(scope, receive)
        if scope["method"] == "POST" and match.category in _CHANGING:
            require_same_site(request.headers)
        endpoint = self.endpoints.get(name)
        return error_response(404, "Not Found") if endpoint is None else await endpoint(request)


def error_response(status: int, message: str, headers: dict[str, Any] | None = None) -> Response:
    """Return Triton's answer for an error."""
    if status == 503:
        headers = {**(headers or {}), "Retry-After": "1"}
    return Response(error_body(message), status_code=status, headers=headers, media_type="application/json")
