"""Every HTTP route but inference, as a Starlette application over the service.

Paths, methods, codes and texts are Triton's.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.http.responses import error_body
from app.service import Service
from protocol.errors import InvalidArgument, NotFound, ServingError, Unavailable

Endpoint = Callable[[Request], Awaitable[Response]]


class Api:
    """The endpoints; each translates between HTTP and one call of the service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def application(self) -> Starlette:
        """Return the ASGI application."""
        get, post = ["GET"], ["POST"]
        model = "/v2/models/{model}"
        version = model + "/versions/{version:int}"
        routes = [
            Route("/v2", self.server_metadata, methods=get),
            Route("/v2/health/live", self.live, methods=get),
            Route("/v2/health/ready", self.ready, methods=get),
            Route("/-/healthz", self.live, methods=get),
            Route("/v2/models/stats", self.statistics, methods=get),
            Route("/v2/repository/index", self.index, methods=post),
            Route("/v2/repository/{repository}/index", self.index, methods=post),
            Route("/v2/repository/models/{model}/load", self.no_control, methods=post),
            Route("/v2/repository/models/{model}/unload", self.no_control, methods=post),
        ]
        for prefix in (model, version):
            routes += [
                Route(prefix, self.model_metadata, methods=get),
                Route(prefix + "/ready", self.model_ready, methods=get),
                Route(prefix + "/config", self.model_config, methods=get),
                Route(prefix + "/stats", self.statistics, methods=get),
                # Inference never reaches this application; the route is here for the methods that it refuses.
                Route(prefix + "/infer", self.never, methods=post),
            ]
        app = Starlette(
            routes=routes,
            exception_handlers={ServingError: _serving_error, HTTPException: _http_error},
        )
        app.router.redirect_slashes = False
        return app

    async def never(self, request: Request) -> Response:
        """Say so, should an inference request arrive here all the same."""
        raise NotFound("Not Found")

    async def live(self, request: Request) -> Response:
        """Live as soon as anything answers."""
        return Response(status_code=200)

    async def ready(self, request: Request) -> Response:
        """200 or 400, both without a body."""
        return Response(status_code=200 if self._service.server_ready() else 400)

    async def server_metadata(self, request: Request) -> Response:
        """Return the server's metadata."""
        return _json(self._service.server_metadata())

    async def model_metadata(self, request: Request) -> Response:
        """Return a model's metadata."""
        return _json(self._service.model_metadata(*_model(request)))

    async def model_ready(self, request: Request) -> Response:
        """200 when ready; Triton's text otherwise."""
        self._service.target(*_model(request))
        return Response(status_code=200)

    async def model_config(self, request: Request) -> Response:
        """Return a model's configuration."""
        return Response(self._service.model_config(*_model(request)), media_type="application/json")

    async def statistics(self, request: Request) -> Response:
        """Return the statistics of one model or all."""
        name, version = _model(request) if "model" in request.path_params else ("", -1)
        return _json({"model_stats": await self._service.statistics(name, version)})

    async def index(self, request: Request) -> Response:
        """Return the repository index."""
        body = await request.body()
        ready_only = False
        if body:
            try:
                options = orjson.loads(body)
            except orjson.JSONDecodeError as error:
                raise InvalidArgument("failed to parse the request JSON buffer") from error
            given = options.get("ready", False) if isinstance(options, dict) else None
            if not isinstance(given, bool):
                raise InvalidArgument("Invalid value for 'ready': expected a boolean")
            ready_only = given
        return _json(self._service.index(ready_only))

    async def no_control(self, request: Request) -> Response:
        """Refuse, as Triton does outside of explicit mode."""
        raise Unavailable("explicit model load / unload is not allowed if polling is enabled")


def _model(request: Request) -> tuple[str, int]:
    return request.path_params["model"], request.path_params.get("version", -1)


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


async def _serving_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServingError)
    return Response(error_body(error.message), status_code=error.http_status, media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return Response(
        error_body(error.detail), status_code=error.status_code, headers=error.headers, media_type="application/json"
    )
