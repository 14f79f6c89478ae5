"""The repository's index, loading and unloading."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from app.http.endpoint import Endpoint, empty_response, json_object, json_response, path_name
from app.http.load_body import parameters_of_body, read_load
from app.service.model_control import check_repository_name
from app.service.service import Service
from protocol.errors import InvalidArgument
from protocol.json_document import as_boolean, as_string


class RepositoryApi:
    """The model-repository extension."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoints by the names that the table of routes has for them."""
        return {
            "index": self.index,
            "load": self.load,
            "unload": self.unload,
            "register": self.register,
            "unregister": self.unregister,
            "registered": self.registered,
        }

    async def index(self, request: Request) -> Response:
        """Return the repository index; `{"ready": true}` leaves out what is not ready."""
        ready = (await json_object(request)).get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidArgument("Invalid value for 'ready': expected a boolean")
        await self._service.control.list_models()
        return json_response(self._service.metadata.index(ready))

    async def load(self, request: Request) -> Response:
        """Load a model."""
        check_repository_name(path_name(request, "repository"))
        pieces = [piece async for piece in request.stream()]
        asked = await asyncio.to_thread(read_load, path_name(request, "model"), pieces)
        await self._service.control.load(asked)
        return empty_response()

    async def unload(self, request: Request) -> Response:
        """Unload a model."""
        check_repository_name(path_name(request, "repository"))
        parameters = parameters_of_body(await json_object(request))
        dependents = as_boolean(parameters.get("unload_dependents", False), "unload_dependents")
        await self._service.control.unload(path_name(request, "model"), dependents)
        return empty_response()

    async def register(self, request: Request) -> Response:
        """Have the models of one more repository be there to be loaded."""
        given = await json_object(request)
        names = given.get("names", {})
        if not isinstance(names, dict):
            raise InvalidArgument("Unable to parse 'names': attempt to get members for non-object")
        repository = as_string(given.get("repository"), "repository")
        await self._service.control.register_repository(
            repository, {folder: as_string(name, "names") for folder, name in names.items()}
        )
        return empty_response()

    async def unregister(self, request: Request) -> Response:
        """Have a repository's models be there no more."""
        given = await json_object(request)
        await self._service.control.unregister_repository(as_string(given.get("repository"), "repository"))
        return empty_response()

    async def registered(self, request: Request) -> Response:
        """Return the repositories, each with the names that its models have in place of their folders'."""
        found = await self._service.control.registered_repositories()
        return json_response([{"repository": path, "names": dict(names)} for path, names in found.items()])
