"""The frames of a lane: a fixed header of 16 bytes, then the body.

    offset  size  field
         0     4  length       of the whole frame, header included
         4     4  call         the id of the call the frame belongs to, 0 for none
         8     1  kind         one of `Kind`
         9     1  flags        REQUEST: the wire form of the body; answers: `FINAL` on the last of a call
        10     2  number       REQUEST: index in the peer's model table; ERROR: gRPC code; CONTROL: topic
        12     4  json_length  of a v2 body's JSON header, `NO_JSON_LENGTH` when the whole body is JSON

All integers are little-endian.
"""

import asyncio
import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, cast

Buffer = bytes | memoryview

HEADER: Final = struct.Struct("<IIBBHI")
HEADER_SIZE: Final = HEADER.size
NO_JSON_LENGTH: Final = 0xFFFFFFFF
FINAL: Final = 1
MAX_FRAME_BYTES: Final = 0x7FFFFFFF
# Above this size a frame is gathered in a buffer of its own, below it reads are joined.
_LARGE_FRAME_BYTES: Final = 1 << 16
# Up to this many bytes, what one turn of the loop sends leaves in one joined write.
_JOIN_BYTES: Final = 1 << 17


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    """Client to server, first on every connection: the secret."""
    TABLE = 2
    """Server to client, after HELLO and whenever it changes: the models served, as JSON."""
    REQUEST = 3
    RESPONSE = 4
    ERROR = 5
    CANCEL = 6
    CONTROL = 7
    """Client to server, and back with the same call id: a question about statistics, as JSON."""
    REGIONS = 9
    """Client to server, on one node only: the shared-memory regions that clients registered, as JSON."""
    GOAWAY = 8
    """Server to client: finish what is under way, send nothing new."""


class LaneProtocolError(Exception):
    """The peer does not speak the lane's protocol."""


class FrameProtocol(asyncio.Protocol):
    """Cuts what arrives into frames and sends what is written in one loop turn together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._large: bytearray | None = None
        self._large_filled = 0
        self._out: list[Buffer] = []
        self._out_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it

    def data_received(self, data: bytes) -> None:
        """Hand every complete frame to `frame_received`."""
        try:
            self._feed(data)
        except LaneProtocolError:
            self.abort()

    def _feed(self, data: bytes) -> None:
        if self._large is not None:
            data = self._fill_large(data)
        elif self._rest:
            data = self._rest + data
        offset, end = 0, len(data)
        unpack = HEADER.unpack_from
        while end - offset >= HEADER_SIZE:
            length, call, kind, flags, number, json_length = unpack(data, offset)
            if not HEADER_SIZE <= length <= MAX_FRAME_BYTES:
                raise LaneProtocolError(f"frame of {length} bytes")
            if end - offset < length:
                if length > _LARGE_FRAME_BYTES:
                    self._start_large(length, data, offset)
                    return
                break
            self.frame_received(kind, flags, number, call, json_length, data[offset + HEADER_SIZE : offset + length])
            offset += length
        self._rest = data[offset:] if offset < end else b""

    def _start_large(self, length: int, data: bytes, offset: int) -> None:
        self._rest = b""
        self._large = bytearray(length)
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
        self.frame_received(kind, flags, number, call, json_length, memoryview(large)[HEADER_SIZE:])
        return data[taken:]

    def frame_received(self, kind: int, flags: int, number: int, call: int, json_length: int, body: Buffer) -> None:
        """Take one frame; `body` may be kept, it is never written to again."""
        raise NotImplementedError

    def send(
        self,
        kind: int,
        call: int,
        parts: Iterable[Buffer] = (),
        *,
        size: int,
        flags: int = 0,
        number: int = 0,
        json_length: int = NO_JSON_LENGTH,
    ) -> None:
        """Queue one frame whose body is `parts`, `size` bytes in all; it leaves at the end of this loop turn."""
        out = self._out
        if not out:
            self._loop.call_soon(self.flush)
        out.append(HEADER.pack(HEADER_SIZE + size, call, kind, flags, number, json_length))
        out.extend(parts)
        self._out_bytes += size

    def flush(self) -> None:
        """Write what is queued."""
        out, size = self._out, self._out_bytes
        if not out:
            return
        self._out, self._out_bytes = [], 0
        if self._transport is None or self._transport.is_closing():
            return
        if size <= _JOIN_BYTES:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection after what is queued has left."""
        self.flush()
        if self._transport is not None:
            self._transport.close()
