"""A chunked request body, put together under limits (RFC 9112 §7.1)."""

import re
from typing import Final

from app.http.head import BadRequest
from app.http.limits import HttpLimits

_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")
_MAX_SIZE_LINE_BYTES: Final = 256
_MAX_TRAILER_BYTES: Final = 8192
# Chunks that are taken at once, in some 2 ms.
_TURN_CHUNKS: Final = 1024


class ChunkedBody:
    """Takes bytes as they come; done once the last chunk and the trailers are read."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._buffer = b""
        self._body = bytearray()
        self._chunks = 0
        self._left = 0
        self._state = "size"
        self._trailer_bytes = 0
        self.unread = b""
        """What the last call has left for the next, since there were so many chunks."""

    @property
    def size(self) -> int:
        """How many bytes of the body have come."""
        return len(self._body)

    def feed(self, data: bytes) -> tuple[bytearray, bytes] | None:
        """Take more bytes; returns the body and what follows it once the body is complete.

        Raises:
            BadRequest: 400 for malformed chunks, too many chunks or too long a body.
        """
        buffer = self._buffer + data if self._buffer else data
        offset = 0
        last_chunk = self._chunks + _TURN_CHUNKS
        self.unread = b""
        while True:
            if self._chunks == last_chunk:
                self.unread, self._buffer = buffer[offset:], b""
                return None
            if self._state == "data":
                taken = min(self._left, len(buffer) - offset)
                self._body += memoryview(buffer)[offset : offset + taken]
                offset += taken
                self._left -= taken
                if self._left or len(buffer) - offset < 2:
                    break
                if buffer[offset : offset + 2] != b"\r\n":
                    raise BadRequest(400, "malformed chunk")
                offset += 2
                self._state = "size"
            end = buffer.find(b"\r\n", offset)
            if end < 0:
                if len(buffer) - offset > (_MAX_TRAILER_BYTES if self._state == "trailer" else _MAX_SIZE_LINE_BYTES):
                    raise BadRequest(400, "chunk header or trailer too long")
                break
            line = buffer[offset:end]
            offset = end + 2
            if self._state == "trailer":
                self._trailer_bytes += len(line)
                if self._trailer_bytes > _MAX_TRAILER_BYTES:
                    raise BadRequest(431, "trailers too long")
                if not line:
                    return self._body, buffer[offset:]
                if not _TRAILER.fullmatch(line):
                    raise BadRequest(400, "malformed chunk")
            else:
                self._start_chunk(line)
        self._buffer = buffer[offset:]
        return None

    def _start_chunk(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None or len(line) > _MAX_SIZE_LINE_BYTES:
            raise BadRequest(400, "malformed chunk")
        self._left = int(match[1], 16)
        if self._left == 0:
            self._state = "trailer"
            return
        self._chunks += 1
        if self._chunks > self._limits.max_chunk_count:
            raise BadRequest(
                400,
                f"Chunked request body exceeds maximum of {self._limits.max_chunk_count} non-empty chunks. "
                "Send fewer or larger HTTP chunks.",
            )
        if len(self._body) + self._left > self._limits.max_body_bytes:
            raise BadRequest(400, body_too_large(len(self._body) + self._left, self._limits.max_body_bytes))
        self._state = "data"


def body_too_large(size: int, limit: int, raw: bool = False) -> str:
    """Return Triton's text for a body over --http-max-input-size; a raw one has no JSON."""
    if raw:
        text = f"Raw input has a byte_size ({size} bytes) that exceeds the maximum allowed value of {limit} bytes. "
    else:
        text = f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. "
    return text + "Use --http-max-input-size to increase the limit."
