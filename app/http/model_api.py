"""Health, metadata, configuration and statistics."""

from starlette.requests import Request
from starlette.responses import Response

from app.http.endpoint import Endpoint, empty_response, json_response, model_and_version
from app.service.service import Service
from protocol.errors import InvalidArgument, NotFound


class ModelApi:
    """The endpoints that say what is there and how it does."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoints by the names that the table of routes has for them."""
        return {
            "live": self.live,
            "ready": self.ready,
            "server_metadata": self.server_metadata,
            "model_metadata": self.model_metadata,
            "model_ready": self.model_ready,
            "model_config": self.model_config,
            "statistics": self.statistics,
            "inference": self.inference,
        }

    async def live(self, request: Request) -> Response:
        """Live as soon as anything answers."""
        return empty_response()

    async def ready(self, request: Request) -> Response:
        """200 or 400, both without a body."""
        return empty_response(200 if self._service.health.server_ready() else 400)

    async def server_metadata(self, request: Request) -> Response:
        """Return the server's metadata."""
        return json_response(self._service.metadata.server())

    async def model_metadata(self, request: Request) -> Response:
        """Return a model's metadata."""
        return json_response(self._service.metadata.model(*model_and_version(request)))

    async def model_ready(self, request: Request) -> Response:
        """200 when ready, 400 otherwise, also where there is no such model or version."""
        if not self._service.health.model_ready(*model_and_version(request)):
            raise InvalidArgument("Model version not ready")
        return empty_response()

    async def model_config(self, request: Request) -> Response:
        """Return a model's configuration."""
        return Response(self._service.metadata.config(*model_and_version(request)), media_type="application/json")

    async def statistics(self, request: Request) -> Response:
        """Return the statistics of one model or all."""
        return json_response({"model_stats": await self._service.statistics.of(*model_and_version(request))})

    async def inference(self, request: Request) -> Response:
        """Say so, should an inference request arrive here: connections take those themselves."""
        raise NotFound("Not Found")
