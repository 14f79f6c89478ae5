"""A listener: TCP, with TLS if so set, and a Unix socket if there is one."""

import asyncio
import contextlib
import socket
import ssl
from typing import Final

from app.edge.listener import Listener
from app.edge.listening_socket import listening_socket
from app.edge.server_tls import ServerTls
from app.http.connection import HttpConnection
from app.http.context import HttpContext
from app.http.unix_socket import UnixSocket

_SWEEP_S: Final = 1.0


class HttpFront:
    """Serves one port, and a Unix socket if there is one."""

    def __init__(self, context: HttpContext, tls: ServerTls | None = None) -> None:
        self._context = context
        self._loop = context.loop
        self._tls = tls
        self._listeners: list[Listener] = []
        self._unix_socket: UnixSocket | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int) -> int:
        """Start accepting; returns the port, which differs from `port` when that is 0."""
        sock = listening_socket(host, port)
        try:
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
        limits = self._context.limits
        listener = Listener(self._loop, self._connect, context, limits.header_timeout_s)
        await listener.open(sock)
        self._listeners.append(listener)
        if self._sweeper is None:
            self._sweeper = self._loop.create_task(self._sweep())

    def _connect(self) -> HttpConnection:
        connection = HttpConnection(self._context)
        self._context.connections.expect(connection)
        return connection

    def routes_changed(self) -> None:
        """Resolve every target anew."""
        self._context.routes_changed()

    def keys_changed(self) -> None:
        """Let requests in by the API keys that there are now."""
        self._context.keys_changed()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            if self._tls is not None:
                self._tls.reload_if_changed()
            self._context.head_ends.refresh()
            self._context.connections.sweep(self._loop.time())

    async def close(self, timeout_s: float) -> None:
        """Accept nothing new, let every answer under way leave, close."""
        for listener in self._listeners:
            await listener.close()
        if self._unix_socket is not None:
            self._unix_socket.remove()
        await self._context.connections.drain(timeout_s)
        self._context.json_helper.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
