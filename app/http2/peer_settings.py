"""What a peer's SETTINGS change (RFC 9113 §6.5.2)."""

from collections.abc import Sequence
from typing import Final

from app.http2 import frames
from app.http2.frames import Http2Error
from app.http2.sender import Sender, SendState

_DEFAULT_TABLE_BYTES: Final = 4096
_EMPTY_TABLE: Final = b"\x20"


def apply_settings(values: Sequence[tuple[int, int]], sender: Sender, streams: Sequence[SendState]) -> bytes:
    """Apply the settings of one frame; returns what the next header block must begin with.

    This server's header blocks use no dynamic table, but a peer that makes it smaller than it was wants to hear so.

    Raises:
        Http2Error: a value is out of range.
    """
    prefix = b""
    windows: list[int] = []
    for name, value in values:
        if name == frames.SETTINGS_HEADER_TABLE_SIZE:
            if value < _DEFAULT_TABLE_BYTES:
                prefix = _EMPTY_TABLE
        elif name == frames.SETTINGS_ENABLE_PUSH:
            if value > 1:
                raise Http2Error(frames.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH is neither 0 nor 1")
        elif name == frames.SETTINGS_INITIAL_WINDOW_SIZE:
            windows.append(value)
        elif name == frames.SETTINGS_MAX_FRAME_SIZE:
            if not frames.MIN_FRAME_BYTES <= value <= frames.MAX_FRAME_BYTES:
                raise Http2Error(frames.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is out of range")
            sender.max_frame_bytes = value
    if windows:
        # Of several only the last lasts, but none may be too large.
        largest = max(windows) + max([stream.window_change for stream in streams], default=0)
        if max(windows) > frames.MAX_WINDOW_BYTES or largest > frames.MAX_WINDOW_BYTES:
            raise Http2Error(frames.FLOW_CONTROL_ERROR, "window overflow")
        sender.set_initial_window(windows[-1], streams)
    return prefix
