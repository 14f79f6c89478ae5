"""Compressed messages: gzip and deflate (zlib), with a bound on what a request may become."""

import zlib
from typing import Final

from app.grpc.status import INTERNAL, RESOURCE_EXHAUSTED, CallError
from deployments.lane.frames import Buffer

_WINDOW_BITS: Final = {b"gzip": 31, b"deflate": 15}
ENCODINGS: Final = frozenset((b"identity", *_WINDOW_BITS))
_LEVELS: Final = {"low": 1, "medium": 6, "high": 9}


def decompress(encoding: bytes, data: Buffer, max_bytes: int) -> bytes:
    """Return a request message.

    Raises:
        CallError: RESOURCE_EXHAUSTED above `max_bytes`, INTERNAL when it is damaged.
    """
    bits = _WINDOW_BITS.get(encoding)
    if bits is None:
        raise CallError(INTERNAL, "a message is compressed, but grpc-encoding does not say how")
    inflater = zlib.decompressobj(bits)
    try:
        message = inflater.decompress(data, max_bytes + 1)
    except zlib.error:
        raise CallError(INTERNAL, "a compressed message cannot be decompressed") from None
    if len(message) > max_bytes:
        raise CallError(RESOURCE_EXHAUSTED, f"Decompressed message larger than max ({max_bytes})")
    if not inflater.eof or inflater.unused_data:
        raise CallError(INTERNAL, "a compressed message cannot be decompressed")
    return message


def response_encoding(level: str, accepted: bytes) -> bytes:
    """Return how to compress responses to a client that accepts `accepted`; empty: not at all."""
    if level == "none":
        return b""
    names = [name.strip() for name in accepted.split(b",")]
    return next((encoding for encoding in (b"gzip", b"deflate") if encoding in names), b"")


def compress(encoding: bytes, level: str, data: bytes) -> bytes:
    """Return a compressed response message."""
    deflater = zlib.compressobj(_LEVELS[level], zlib.DEFLATED, _WINDOW_BITS[encoding])
    return deflater.compress(data) + deflater.flush()
