"""The metrics port: `GET /metrics`; like Triton's, it answers any other path with 200 and nothing."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.http.api import error_response
from deployments.lane.sink import Target
from protocol.errors import NotFound


class MetricsApp:
    """An ASGI application; `scrape` makes the text."""

    def __init__(self, scrape: Callable[[], Awaitable[bytes]]) -> None:
        self._scrape = scrape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["method"] != "GET":
            response = error_response(405, "Method Not Allowed", {"Allow": "GET"})
        elif scope["path"] == "/metrics":
            response = Response(await self._scrape(), media_type="text/plain; charset=utf-8")
        else:
            response = Response(status_code=200)
        await response(scope, receive, send)


class NoModels:
    """The routes of a port without models."""

    def resolve(self, quoted_name: bytes, version: int) -> Target:
        """Raise NotFound."""
        raise NotFound("Not Found")

    def resolve_generate(self, quoted_name: bytes, version: int) -> tuple[Target, list[dict[str, Any]], bool]:
        """Raise NotFound."""
        raise NotFound("Not Found")
