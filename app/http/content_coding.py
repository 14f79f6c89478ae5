"""Compression of bodies: `gzip`, and `deflate`, which HTTP means to be the zlib format (RFC 9110 §8.4.1)."""

import re
import zlib
from typing import Final

from app.edge.unpacker import Unpacker
from deployments.lane.frames import Buffer
from protocol.errors import InvalidArgument, Unsupported

IDENTITY: Final = b"identity"
GZIP: Final = b"gzip"
DEFLATE: Final = b"deflate"

_WINDOW_BITS: Final = {GZIP: 31, DEFLATE: 15}
# The lowest: tensors hardly get smaller by the others, which take several times as long.
_LEVEL: Final = 1
_STEP_BYTES: Final = 1 << 18
_FREE_BYTES: Final = 1 << 20
_QUALITY: Final = re.compile(rb"q=([01](?:\.\d{0,3})?)")


class UnsupportedCoding(Unsupported):
    """A body is compressed in a way that is not known here."""


def decompress(body: Buffer, coding: bytes, max_bytes: int, max_ratio: int) -> bytes:
    """Return what a body was before it was compressed.

    It is unpacked in steps, so that a bomb costs no more than the limit. Up to 1 MiB may come of any input, however
    small; beyond that it must not be more than `max_ratio` times its input.

    Raises:
        InvalidArgument: the body is damaged, has something behind its end, or becomes too large.
    """
    limit = min(max_bytes, max(_FREE_BYTES, max_ratio * len(body)))
    unpacker = Unpacker(body, _WINDOW_BITS[coding])
    parts: list[bytes] = []
    size = 0
    try:
        while unpacker.more:
            part = unpacker.next(_STEP_BYTES)
            size += len(part)
            if size > limit:
                raise _too_large(max_bytes, max_ratio, limit)
            parts.append(part)
    except zlib.error:
        raise InvalidArgument("failed to decompress the request body: invalid data") from None
    if not unpacker.complete:
        raise InvalidArgument("failed to decompress the request body: unexpected end of data")
    if unpacker.exceeded:
        raise InvalidArgument("failed to decompress the request body: unexpected data after its end")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(max_bytes: int, max_ratio: int, limit: int) -> InvalidArgument:
    if limit == max_bytes:
        return InvalidArgument(
            f"decompressed request exceeds the maximum allowed input size of {max_bytes} bytes. "
            "Use --http-max-input-size to increase the limit."
        )
    return InvalidArgument(
        f"decompressed request is more than {max_ratio} times as large as the compressed one. "
        "Use --http-max-decompression-ratio to increase the limit."
    )


def compress(parts: list[Buffer], coding: bytes) -> bytes:
    """Return a body compressed."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS[coding])
    packed = [packer.compress(part) for part in parts]
    packed.append(packer.flush())
    return b"".join(packed)


def choose(accept_encoding: bytes) -> bytes:
    """Return the coding for a response by `Accept-Encoding`: b"" for none, the first among those preferred equally.

    A coding is chosen only when it is named and not liked less than `identity`; `*` stands for no coding of ours.
    """
    best, best_quality = b"", 0.0
    identity_quality = 0.0
    for element in accept_encoding.lower().split(b","):
        name, _, parameters = element.partition(b";")
        quality = _quality(parameters.strip())
        coding = name.strip()
        if coding == IDENTITY:
            identity_quality = quality
        elif coding in _WINDOW_BITS and quality > best_quality:
            best, best_quality = coding, quality
    return best if best_quality >= identity_quality else b""


def _quality(parameter: bytes) -> float:
    if not parameter:
        return 1.0
    match = _QUALITY.fullmatch(parameter.replace(b" ", b""))
    return min(float(match[1]), 1.0) if match is not None else 0.0
