"""A gRPC listener and what its connections share: options, methods, the route to a model."""

import asyncio
import contextlib
from typing import Final

from app.edge.body_budget import BodyBudget
from app.edge.listener import Listener
from app.edge.listening_socket import listening_socket
from app.edge.open_connections import OpenConnections
from app.edge.server_tls import ServerTls
from app.edge.slow_readers import SlowReaders
from app.grpc.call import Call
from app.grpc.context import CallContext
from app.grpc.head import GrpcHead, ignored
from app.grpc.methods import Methods
from app.grpc.options import GrpcOptions
from app.http2.connection import Http2Connection
from app.http2.decoding_turns import DecodingTurns
from app.http2.frames import Http2Error
from app.http2.hpack_decoder import HeaderList
from app.http2.open_connection import OpenConnection
from app.service.refusal_log import RefusalLog
from app.service.service import Service
from app.trace.trace_parent import HEADER, read_parent
from deployments.lane.work_queue import WorkQueue

_SWEEP_S: Final = 1.0
_READ_BYTES: Final = 1 << 18


class GrpcFront:
    """Serves one port."""

    def __init__(
        self,
        service: Service,
        options: GrpcOptions,
        loop: asyncio.AbstractEventLoop,
        tls: ServerTls | None = None,
        refusals: RefusalLog | None = None,
        packing: WorkQueue | None = None,
    ) -> None:
        self.http2 = options.http2
        self.loop = loop
        self.methods = Methods(options.reflection)
        self.connections: OpenConnections[OpenConnection] = OpenConnections(options.http2.max_connections)
        self.bodies = BodyBudget(max(options.max_total_message_bytes, options.max_message_bytes))
        self.slow_readers = SlowReaders(max(options.max_total_message_bytes, options.max_message_bytes))
        self.decoding_turns = DecodingTurns(loop)
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self._context = CallContext(service, options, loop, refusals, packing)
        self._tls = tls
        self._listener: Listener | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int) -> int:
        """Start accepting; returns the port, which differs from `port` when that is 0."""
        sock = listening_socket(host, port)
        tls = None if self._tls is None else self._tls.context
        listener = Listener(self.loop, self._connect, tls, self.http2.preface_timeout_s)
        try:
            await listener.open(sock)
        except BaseException:
            sock.close()
            raise
        self._listener = listener
        self._sweeper = self.loop.create_task(self._sweep())
        return int(sock.getsockname()[1])

    def _connect(self) -> Http2Connection:
        connection = Http2Connection(self)
        self.connections.expect(connection)
        return connection

    def read_head(self, headers: HeaderList, too_large: bool) -> GrpcHead:
        """Understand a request's headers."""
        head = GrpcHead(self._context, self.methods.by_path, headers, too_large)
        head.call = self.methods.call(head)
        return head

    def ignores(self, name: bytes) -> bool:
        """Whether metadata of this name are of no consequence to any method."""
        return ignored(name, self._context.options)

    @property
    def watched(self) -> bytes:
        """The metadata that name what a client has begun, where requests are traced as part of it."""
        return HEADER if self._context.options.reads_parents else b""

    def heeds(self, value: bytes) -> bool:
        """Whether a client has begun something that is to be traced."""
        return read_parent(value) is not None

    def refused(self, error: Http2Error, transport: asyncio.BaseTransport) -> None:
        """Have the log tell of it."""
        self._context.refusals.note(f"HTTP/2 error {error.code}", error.message, transport)

    def routes_changed(self) -> None:
        """Ask the service anew where requests go."""
        self._context.routes.clear()

    def keys_changed(self) -> None:
        """Let calls in by the API keys that there are now, and end those that would not come in."""
        for connection in self.connections:
            connection.blocks.forget()
            for stream in tuple(connection.streams.values()):
                if isinstance(stream, Call):
                    stream.check_access()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            if self._tls is not None:
                self._tls.reload_if_changed()
            self.connections.sweep(self.loop.time())

    async def close(self, timeout_s: float) -> None:
        """Accept nothing new, let every call under way end, close."""
        if self._listener is not None:
            await self._listener.close()
        await self.connections.drain(timeout_s)
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        self._context.cancel_tasks()
