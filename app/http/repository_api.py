"""The repository's index, loading and unloading."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from app.http.endpoint import Endpoint, empty_response, json_object, json_response, path_name
from app.service.metadata import Metadata
from app.service.model_control import ModelControl
from protocol.errors import InvalidArgument
from protocol.json_document import as_boolean


class RepositoryApi:
    """The model-repository extension."""

    def __init__(self, metadata: Metadata, control: ModelControl) -> None:
        self._metadata = metadata
        self._control = control

    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoints by the names that the table of routes has for them."""
        return {"index": self.index, "load": self.load, "unload": self.unload}

    async def index(self, request: Request) -> Response:
        """Return the repository index; `{"ready": true}` leaves out what is not ready."""
        ready = (await json_object(request)).get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidArgument("Invalid value for 'ready': expected a boolean")
        return json_response(self._metadata.index(ready))

    async def load(self, request: Request) -> Response:
        """Load a model."""
        await self._control.load(path_name(request, "model"), await _parameters(request))
        return empty_response()

    async def unload(self, request: Request) -> Response:
        """Unload a model."""
        dependents = as_boolean((await _parameters(request)).get("unload_dependents", False), "unload_dependents")
        await self._control.unload(path_name(request, "model"), dependents)
        return empty_response()


async def _parameters(request: Request) -> dict[str, Any]:
    parameters = (await json_object(request)).get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidArgument("Unable to parse 'parameters': attempt to get members for non-object")
    return parameters
