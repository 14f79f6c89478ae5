"""One socket on which clients are accepted, from its beginning to its end."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from app.edge.listening_socket import let_no_more_in

_BACKLOG: Final = 2048
# How long the handshakes of those that were accepted last may take.
_LAST_S: Final = 1.0
# How long a client that the kernel is about to let in may take to say that it has heard so.
_BEGUN_S: Final = 0.01


class Listener:
    """Makes a connection with `connect` for each client, with TLS if there is a context for it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connect: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        handshake_timeout_s: float,
    ) -> None:
        self._loop = loop
        self._connect = connect
        self._tls = tls
        self._handshake_timeout_s = None if tls is None else handshake_timeout_s
        self._sock: socket.socket | None = None
        self._server: asyncio.Server | None = None

    async def open(self, sock: socket.socket) -> None:
        """Start accepting on a socket that is bound, of TCP or in the file system."""
        create: Callable[..., Awaitable[asyncio.Server]] = (
            self._loop.create_unix_server if sock.family == socket.AF_UNIX else self._loop.create_server
        )
        self._server = await create(
            self._connect,
            sock=sock,
            backlog=_BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=self._handshake_timeout_s,
        )
        self._sock = sock

    async def close(self) -> None:
        """Accept no client that comes from now on.

        Those that the kernel has let in already are taken: it would reset them, with what they have sent meanwhile. It
        lets in no more before the last look.
        """
        sock, self._sock = self._sock, None
        if sock is None or self._server is None:
            return
        if sock.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):  # one that comes after the last look is reset
                let_no_more_in(sock)
                await asyncio.sleep(_BEGUN_S)
        last: list[socket.socket] = []
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # there are no more, or no descriptors for them
            while len(last) < _BACKLOG:
                last.append(sock.accept()[0])
        self._server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                await asyncio.gather(*map(self._take, last), return_exceptions=True)

    async def _take(self, sock: socket.socket) -> None:
        await self._loop.connect_accepted_socket(
            self._connect, sock, ssl=self._tls, ssl_handshake_timeout=self._handshake_timeout_s
        )
