"""A connection's time: what must happen before when, how it ends, and how it gives way to another."""

import asyncio
from typing import Final

from app.edge.reset import reset_at_close
from app.http.context import HttpContext
from app.http.head import Head, Headers
from deployments.lane.frames import Buffer

# A client must take as much of an answer in each `write_timeout_s`.
_PROGRESS_BYTES: Final = 1 << 16
# How much is read of what nobody will answer: a client may be in the middle of a body that is somewhat too large.
_LINGER_BODIES: Final = 4
# How long a request that is on its way may take when the server begins to stop.
_NOTICE_S: Final = 1.0


class TimedConnection(asyncio.BufferedProtocol):
    """What a connection needs to end when it should; `HttpConnection` does the rest.

    It is idle when no request is under way (`_busy`) or arriving (`_head`, `_buffer`). `_deadline_s` is when a head or
    a body must have arrived, or 0.
    """

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_busy",
        "_closing",
        "_context",
        "_deadline_s",
        "_head",
        "_idle_since_s",
        "_keep_alive",
        "_last",
        "_linger_bytes",
        "_reading_paused",
        "_sent_bytes",
        "_stalls_at_s",
        "_transport",
        "_written_bytes",
    )

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._transport: asyncio.Transport | None = None
        self._buffer: bytes | bytearray = b""
        self._head: Head | None = None
        self._busy = False
        self._closing = False
        self._keep_alive = True
        self._last = False
        self._reading_paused = False
        self._linger_bytes = 0
        self._deadline_s = 0.0
        self._idle_since_s = 0.0
        self._written_bytes = 0
        self._sent_bytes = 0
        self._stalls_at_s = 0.0

    def write(self, data: Buffer) -> None:
        """Send bytes."""
        if self._transport is not None:
            self._written_bytes += len(data)
            self._transport.write(data)

    @property
    def unsent_bytes(self) -> int:
        """How much of what was written the client has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _read_no_further(self) -> None:
        self._reading_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def _read_on(self) -> None:
        self._reading_paused = False
        if self._transport is not None:
            self._transport.resume_reading()

    def _refuse(self, status: int, message: str, headers: Headers = ()) -> None:
        raise NotImplementedError

    def _linger(self) -> None:
        """Close the sending side, and read on for a while what the client is still sending.

        To close with input unread resets the connection, and the client loses the answer (RFC 9112 §9.6).
        """
        self._closing = True
        self._buffer = b""
        transport = self._transport
        if transport is None:
            return
        if not transport.can_write_eof():  # TLS says its own goodbye
            transport.close()
            return
        limits = self._context.limits
        self._linger_bytes = _LINGER_BODIES * limits.max_body_bytes
        self._deadline_s = self._context.loop.time() + limits.linger_timeout_s
        transport.write_eof()
        if self._reading_paused:
            self._read_on()

    def sweep(self, now_s: float) -> None:
        """End the connection if something has not happened in time."""
        transport = self._transport
        if transport is None:
            return
        limits = self._context.limits
        unsent = transport.get_write_buffer_size()
        if not unsent:
            self._stalls_at_s = 0.0
        elif not self._stalls_at_s or self._written_bytes - unsent >= self._sent_bytes + _PROGRESS_BYTES:
            self._sent_bytes = self._written_bytes - unsent
            self._stalls_at_s = now_s + limits.write_timeout_s
        elif now_s > self._stalls_at_s:
            self.abort()
            return
        if self._busy:
            return
        if self._deadline_s and now_s > self._deadline_s:
            if not (self._closing and unsent):  # the client is still reading its answer
                self._expire(transport)
        elif not unsent and not self._buffer and self._head is None and not self._closing:
            if not self._idle_since_s:
                self._idle_since_s = now_s
                self._context.connections.note_idle(self)
            elif now_s > self._idle_since_s + limits.idle_timeout_s:
                self._closing = True
                transport.close()

    def _expire(self, transport: asyncio.Transport) -> None:
        if self._closing:
            self.abort()
        elif self._head is None and not self._buffer:
            self._closing = True
            transport.close()
        else:
            self._refuse(408, "the request did not arrive in time")

    def give_way(self) -> bool:
        """Close in favour of a new connection; False when this one is no longer idle."""
        if self._transport is None:
            return True
        if not self._idle_since_s or self._closing or self._buffer or self._head is not None:
            return False
        self._closing = True
        self._transport.close()
        return True

    def abort(self) -> None:
        """Close at once, whatever was not sent.

        An answer that this cuts off ends with a reset: to a client of HTTP/1.0 the mere end would complete it.
        """
        self._closing = True
        transport = self._transport
        if transport is None:
            return
        if self._busy or transport.get_write_buffer_size():
            reset_at_close(transport)
        transport.abort()

    def shut(self) -> None:
        """Close when all that is under way has been answered, or never began.

        A client that keeps the connection may have sent its next request just now: a proxy does not send a POST again.
        """
        self._last = True
        self._keep_alive = False
        if not self._busy and self._head is None and not self._closing:
            self._deadline_s = self._context.loop.time() + _NOTICE_S
