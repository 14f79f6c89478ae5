"""What leaves one connection: frames gathered over a turn of the loop, DATA as far as the peer's windows allow."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from app.http2.frames import (
    DATA,
    DEFAULT_WINDOW_BYTES,
    END_HEADERS,
    FRAME,
    HEADERS,
    MAX_WINDOW_BYTES,
    MIN_FRAME_BYTES,
)
from deployments.lane.frames import Buffer

# Up to this many bytes, what one turn of the loop sends leaves in one joined write.
_JOIN_BYTES: Final = 1 << 17
# So much DATA of queued answers leaves in a turn, then others get theirs.
_TURN_BYTES: Final = 1 << 20
_NOTHING: Final = memoryview(b"")


class SendState:
    """One stream's side of sending: what is left of its window, and what waits for it."""

    __slots__ = ("progress_s", "queue", "queued_bytes", "sent_end", "stream_id", "trailers", "waiting", "window_change")

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.window_change = 0
        """The stream's window less the peer's SETTINGS_INITIAL_WINDOW_SIZE."""
        self.queue: deque[Buffer] | None = None
        self.queued_bytes = 0
        self.progress_s = 0.0
        self.trailers: bytes | None = None
        """HEADERS frame that ends the stream once the queue is empty."""
        self.waiting = False
        """Whether the sender has it among those that may send."""
        self.sent_end = False

    def finished(self) -> None:
        """The end of the stream has left, after waiting in the queue."""
        raise NotImplementedError


