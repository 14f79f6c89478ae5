"""The trace and logging extensions: settings that clients read and change, for the server or for one model."""

from starlette.requests import Request
from starlette.responses import Response

from app.http.endpoint import Endpoint, json_object, json_response, path_name
from app.service.client_settings import ClientSettings


class SettingsApi:
    """What clients may set."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings

    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoints by the names that the table of routes has for them."""
        return {
            "trace_settings": self.trace_settings,
            "update_trace_settings": self.update_trace_settings,
            "log_settings": self.log_settings,
            "update_log_settings": self.update_log_settings,
        }

    async def trace_settings(self, request: Request) -> Response:
        """Return the trace settings of the server or a model."""
        return json_response(self._settings.trace(path_name(request, "model")))

    async def update_trace_settings(self, request: Request) -> Response:
        """Change trace settings; return all of them."""
        changes = await json_object(request)
        return json_response(await self._settings.update_trace(changes, path_name(request, "model")))

    async def log_settings(self, request: Request) -> Response:
        """Return the log settings, or the levels of a model."""
        return json_response(self._settings.log(path_name(request, "model")))

    async def update_log_settings(self, request: Request) -> Response:
        """Change log settings, or levels of a model; return all of them."""
        changes = await json_object(request)
        return json_response(await self._settings.update_log(changes, path_name(request, "model")))
