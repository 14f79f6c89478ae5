"""Compressed messages: gzip and deflate (zlib), with a bound on what a request may become."""

import zlib
from collections.abc import Sequence
from typing import Final

from app.edge.unpacker import Unpacker
from app.grpc.status import INTERNAL, RESOURCE_EXHAUSTED, CallError
from deployments.lane.frames import Buffer
from protocol.body_memory import body_memory

_WINDOW_BITS: Final = {b"gzip": 31, b"deflate": 15}
ENCODINGS: Final = frozenset((b"identity", *_WINDOW_BITS))
# Messages up to this size, compressed and not, are decompressed in the loop.
_INLINE_BYTES: Final = 1 << 14
_STEP_BYTES: Final = 1 << 18
_FREE_BYTES: Final = 1 << 20
_LEVELS: Final = {"low": 1, "medium": 6, "high": 9}


class Inflation:
    """One request message being decompressed: a small one at once, any other in a thread.

    Up to 1 MiB may come of any input, however small; beyond that a message must not be more than `max_ratio` times as
    large as its compressed form.

    Raises:
        CallError: `encoding` is none.
    """

    __slots__ = ("_limit", "_parts", "_size", "_text", "_unpacker")

    def __init__(self, encoding: bytes, data: Buffer, max_bytes: int, max_ratio: int) -> None:
        bits = _WINDOW_BITS.get(encoding)
        if bits is None:
            raise CallError(INTERNAL, "a message is compressed, but grpc-encoding does not say how")
        self._unpacker = Unpacker(data, bits)
        self._size = len(data)
        allowed = max(_FREE_BYTES, max_ratio * len(data))
        self._limit = min(max_bytes, allowed)
        self._text = (
            f"Decompressed message larger than max ({max_bytes})"
            if max_bytes <= allowed
            else f"Decompressed message more than {max_ratio} times as large as its compressed form. "
            "Use --grpc-max-decompression-ratio to increase the limit."
        )
        self._parts: list[bytes] = []

    def begin(self) -> bytes | None:
        """Return a small message; None when the rest is for `complete` to do.

        Raises:
            CallError: the message is damaged or too large.
        """
        if self._size > _INLINE_BYTES:
            return None
        self._step(_INLINE_BYTES)
        if self._unpacker.more:
            return None
        self._check_end()
        return self._parts[0]

    def complete(self) -> Buffer:
        """Return the message; runs in a thread, and leaves the interpreter to others time and again.

        Raises:
            CallError: as `begin`.
        """
        while self._unpacker.more:
            self._step(_STEP_BYTES)
        self._check_end()
        message = body_memory(sum(map(len, self._parts)))
        at = 0
        for part in self._parts:
            message[at : at + len(part)] = part
            at += len(part)
        return message

    def _step(self, size: int) -> None:
        try:
            part = self._unpacker.next(size)
        except zlib.error:
            raise _damaged() from None
        self._parts.append(part)
        self._limit -= len(part)
        if self._limit < 0:
            raise CallError(RESOURCE_EXHAUSTED, self._text)

    def _check_end(self) -> None:
        if not self._unpacker.complete or self._unpacker.exceeded:
            raise _damaged()


def _damaged() -> CallError:
    return CallError(INTERNAL, "a compressed message cannot be decompressed")


def response_encoding(level: str, accepted: bytes) -> bytes:
    """Return how to compress responses to a client that accepts `accepted`; empty: not at all."""
    if level == "none":
        return b""
    names = [name.strip() for name in accepted.split(b",")]
    return next((encoding for encoding in (b"gzip", b"deflate") if encoding in names), b"")


def compress(encoding: bytes, level: str, parts: Sequence[Buffer]) -> bytes:
    """Return a compressed response message."""
    deflater = zlib.compressobj(_LEVELS[level], zlib.DEFLATED, _WINDOW_BITS[encoding])
    packed = [deflater.compress(part) for part in parts]
    packed.append(deflater.flush())
    return b"".join(packed)
