"""The frames of a lane: a fixed header of 16 bytes, then the body.

    offset  size  field
         0     4  length       of the whole frame, header included
         4     4  call         the id of the call the frame belongs to, 0 for none
         8     1  kind         one of `Kind`
         9     1  flags        requests: the wire form of the body, `COPY` besides for a shadow's; LONE_REQUEST:
                               `TRACED`, `PATIENT` besides;
                               answers: `FINAL` on the last of a call;
                               ERROR: `QUEUE_FULL` or `REFUSED` when the model has not taken the request, `GONE`
                               besides when it is here no more, `UNKNOWN_SEQUENCE` when its sequence is not here
                               any: `SHARED` when the body lies in the sender's arena and only its place is here
        10     2  number       HELLO: version of the protocol; requests: index in the peer's model table;
                               ERROR: gRPC code; ALONE: 1 when it begins, 0 when it is over
        12     4  json_length  of a v2 body's JSON header, `NO_JSON_LENGTH` when the whole body is JSON

All integers are little-endian.
"""

import asyncio
import contextlib
import logging
import socket
import struct
import threading
import weakref
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, cast

import numpy as np

from deployments.lane.arena import Arena, ArenaError, NoResourcesError, open_arena
from deployments.lane.heartbeat import Heartbeat
from deployments.lane.parent_descriptors import keep_from_children
from deployments.lane.traffic import LANE_TRAFFIC
from protocol.body_memory import body_memory
from protocol.errors import ServingError, unexpected

logger = logging.getLogger(__name__)

Buffer = bytes | memoryview

HEADER: Final = struct.Struct("<IIBBHI")
HEADER_SIZE: Final = HEADER.size
_OFFSET: Final = struct.Struct("<Q")
_RELEASE: Final = struct.Struct("<IIBBHIQ")
NO_JSON_LENGTH: Final = 0xFFFFFFFF
FINAL: Final = 1
QUEUE_FULL: Final = 2
REFUSED: Final = 4
GONE: Final = 8
UNKNOWN_SEQUENCE: Final = 0x10
COPY: Final = 0x10
"""A request of a sequence that goes on elsewhere, of which a shadow has a copy."""
TRACED: Final = 0x20
"""A lone request whose body follows the identity of its trace."""
PATIENT: Final = 0x40
"""A lone request that others may have to wait for longer."""
LISTENS: Final = 0x01
"""The client still hears the answer to a call that it gives up."""
SHARED: Final = 0x80
PLACE: Final = struct.Struct("<QQ")
"""Offset and size of a body in an arena."""
PROTOCOL_VERSION: Final = 9
"""Raised when frames change: an older replica may still run beside a newer ingress."""
MAX_FRAME_BYTES: Final = 0x7FFFFFFF
# From this size on a body goes through shared memory, where both sides are on one node.
_SHARE_BYTES: Final = 1 << 17
ARENA_RETRY_S: Final = 5.0
"""When an arena that could not be made or opened is tried again; until then bodies go by socket."""
# Above this size a frame is gathered in a buffer of its own, below it reads are joined.
_LARGE_FRAME_BYTES: Final = 1 << 16
# Up to this many bytes, what one turn of the loop sends leaves in one joined write.
_JOIN_BYTES: Final = 1 << 17


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    """Client to server, first on every connection: the secret. Its form is the same in every version."""
    TABLE = 2
    """Server to client, after HELLO and whenever it changes: the models served, as JSON."""
    REQUEST = 3
    RESPONSE = 4
    ERROR = 5
    """The end of a call; of call 0: why the server refuses the lane."""
    CANCEL = 6
    """Client to server: give a call up, with `LISTENS` to hear its answer still; of call 0: the sequence in the body,
    as JSON, of the model at `number` has started anew elsewhere."""
    ARENA = 12
    """The path of the sender's arena, once, before it is used."""
    ARENA_OPEN = 13
    """The receiver has mapped the sender's arena."""
    RELEASE = 14
    """A body in the receiver's arena is no longer looked at: its offset."""
    TRACED_REQUEST = 7
    """A request whose body follows the identity of its trace; see `trace_frames`."""
    GOAWAY = 8
    """Server to client: finish what is under way, send nothing new; `number` is how many seconds that may take."""
    TRACE = 9
    """Server to client: what is known of a call's trace, just before its last answer."""
    LONE_REQUEST = 10
    """A request that shall run with nothing else in the replica; see `lone_requests`."""
    ALONE = 11
    """Server to client: such a request begins, or is no longer alone: this call, or (0) one of another lane."""


_SHARED_KINDS: Final = frozenset((Kind.REQUEST, Kind.TRACED_REQUEST, Kind.LONE_REQUEST, Kind.RESPONSE))


class LaneProtocolError(Exception):
    """The peer does not speak the lane's protocol."""


