"""One request that is not inference, handed to an ASGI application, its answer written to the connection."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from app.http.exchange import ExchangeConnection
from app.http.head import Head
from app.http.responses import message_of, response_head
from deployments.lane.frames import Buffer
from protocol.errors import unexpected

logger = logging.getLogger(__name__)

_ERROR: Final = 400
# A body is copied in pieces of this size, one in a turn of the loop.
_PIECE_BYTES: Final = 1 << 20

Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


class AsgiExchange:
    """Runs the application once; the body was read before.

    The scope's `path` is the raw path: a segment is decoded by whoever uses it, after the route was found.
    """

    def __init__(
        self,
        app: AsgiApp,
        connection: ExchangeConnection,
        head: Head,
        body: Buffer,
        client: Any,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._app = app
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        self._connection = connection
        self._head = head
        self._body = body
        self._client = client
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._started = False
        self._chunked = False
        self._complete = False
        self._gone = asyncio.Event()
        self._read_bytes = -1

    def start(self) -> None:
        """Run the application in a task."""
        self._task = self._loop.create_task(self.run())

    def disconnect(self) -> None:
        """The client has gone."""
        self._gone.set()

    def _scope(self) -> dict[str, Any]:
        head = self._head
        raw_path, _, query = head.url.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.http_version,
            "method": head.method.decode("ascii"),
            "scheme": "http",
            "path": raw_path.decode("latin-1"),
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": head.headers,
            "client": self._client,
            "server": None,
            "state": {},
        }

    async def run(self) -> None:
        """Run the application to its end; a failure inside is a 500 without details."""
        failure = unexpected(None)
        try:
            await self._app(self._scope(), self._receive, self._send)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.exception("%s %s failed", self._head.method.decode(), self._head.url.decode("latin-1"))
            failure = unexpected(error)
        if not self._started:
            self._connection.on_error(failure)
        elif not self._complete:
            self._connection.close_after_answer()
            self._connection.finish()

    async def _receive(self) -> Message:
        begin = self._read_bytes
        if begin == len(self._body):
            await self._gone.wait()
            return {"type": "http.disconnect"}
        if begin < 0:
            begin = 0
        else:
            await asyncio.sleep(0)  # others' turn
        self._read_bytes = end = min(begin + _PIECE_BYTES, len(self._body))
        return {"type": "http.request", "body": bytes(self._body[begin:end]), "more_body": end < len(self._body)}

    async def _send(self, message: Message) -> None:
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = list(message.get("headers", ()))
            return
        body: bytes = message.get("body", b"")
        more = bool(message.get("more_body", False))
        out = b""
        if not self._started:
            self._started = True
            if self._status >= _ERROR and body:  # a server that is not ready says so without a word
                self._connection.note(self._status, message_of(body))
            sized = any(name.lower() == b"content-length" for name, _ in self._headers)
            bodiless = self._status in (204, 304)
            if not sized and not bodiless:
                self._chunked = more
                extra = (b"transfer-encoding", b"chunked") if more else (b"content-length", b"%d" % len(body))
                self._headers.append(extra)
            out = response_head(self._status, self._headers, self._connection.head_end)
        if self._head.method == b"HEAD":
            body = b""
        if self._chunked:
            out += b"%x\r\n%s\r\n" % (len(body), body) if body else b""
            out += b"" if more else b"0\r\n\r\n"
        else:
            out += body
        self._connection.write(out)
        if not more:
            self._complete = True
            self._connection.finish()
