"""One connection's life: the streams that are open on it, the deadlines of whatever is due, and its end."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol, cast

from app.edge.body_budget import TOO_MANY_BODIES, BodyBudget
from app.edge.open_connections import OpenConnections
from app.edge.slow_readers import SlowReaders, falls_behind
from app.edge.unacknowledged import unacknowledged_bytes
from app.http2 import frames
from app.http2.decoding_turns import DecodingTurns
from app.http2.frame_rest import FrameRest
from app.http2.frames import Http2Error
from app.http2.header_blocks import HeaderBlocks
from app.http2.hpack_decoder import HeaderList
from app.http2.limits import Http2Limits
from app.http2.pings import Pings
from app.http2.reservations import Reservations
from app.http2.reset_budget import ResetBudget
from app.http2.sender import Sender
from app.http2.stream import Stream
from deployments.lane.frames import Buffer

_CLOSE_TIMEOUT_S: Final = 5.0
# How long a peer may take to hear that its connection ends; and where there are no calls, and the process is to end.
_NOTICE_S: Final = 20.0
_IDLE_NOTICE_S: Final = 1.0
_NOTICE: Final = b"goodbye!"
# As many as may be open at a time.
_CUT_SHORT_KEPT: Final = 1024


class Head(Protocol):
    """What an application made of a list of headers."""

    def open(self, connection: "OpenConnection", stream_id: int) -> Stream | None:
        """Return a new stream for a request with these headers; None when they are malformed."""
        ...


class Application(Protocol):
    """Whose connections these are."""

    loop: asyncio.AbstractEventLoop
    http2: Http2Limits
    connections: "OpenConnections[OpenConnection]"
    bodies: BodyBudget
    """What requests that have come in part hold, on all connections."""
    slow_readers: SlowReaders
    decoding_turns: DecodingTurns
    read_buffer: memoryview
    """Where what arrives is read to, by all connections of the loop."""

    def read_head(self, headers: HeaderList, too_large: bool) -> Head:
        """Make a head of a list of headers; it may be opened any number of times."""
        ...

    def ignores(self, name: bytes) -> bool:
        """Whether a field of this name is well-formed, and changes nothing about a head."""
        ...

    @property
    def watched(self) -> bytes:
        """The name of a field that is ignored but for such values as `heeds` says; empty: there is none."""
        ...

    def heeds(self, value: bytes) -> bool:
        """Whether the watched field changes something about a head with this value."""
        ...

    def refused(self, error: Http2Error, transport: asyncio.BaseTransport) -> None:
        """Hear that a connection ends for what its peer did."""
        ...


class OpenConnection(asyncio.BufferedProtocol):
    """What a connection is, apart from the frames that arrive on it."""

    def __init__(self, application: Application) -> None:
        limits = application.http2
        now_s = application.loop.time()
        self.application = application
        self.limits = limits
        self.loop = application.loop
        self.blocks: HeaderBlocks[Head] = HeaderBlocks(application, limits)
        self.streams: dict[int, Stream] = {}
        self.max_streams = limits.max_early_streams
        """How many may be open, as far as the peer knows."""
        self.initial_credit_bytes = limits.initial_window_bytes
        self.reservations = Reservations(limits.max_buffered_bytes)
        self.incomplete: dict[Stream, float] = {}
        """Streams in the middle of a request, and when it must have arrived."""
        self.table_update = b""
        """What the next header block must begin with (RFC 7541 §4.2)."""
        self.sender: Sender = cast(Sender, None)
        self.closing = False
        self.extra_units = 0
        """What streams have added to the work of this turn beyond what the size of their frames shows."""
        self._transport: asyncio.Transport | None = None
        self._pings = Pings(limits, now_s)
        self._resets = ResetBudget(limits, now_s)
        self.cut_short: deque[int] = deque(maxlen=_CUT_SHORT_KEPT)
        """Streams that ended from here before the peer had ended them; what it sent before it knew is dropped."""
        self._held_bytes = 0
        self._idle_after = 0
        """The last stream, as it was when the connection was found idle."""
        self._rest: FrameRest | None = None
        """What has arrived of a frame that must be complete to be taken."""
        self._last_id = -1
        self._accepted_id = 0
        self._going = False
        self._lingers = False
        self._resting = False
        """Whether what has arrived waits for a later turn of the loop."""
        self._notice_s = 0.0
        """When the peer was told that the connection ends; 0 while it is not to end."""
        self._idle_notice_s = 0.0
        self._reason = ""
        self._opened_s = now_s
        self._deadline_s = now_s + limits.preface_timeout_s

    # -- the streams' side -----------------------------------------------------------------------------------------

    def grant(self, stream_id: int, size: int) -> None:
        """Let the peer send more on a stream."""
        self.sender.write(frames.window_update(stream_id, size))

    def send_data(self, stream: Stream, parts: Sequence[Buffer]) -> None:
        """Send DATA, now or when the windows allow; too much that waits ends the connection."""
        sender = self.sender
        before = sender.queued_bytes
        behind = falls_behind(before, self.limits.max_queued_bytes, self.loop.time() - sender.progress_s)
        sender.send_data(stream, parts)
        if behind:
            self.loop.call_soon(self.fail, Http2Error(frames.ENHANCE_YOUR_CALM, "the client does not read"))
        elif sender.queued_bytes > before:
            self.application.slow_readers.note(self, sender.queued_bytes - before)

    def close_stream(self, stream: Stream) -> None:
        """Forget a stream whose end was sent; reset it if the peer is still sending."""
        if self.streams.get(stream.stream_id) is not stream:
            return
        if not stream.peer_ended:
            self.cut_short.append(stream.stream_id)
            self.sender.write(frames.rst_stream(stream.stream_id, frames.NO_ERROR))
        self._drop(stream)

    def reset(self, stream: Stream, code: int) -> None:
        """End a stream because of what the peer did (RFC 9113 §5.4.2)."""
        if self.streams.get(stream.stream_id) is not stream:
            return
        self.cut_short.append(stream.stream_id)
        self.sender.write(frames.rst_stream(stream.stream_id, code))
        self._drop(stream)
        stream.aborted()
        if not self._resets.take(self.loop.time()):
            self.fail(Http2Error(frames.ENHANCE_YOUR_CALM, "too many streams reset"))

    def _drop(self, stream: Stream) -> None:
        self.streams.pop(stream.stream_id, None)
        if self.incomplete:
            self.incomplete.pop(stream, None)
        if self.reservations.active:
            self.reservations.give_back(stream)
        if stream.queued_bytes:
            self.sender.forget(stream)
        if self._going and not self.streams:
            self._end_sending()

    @property
    def transport(self) -> asyncio.BaseTransport | None:
        """What leads to the peer, None when that has gone."""
        return self._transport

    def pause_writing(self) -> None:
        """The client reads slowly: neither send more nor take more."""
        self.sender.pause()
        self.application.slow_readers.note(self, self.unsent_bytes)
        if self._transport is not None and not self.closing:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self.sender.resume()
        self._read_on()

    def _read_on(self) -> None:
        """Read, unless there is a reason not to; the client may have been slow again by now."""
        if not (self._resting or self.closing or self.sender.paused) and self._transport is not None:
            self._transport.resume_reading()

    # -- time and the end ------------------------------------------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        """Look at every deadline; called about once a second."""
        if self.closing:
            if self._deadline_s < now_s or (self._lingers and not self._untaken_bytes):
                self.abort()
            return
        limits = self.limits
        if self._notice_s and now_s - self._notice_s > (_NOTICE_S if self.streams else self._idle_notice_s):
            self._leave()
            if self.closing:
                return
        if self.application.connections.stopping:
            for each in tuple(self.streams.values()):
                each.server_stops()
        if self._deadline_s and self._deadline_s < now_s:
            self.fail(Http2Error(frames.NO_ERROR, "nothing whole arrived in time"))
            return
        for stream, deadline_s in tuple(self.incomplete.items()):
            if deadline_s < now_s:
                del self.incomplete[stream]
                stream.expired()
        self._note_held()
        self._note_idle()
        if self.sender.stalled:
            self._give_up_sending(now_s - limits.write_timeout_s)
            if self.closing:
                return
        action = self._pings.sweep(now_s, bool(self.streams))
        if action == "ping":
            self.sender.write(frames.frame(frames.PING, 0, 0, b"eagleray"))
        elif action == "dead":
            self.abort()
        if limits.max_connection_age_s:
            self._note_age(now_s - self._opened_s)

    def _note_age(self, age_s: float) -> None:
        """Have a connection that is too old end, and one that is older yet at once."""
        over_s = age_s - self.limits.max_connection_age_s
        if over_s > 0:
            self.shut("max_age", _NOTICE_S)
            grace_s = self.limits.max_connection_age_grace_s
            if grace_s and over_s > grace_s:
                self.abort()

    def _note_held(self) -> None:
        """Count what has come in part of frames and requests; when all hold too much, the largest are refused."""
        held_bytes = sum([stream.held_bytes for stream in self.incomplete])
        if self._rest is not None:
            held_bytes += len(self._rest)
        bodies = self.application.bodies
        bodies.give_back(self._held_bytes)
        self._held_bytes = 0
        while not bodies.take(held_bytes):
            if not self.incomplete:
                self.fail(Http2Error(frames.ENHANCE_YOUR_CALM, TOO_MANY_BODIES))
                return
            largest = max(self.incomplete, key=lambda stream: stream.held_bytes)
            held_bytes -= largest.held_bytes
            del self.incomplete[largest]
            largest.crowded_out()
        self._held_bytes = held_bytes

    def _note_idle(self) -> None:
        """Have the connection give way to new ones once nothing is under way, whatever comes that is no request."""
        if not self.streams and self._idle_after != self._last_id:
            self._idle_after = self._last_id
            self.application.connections.note_idle(self)

    def give_way(self) -> bool:
        """Close in favour of a new connection; False when this one is no longer idle. gRPC clients connect anew."""
        if self._transport is None:
            return True
        if self.streams or self._idle_after != self._last_id or self.closing or self._going:
            return False
        self._say_goaway("idle for longest of too many connections")
        self._close()
        return True

    def _give_up_sending(self, since_s: float) -> None:
        """Leave a client that has read nothing since; one that only takes nothing of some streams loses those."""
        if self.sender.blocked and self.sender.progress_s < since_s:
            self.abort()
            return
        for stream in tuple(self.streams.values()):
            if stream.queued_bytes and not stream.waiting and stream.progress_s < since_s:
                self.reset(stream, frames.CANCEL)

    def shut(self, reason: str = "server is shutting down", idle_notice_s: float = _IDLE_NOTICE_S) -> None:
        """Take no new streams once the peer knows, close when those under way have ended.

        A GOAWAY that names the last stream fails what the peer has begun before it comes. So the first names none, and
        the other follows when the peer has answered a PING behind it, or has had its time (RFC 9113 §6.8).

        Args:
            reason: what the peer is told.
            idle_notice_s: how long a peer without calls may take to answer.
        """
        if self.closing or self._going or self._notice_s or self._transport is None:
            return
        self._notice_s = self.loop.time()
        self._idle_notice_s = idle_notice_s
        self._reason = reason
        notice = frames.goaway(frames.MAX_STREAM_ID, frames.NO_ERROR, reason)
        self.sender.write(notice + frames.frame(frames.PING, 0, 0, _NOTICE))

    def ping_answered(self, payload: bytes) -> None:
        """Hear that the peer has taken a PING, and all that was sent before it."""
        if payload == _NOTICE and self._notice_s:
            # Later: gRPC's core library sends the answer ahead of the headers of calls that it had begun before.
            self.loop.call_soon(self._leave)

    def _leave(self) -> None:
        if self.closing or self._going or self._transport is None:
            return
        untaken = self._untaken_bytes
        self._say_goaway(self._reason)
        if not self.streams:
            if untaken:
                self._end_sending()
            else:
                self._close()

    def _say_goaway(self, reason: str) -> None:
        self._going = True
        self.sender.write(frames.goaway(self._accepted_id, frames.NO_ERROR, reason))

    @property
    def _untaken_bytes(self) -> int:
        """How much of what was written the peer's machine has not acknowledged."""
        transport = self._transport
        return 0 if transport is None else transport.get_write_buffer_size() + unacknowledged_bytes(transport)

    def _end_sending(self) -> None:
        """Close when the peer has taken its answers, or closes; what it sends until then is read and dropped.

        To close with input unread, or before more of it comes, resets the connection, and the peer loses what it has
        not taken. Every client sends something while it takes much: PINGs and WINDOW_UPDATEs.
        """
        transport = self._transport
        if transport is None or not transport.can_write_eof():  # TLS says its own goodbye
            self._close()
            return
        self.closing = self._lingers = True
        self._deadline_s = self.loop.time() + self.limits.write_timeout_s
        self.sender.flush()
        self.sender.ended = True
        transport.write_eof()
        transport.resume_reading()

    def fail(self, error: Http2Error) -> None:
        """End the connection: say why, give up what is under way."""
        if self.closing or self._transport is None:
            return
        self.application.refused(error, self._transport)
        self.sender.write(frames.goaway(self._accepted_id, error.code, error.message))
        self._close()
        self._abort_streams()

    @property
    def unsent_bytes(self) -> int:
        """How much of the answers waits for the peer."""
        written_bytes = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return written_bytes + self.sender.queued_bytes

    @property
    def waits_since_s(self) -> float:
        """When the peer last took something."""
        return self.sender.progress_s

    def give_up(self, reason: str) -> None:
        """End for lack of room for the answers that the peer does not take."""
        if self._transport is not None:
            self.application.refused(Http2Error(frames.ENHANCE_YOUR_CALM, reason), self._transport)
        self.loop.call_soon(self.abort)

    def _close(self) -> None:
        self.closing = True
        self._deadline_s = self.loop.time() + _CLOSE_TIMEOUT_S
        self.sender.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection without a word."""
        self.closing = True
        if self._transport is not None:
            self._transport.abort()

    def _abort_streams(self) -> None:
        streams = list(self.streams.values())
        self.streams.clear()
        self.incomplete.clear()
        self.reservations = Reservations(self.limits.max_buffered_bytes)
        self._rest = None
        for stream in streams:
            if stream.queued_bytes:
                self.sender.forget(stream)
            stream.aborted()