class FrameProtocol(asyncio.Protocol):
    """Cuts what arrives into frames and sends what is written in one loop turn together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.max_frame_bytes = MAX_FRAME_BYTES
        self._heartbeat: Heartbeat | None = None
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._large: memoryview | None = None
        self._large_filled = 0
        self._skipped_bytes = 0
        """How much is to come of a frame for whose body there was no memory."""
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._may_share = False
        self._arena: Arena | None = None
        self._arena_open = False
        self._next_arena_s = 0.0
        self._peer_arena: memoryview | None = None
        self._releases: list[int] = []
        self._thread_id = threading.get_ident()
        self._lent: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.lent_bytes = 0
        self.shared_offset = -1
        """Where the body that `frame_received` is given lies in the peer's arena, -1 for one that came by socket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and watch over a peer that may be on another node."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it
        sock = transport.get_extra_info("socket")
        keep_from_children(sock.fileno())
        if sock.family != socket.AF_UNIX:
            self._heartbeat = Heartbeat(sock, self._loop, self.peer_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of what belonged to the connection."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._forget_arenas()

    def peer_silent(self) -> None:
        """Close the connection to a peer that is gone without a word."""
        logger.warning("a lane is closed: its other end is silent")
        self.abort()

    def data_received(self, data: bytes) -> None:
        """Hand every complete frame to `frame_received`."""
        try:
            self._feed(data)
        except (LaneProtocolError, ArenaError) as error:
            logger.warning("a lane is closed: %s", error)
            self.abort()

    def _feed(self, data: bytes) -> None:
        if self._large is not None:
            data = self._fill_large(data)
        elif self._skipped_bytes:
            skipped = min(self._skipped_bytes, len(data))
            self._skipped_bytes -= skipped
            data = data[skipped:]
        elif self._rest:
            data = self._rest + data
        offset, end = 0, len(data)
        unpack = HEADER.unpack_from
        while end - offset >= HEADER_SIZE:
            length, call, kind, flags, number, json_length = unpack(data, offset)
            if not HEADER_SIZE <= length <= self.max_frame_bytes:
                raise LaneProtocolError(f"frame of {length} bytes")
            if end - offset < length:
                if length > _LARGE_FRAME_BYTES:
                    self._start_large(length, data, offset)
                    return
                break
            body: Buffer = data[offset + HEADER_SIZE : offset + length]
            offset += length
            if kind >= Kind.ARENA:
                self._take_arena(kind, body)
                continue
            if flags & SHARED:
                body, flags = self._find(body), flags ^ SHARED
            else:
                self.shared_offset = -1
            self.frame_received(kind, flags, number, call, json_length, body)
        self._rest = data[offset:] if offset < end else b""

    def _start_large(self, length: int, data: bytes, offset: int) -> None:
        self._rest = b""
        try:
            self._large = body_memory(length)
        except MemoryError as error:
            _, call, kind, *_ = HEADER.unpack_from(data, offset)
            if kind not in _SHARED_KINDS:
                raise
            self._skipped_bytes = length - (len(data) - offset)
            self.body_lost(call, unexpected(error))
            return
        self._large_filled = len(data) - offset
        self._large[: self._large_filled] = memoryview(data)[offset:]

    def _fill_large(self, data: bytes) -> bytes:
        large = self._large
        assert large is not None
        taken = min(len(large) - self._large_filled, len(data))
        large[self._large_filled : self._large_filled + taken] = memoryview(data)[:taken]
        self._large_filled += taken
        if self._large_filled < len(large):
            return b""
        self._large = None
        _, call, kind, flags, number, json_length = HEADER.unpack_from(large, 0)
        self.shared_offset = -1
        self.frame_received(kind, flags, number, call, json_length, large[HEADER_SIZE:])
        return data[taken:]

    def frame_received(self, kind: int, flags: int, number: int, call: int, json_length: int, body: Buffer) -> None:
        """Take one frame; `body` may be kept, it is never written to again."""
        raise NotImplementedError

    def body_lost(self, call: int, error: ServingError) -> None:
        """End a call, for whose request or response there is no memory, with an error."""
        raise NotImplementedError

    def send(
        self,
        kind: int,
        call: int,
        parts: Sequence[Buffer] = (),
        *,
        size: int,
        flags: int = 0,
        number: int = 0,
        json_length: int = NO_JSON_LENGTH,
    ) -> None:
        """Queue one frame whose body is `parts`, `size` bytes in all; it leaves at the end of this loop turn."""
        if size >= _SHARE_BYTES and self._may_share and kind in _SHARED_KINDS:
            place = self._share(parts, size)
            if place:
                parts, size, flags = (place,), PLACE.size, flags | SHARED
        out = self._out
        if not out:
            self._loop.call_soon(self.flush)
        out.append(HEADER.pack(HEADER_SIZE + size, call, kind, flags, number, json_length))
        out.extend(parts)
        self._out_bytes += size

    def share(self) -> None:
        """Let large bodies go through shared memory; the peer is on this node."""
        self._may_share = True

    def _share(self, parts: Sequence[Buffer], size: int) -> bytes:
        """Put a body into the arena and return its place, empty when it has to go by socket."""
        if self._arena is None:
            if self._loop.time() < self._next_arena_s:
                return b""
            try:
                self._arena = Arena()
            except ArenaError as error:
                logger.info("large bodies go by socket: %s", error)
                self._next_arena_s = self._loop.time() + ARENA_RETRY_S
                return b""
            path = self._arena.path.encode()
            self.send(Kind.ARENA, 0, (path,), size=len(path))
        if not self._arena_open:
            return b""
        offset = self._arena.put(parts, size)
        if offset is None:
            return b""
        LANE_TRAFFIC.shared_bytes += size
        return PLACE.pack(offset, size)

    def room(self, size_bytes: int) -> memoryview | None:
        """Return shared memory for the tensor that a large body ends with, which is not copied then; None for none."""
        if size_bytes < _SHARE_BYTES or not self._arena_open or self._arena is None:
            return None
        return self._arena.room(size_bytes)

    def _find(self, place: Buffer) -> memoryview:
        """Return the body that lies at a place in the peer's arena."""
        if self._peer_arena is None or len(place) != PLACE.size:
            raise LaneProtocolError("a place in an arena that is not there")
        offset, size = PLACE.unpack(place)
        if offset + size > len(self._peer_arena):
            raise LaneProtocolError("a place outside of the arena")
        self.shared_offset = offset
        return self._peer_arena[offset : offset + size]

    def _take_arena(self, kind: int, body: Buffer) -> None:
        if not self._may_share:
            raise LaneProtocolError("shared memory was not agreed on")
        if kind == Kind.ARENA and self._peer_arena is None:
            self._open_peer_arena(bytes(body).decode("utf-8", "replace"))
        elif kind == Kind.ARENA_OPEN and self._arena is not None:
            self._arena.unlink()
            self._arena_open = True
        elif kind == Kind.RELEASE and self._arena is not None and len(body) == _OFFSET.size:
            self._arena.release(_OFFSET.unpack(body)[0])
        else:
            raise LaneProtocolError(f"unexpected frame of kind {kind}")

    def _open_peer_arena(self, path: str) -> None:
        """Open the arena of the peer, which uses it from then on; later where that is not possible now."""
        if not self._may_share:  # the connection is gone
            return
        try:
            self._peer_arena = open_arena(path)
        except NoResourcesError as error:
            logger.info("large bodies come by socket: %s", error)
            self._loop.call_later(ARENA_RETRY_S, self._open_peer_arena, path)
        else:
            self.send(Kind.ARENA_OPEN, 0, size=0)

    def release(self, offset: int) -> None:
        """Tell the peer that the body at `offset` of its arena is no longer looked at; other frames take it along."""
        if not self._releases and not self._out:
            self._loop.call_soon(self.flush)
        self._releases.append(offset)

    def lend(self, body: Buffer) -> memoryview:
        """Return the body in the peer's arena that is at hand as memory that is released when its last view is gone.

        Whoever gets it may keep it for as long as it likes, and let go of it on any thread.
        """
        owner, offset = np.frombuffer(body, np.uint8), self.shared_offset
        self._lent[offset] = (weakref.ref(owner, lambda _: self._let_go(offset)), owner.nbytes)
        self.lent_bytes += owner.nbytes
        return owner.data

    def _let_go(self, offset: int) -> None:
        if threading.get_ident() == self._thread_id:
            self._give_back(offset)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._give_back, offset)

    def _give_back(self, offset: int) -> None:
        entry = self._lent.pop(offset, None)
        if entry is not None:
            self.lent_bytes -= entry[1]
            self.release(offset)

    def _forget_arenas(self) -> None:
        """Let the memory go, once the last body in it is forgotten; the connection is gone."""
        self._lent.clear()
        if self._arena is not None:
            self._arena.unlink()
        self._arena = self._peer_arena = None
        self._may_share = False

    def flush(self) -> None:
        """Write what is queued."""
        out, size = self._out, self._out_bytes
        self._out, self._out_bytes = [], 0
        LANE_TRAFFIC.socket_bytes += size
        if self._releases:
            offsets, self._releases = self._releases, []
            head = (_RELEASE.size, 0, Kind.RELEASE, 0, 0, NO_JSON_LENGTH)
            out += [_RELEASE.pack(*head, offset) for offset in offsets]
        if not out:
            return
        if self._transport is None or self._transport.is_closing():
            return
        if size <= _JOIN_BYTES:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)

    def pause(self) -> None:
        """Read nothing until `resume`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection after what is queued has left."""
        self.flush()
        if self._transport is not None:
            self._transport.close()