class Sender:
    """Writes for one connection, to which it does not lead back: what waits is free as soon as the connection is."""

    __slots__ = (
        "_granted_bytes",
        "_loop",
        "_out",
        "_out_bytes",
        "_ready",
        "_transport",
        "corked",
        "data_sent",
        "ended",
        "initial_window",
        "max_frame_bytes",
        "paused",
        "progress_s",
        "queued_bytes",
        "window",
    )

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self.paused = False
        """Whether the socket's buffer is full."""
        self._granted_bytes = DEFAULT_WINDOW_BYTES
        self._ready: deque[SendState] = deque()
        self.window = DEFAULT_WINDOW_BYTES
        self.initial_window = DEFAULT_WINDOW_BYTES
        self.max_frame_bytes = MIN_FRAME_BYTES
        self.queued_bytes = 0
        self.progress_s = 0.0
        self.corked = False
        """Whether `flush` will be called without being scheduled."""
        self.ended = False
        """Whether nothing more is sent."""
        self.data_sent = False
        """Whether HEADERS or DATA have left since the last look; a client's pings are judged by it."""

    # -- frames that need no window --------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send whole frames; they leave at the end of this turn of the loop."""
        if not self._out and not self.corked:
            self._loop.call_soon(self.flush)
        self._out.append(data)
        self._out_bytes += len(data)

    def flush(self) -> None:
        """Write what has been gathered."""
        out, size = self._out, self._out_bytes
        if not out:
            return
        self._out, self._out_bytes = [], 0
        if self.ended or self._transport.is_closing():
            return
        if size <= _JOIN_BYTES:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)

    # -- answers ---------------------------------------------------------------------------------------------------

    def send_whole(self, state: SendState, before: bytes, parts: Sequence[Buffer], size: int, after: bytes) -> bool:
        """Send HEADERS, one DATA frame and trailers at once, if that is possible; `size` counts all of the DATA.

        `before` ends with the header of the DATA frame and may hold the first bytes of it.
        """
        if (
            size > self.window
            or size > self.max_frame_bytes
            or size > self.initial_window + state.window_change
            or state.queue
            or self.paused
        ):
            return False
        self.window -= size
        out = self._out
        if not out and not self.corked:
            self._loop.call_soon(self.flush)
        if size <= 4096 and len(parts) == 1:
            out.append(b"".join((before, parts[0], after)))
        else:
            out.append(before)
            out.extend(parts)
            out.append(after)
        self._out_bytes += size + 64
        self.data_sent = state.sent_end = True
        return True

    def send_data(self, state: SendState, parts: Sequence[Buffer]) -> None:
        """Send DATA, now or when the windows allow."""
        queue = state.queue
        if queue is None:
            queue = state.queue = deque()
        if not state.queued_bytes:
            state.progress_s = self._loop.time()
            if not self.queued_bytes:
                self.progress_s = state.progress_s
        for part in parts:
            if len(part):
                queue.append(part)
                state.queued_bytes += len(part)
                self.queued_bytes += len(part)
        self._offer(state)

    def end(self, state: SendState, trailers: bytes) -> None:
        """Send the HEADERS frame that ends the stream, after all of its DATA."""
        if state.queued_bytes:
            state.trailers = trailers
        else:
            self.write(trailers)
            self.data_sent = state.sent_end = True

    def forget(self, state: SendState) -> None:
        """Send nothing more of a stream."""
        self.queued_bytes -= state.queued_bytes
        state.queued_bytes = 0
        state.queue = state.trailers = None
        state.sent_end = True
        if state.waiting:
            state.waiting = False
            self._ready.remove(state)

    def _offer(self, state: SendState) -> None:
        if not state.waiting and state.queued_bytes and self.initial_window + state.window_change > 0:
            state.waiting = True
            self._ready.append(state)
        if self._ready:
            self._pump()

    def _pump(self) -> None:
        """Send DATA of the streams that may send, a frame of each in turn."""
        ready = self._ready
        while ready and self.window > 0 and not self.paused:
            if self._out_bytes >= _TURN_BYTES:
                self.flush()
                self._loop.call_soon(self._pump)
                return
            state = ready.popleft()
            size = min(self.window, self.initial_window + state.window_change, state.queued_bytes)
            if size <= 0:
                state.waiting = False
                continue
            # Alone, a stream sends all that it may; streams that share the connection take turns by the frame.
            self._send_frames(state, min(size, self.max_frame_bytes if ready else _TURN_BYTES))
            if state.queued_bytes:
                ready.append(state)
                continue
            state.waiting = False
            if state.trailers is not None:
                self.write(state.trailers)
                state.trailers = None
                state.sent_end = True
                state.finished()

    def _send_frames(self, state: SendState, size: int) -> None:
        """Send `size` bytes of what a stream has queued, in frames as large as the peer takes."""
        queue = state.queue
        assert queue is not None
        self._out_bytes += size
        self.window -= size
        self.queued_bytes -= size
        state.queued_bytes -= size
        state.window_change -= size
        self.progress_s = state.progress_s = self._loop.time()
        self.data_sent = True
        out, pack, stream_id, largest = self._out, FRAME.pack, state.stream_id, self.max_frame_bytes
        if not out and not self.corked:
            self._loop.call_soon(self.flush)
        whole = pack(largest >> 16, largest & 0xFFFF, DATA, 0, stream_id)
        view = memoryview(queue.popleft())
        while size:
            # Frames that lie in one part, most of those of a large body.
            fitting = min(size, len(view)) // largest * largest
            if fitting:
                for start in range(0, fitting, largest):
                    out += (whole, view[start : start + largest])
                view = view[fitting:]
                size -= fitting
                continue
            # One that ends the body, or holds the end of a part and the beginning of others.
            left = min(size, largest)
            size -= left
            out.append(pack(left >> 16, left & 0xFFFF, DATA, 0, stream_id))
            while left >= len(view):
                out.append(view)
                left -= len(view)
                view = memoryview(queue.popleft()) if queue else _NOTHING
                if not left:
                    break
            else:
                out.append(view[:left])
                view = view[left:]
        if view:
            queue.appendleft(view)

    # -- what the peer says about windows --------------------------------------------------------------------------

    def grow(self, size: int) -> bool:
        """Take a WINDOW_UPDATE of the connection; False when the window overflows."""
        self.window += size
        self._granted_bytes += size
        if self._ready:
            self._pump()
        return self.window <= MAX_WINDOW_BYTES

    def grow_stream(self, state: SendState, size: int) -> bool:
        """Take a WINDOW_UPDATE of a stream; False when its window overflows."""
        state.window_change += size
        if state.queued_bytes:
            self._offer(state)
        return self.initial_window + state.window_change <= MAX_WINDOW_BYTES

    def set_initial_window(self, size: int, states: Sequence[SendState]) -> None:
        """Take SETTINGS_INITIAL_WINDOW_SIZE, which moves the window of every stream."""
        self.initial_window = size
        for state in states:
            if state.queued_bytes:
                self._offer(state)

    def pause(self) -> None:
        """The socket's buffer is full."""
        self.paused = True
        self.progress_s = self._loop.time()

    def resume(self) -> None:
        """The socket's buffer has room."""
        self.paused = False
        self.progress_s = self._loop.time()
        if self._ready:
            self._pump()

    @property
    def sent_bytes(self) -> int:
        """How much DATA has left on this connection."""
        return self._granted_bytes - self.window

    @property
    def stalled(self) -> bool:
        """Whether something waits for the peer."""
        return self.paused or self.queued_bytes > 0

    @property
    def blocked(self) -> bool:
        """Whether everything waits: for the socket, or for the connection's window."""
        return self.paused or self.window <= 0


def headers_frame(stream_id: int, block: bytes, flags: int) -> bytes:
    """Return a HEADERS frame with END_HEADERS set; the block fits any peer's frames."""
    return FRAME.pack(0, len(block), HEADERS, flags | END_HEADERS, stream_id) + block
