"""A listener and what its connections share: limits, known heads, the route to a model, the ASGI application."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from app.edge.server_tls import ServerTls
from app.http.asgi import AsgiApp
from app.http.generate_mapping import GenerateMapping
from app.http.head import Head
from app.http.head_policy import HeadPolicy
from app.http.limits import HttpLimits
from app.http.unix_socket import UnixSocket
from deployments.lane.sink import Target

if TYPE_CHECKING:
    from app.http.connection import HttpConnection

_MAX_HEADS: Final = 1024
_MAX_HEAD_BYTES: Final = 4096
_SWEEP_S: Final = 1.0
# Of a long body, what comes with the head is copied once more than the rest.
_READ_BYTES: Final = 1 << 16


class Routes(Protocol):
    """Finds what a model's name in a URL means, for the version asked for (-1: none was); both raise ServingErrors."""

    def resolve(self, quoted_name: bytes, version: int) -> Target:
        """Return where inference requests go."""
        ...

    def resolve_generate(self, quoted_name: bytes, version: int) -> tuple[Target, list[dict[str, Any]]]:
        """Return where generate requests go, and the model's inputs as its metadata lists them."""
        ...


class HttpFront:
    """Serves one port, and a Unix socket if there is one.

    What `routes` answers is kept in the heads that it was asked for until `generation` is raised.
    """

    def __init__(
        self,
        app: AsgiApp,
        routes: Routes,
        limits: HttpLimits,
        loop: asyncio.AbstractEventLoop,
        policy: HeadPolicy | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self.app = app
        self.limits = limits
        self.loop = loop
        self.policy = policy or HeadPolicy()
        self.connections: set[HttpConnection] = set()
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self.heads: dict[bytes, Head] = {}
        self.generation = 0
        self.stopping = False
        self._routes = routes
        self._tls = tls
        self._servers: list[asyncio.Server] = []
        self._unix_socket: UnixSocket | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int) -> int:
        """Start accepting; returns the port, which differs from `port` when that is 0."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # A new ingress listens before the old one on the same node has stopped.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind((host, port))
            await self._accept(sock, None if self._tls is None else self._tls.context)
        except BaseException:
            sock.close()
            raise
        return int(sock.getsockname()[1])

    async def listen_unix(self, path: str) -> None:
        """Start accepting on a Unix socket that only this user can open; it is never encrypted."""
        self._unix_socket = UnixSocket(path)
        await self._accept(self._unix_socket.bind(), None)

    async def _accept(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        from app.http.connection import HttpConnection

        create: Callable[..., Awaitable[asyncio.Server]] = (
            self.loop.create_unix_server if sock.family == socket.AF_UNIX else self.loop.create_server
        )
        server = await create(lambda: HttpConnection(self), sock=sock, backlog=2048, ssl=context)
        self._servers.append(server)
        if self._sweeper is None:
            self._sweeper = self.loop.create_task(self._sweep())

    def target(self, head: Head) -> Target:
        """Return where an inference request goes."""
        if head.generation != self.generation:
            head.target = self._routes.resolve(head.model, head.version)
            head.generation = self.generation
        return head.target  # type: ignore[return-value]

    def generate_target(self, head: Head) -> Target:
        """Return where a request of the generate extension goes, and set the head's mapping."""
        if head.generation != self.generation:
            head.target, inputs = self._routes.resolve_generate(head.model, head.version)
            head.mapping = GenerateMapping(inputs)
            head.generation = self.generation
        return head.target  # type: ignore[return-value]

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
            if self._tls is not None:
                self._tls.reload_if_changed()
            now = self.loop.time()
            for connection in tuple(self.connections):
                if connection.deadline and connection.deadline < now:
                    connection.expire()

    async def close(self, timeout_s: float) -> None:
        """Accept nothing new, let every answer under way leave, close."""
        self.stopping = True
        for server in self._servers:
            server.close()
        if self._unix_socket is not None:
            self._unix_socket.remove()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        for connection in tuple(self.connections):
            connection.shut()
        deadline = self.loop.time() + timeout_s
        while any(connection.inflight_count for connection in self.connections) and self.loop.time() < deadline:
            await asyncio.sleep(0.02)
        for connection in tuple(self.connections):
            connection.shut()
