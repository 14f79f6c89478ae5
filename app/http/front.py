"""A listener and what its connections share: limits, known heads, the route to a model, the ASGI application."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from app.http.asgi import AsgiApp
from app.http.head import Head
from app.http.limits import HttpLimits
from deployments.lane.sink import Target

if TYPE_CHECKING:
    from app.http.connection import HttpConnection

_MAX_HEADS: Final = 1024
_MAX_HEAD_BYTES: Final = 4096
_SWEEP_S: Final = 1.0


class HttpFront:
    """Serves one port.

    `resolve(model, version)` finds the target of an inference request (the model name as it stands in the URL) or
    raises a ServingError; its answers are kept until `generation` is raised.
    """

    def __init__(
        self,
        app: AsgiApp,
        resolve: Callable[[bytes, int], Target],
        limits: HttpLimits,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.app = app
        self.resolve = resolve
        self.limits = limits
        self.loop = loop
        self.connections: set[HttpConnection] = set()
        self.heads: dict[bytes, Head] = {}
        self.generation = 0
        self.stopping = False
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int) -> int:
        """Start accepting; returns the port, which differs from `port` when that is 0."""
        from app.http.connection import HttpConnection

        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # A new ingress listens before the old one on the same node has stopped.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind((host, port))
            self._server = await self.loop.create_server(lambda: HttpConnection(self), sock=sock, backlog=2048)
        except BaseException:
            sock.close()
            raise
        self._sweeper = self.loop.create_task(self._sweep())
        return int(sock.getsockname()[1])

    def remember(self, raw: bytes, head: Head) -> None:
        """Keep a parsed head for the next request with the same bytes."""
        if len(raw) <= _MAX_HEAD_BYTES:
            if len(self.heads) >= _MAX_HEADS:
                self.heads.clear()
            self.heads[raw] = head

    def routes_changed(self) -> None:
        """Resolve every target anew."""
        self.generation += 1

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = self.loop.time()
            for connection in tuple(self.connections):
                if connection.deadline and connection.deadline < now:
                    connection.expire()

    async def close(self, timeout_s: float) -> None:
        """Accept nothing new, let every answer under way leave, close."""
        self.stopping = True
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        for connection in tuple(self.connections):
            connection.shut()
        deadline = self.loop.time() + timeout_s
        while any(connection.busy for connection in self.connections) and self.loop.time() < deadline:
            await asyncio.sleep(0.02)
        for connection in tuple(self.connections):
            connection.shut()
