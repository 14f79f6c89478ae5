"""The beginning of a frame that is taken when it is whole, whose bytes may come one by one."""

from app.http2 import frames
from app.http2.frames import Http2Error
from app.http2.limits import Http2Limits
from deployments.lane.frames import Buffer

_PRIORITY_AND_PADDING_BYTES = 6


class FrameRest:
    """What has arrived of a frame, with its head; what a read brings is copied, and what was there before is not.

    Args:
        data: what has arrived so far.
        awaited_bytes: how much of it there must be before it is looked at again.
    """

    __slots__ = ("_awaited_bytes", "_data")

    def __init__(self, data: Buffer, awaited_bytes: int) -> None:
        self._data = bytearray(data)
        self._awaited_bytes = awaited_bytes

    def __len__(self) -> int:
        """Return how much has arrived."""
        return len(self._data)

    def add(self, data: Buffer) -> Buffer:
        """Return all that has arrived, with `data`; nothing while it is not as much as is awaited."""
        self._data += data
        return memoryview(self._data) if len(self._data) >= self._awaited_bytes else b""


def check_size(kind: int, length: int, limits: Http2Limits) -> None:
    """Refuse to wait for a frame that could not be taken anyway.

    Raises:
        Http2Error: the frame is too large, for one of its kind.
    """
    if length <= limits.max_header_block_bytes + _PRIORITY_AND_PADDING_BYTES:
        return
    if kind in (frames.HEADERS, frames.CONTINUATION):
        raise Http2Error(frames.ENHANCE_YOUR_CALM, "header block too large")
    if kind != frames.DATA:
        raise Http2Error(frames.FRAME_SIZE_ERROR, "frame too large")
