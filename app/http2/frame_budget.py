"""What a client may send besides requests: control frames, tiny DATA and WINDOW_UPDATEs."""

from typing import Final

from app.http2 import frames
from app.http2.frames import Http2Error
from app.http2.limits import Http2Limits
from app.http2.token_bucket import TokenBucket

# Each request pays for some small frames of DATA and WINDOW_UPDATEs, and so do the bytes that travel.
_FREE_FRAMES_PER_REQUEST: Final = 4
_BYTES_PER_DATA_BITS: Final = 4
_BYTES_PER_UPDATE_BITS: Final = 5


class FrameBudget:
    """The budget of one connection; times are those of the event loop.

    Every method raises Http2Error with ENHANCE_YOUR_CALM when the client has spent it.
    """

    __slots__ = ("_controls", "_small_data_count", "_update_count")

    def __init__(self, limits: Http2Limits, now_s: float) -> None:
        self._controls = TokenBucket(limits.max_control_frames_burst, limits.max_control_frames_per_s, now_s)
        self._small_data_count = 0
        self._update_count = 0

    def take_control(self, now_s: float, tokens: int = 1) -> None:
        """Pay for a control frame."""
        if not self._controls.take(now_s, tokens):
            raise Http2Error(frames.ENHANCE_YOUR_CALM, "too many control frames")

    def take_small_data(self, now_s: float, received_bytes: int, request_count: int) -> None:
        """Pay for a small frame of DATA, which what was received and requested so far may have paid for."""
        self._small_data_count += 1
        paid = (received_bytes >> _BYTES_PER_DATA_BITS) + request_count * _FREE_FRAMES_PER_REQUEST
        if self._small_data_count > paid:
            self.take_control(now_s)

    def take_update(self, now_s: float, sent_bytes: int, request_count: int) -> None:
        """Pay for a WINDOW_UPDATE, which what was sent and requested so far may have paid for."""
        self._update_count += 1
        paid = (sent_bytes >> _BYTES_PER_UPDATE_BITS) + request_count * _FREE_FRAMES_PER_REQUEST
        if self._update_count > paid:
            self.take_control(now_s)
