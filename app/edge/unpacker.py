"""Unpacks what a client has compressed, piece by piece."""

import zlib
from typing import Final

from deployments.lane.frames import Buffer

# zlib copies what it has not consumed of its input, with each piece: no more than this.
_SLICE_BYTES: Final = 1 << 18


class Unpacker:
    """One compressed body or message, in the format that zlib's `window_bits` say; the time it takes is linear."""

    __slots__ = ("_at", "_inflater", "_slice", "_view")

    def __init__(self, data: Buffer, window_bits: int) -> None:
        self._inflater = zlib.decompressobj(window_bits)
        self._view = memoryview(data)
        self._at = 0
        self._slice: Buffer = b""

    def next(self, max_bytes: int) -> bytes:
        """Return what comes next, up to `max_bytes` of it; it may be nothing though there is more.

        Raises:
            zlib.error: the data are damaged.
        """
        if not self._slice:
            self._slice = self._view[self._at : self._at + _SLICE_BYTES]
            self._at += len(self._slice)
        part = self._inflater.decompress(self._slice, max_bytes)
        self._slice = self._inflater.unconsumed_tail
        return part

    @property
    def more(self) -> bool:
        """Whether something is left to unpack."""
        return not self.complete and bool(self._slice or self._at < len(self._view))

    @property
    def complete(self) -> bool:
        """Whether the end has come, as the data say themselves."""
        return self._inflater.eof

    @property
    def exceeded(self) -> bool:
        """Whether, at the end, there is something behind it."""
        return bool(self._inflater.unused_data) or self._at < len(self._view)
