"""What a peer's SETTINGS change (RFC 9113 §6.5.2)."""

from collections.abc import Sequence
from typing import Final

from app.http2 import frames
from app.http2.frames import Http2Error, parse_settings
from app.http2.sender import Sender, SendState

_DEFAULT_TABLE_BYTES: Final = 4096
_EMPTY_TABLE: Final = b"\x20"


def apply_settings(payload: bytes, sender: Sender, streams: Sequence[SendState]) -> bytes:
    """Apply a SETTINGS frame; returns what the next header block must begin with.

    This server's header blocks use no dynamic table, but a peer that makes it smaller than it was wants to hear so.

    Raises:
        Http2Error: a value is out of range.
    """
    prefix = b""
    for name, value in parse_settings(payload):
        if name == frames.SETTINGS_HEADER_TABLE_SIZE:
            if value < _DEFAULT_TABLE_BYTES:
                prefix = _EMPTY_TABLE
        elif name == frames.SETTINGS_ENABLE_PUSH:
            if value > 1:
                raise Http2Error(frames.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH is neither 0 nor 1")
        elif name == frames.SETTINGS_INITIAL_WINDOW_SIZE:
            if value > frames.MAX_WINDOW_BYTES or not sender.set_initial_window(value, streams):
                raise Http2Error(frames.FLOW_CONTROL_ERROR, "window overflow")
        elif name == frames.SETTINGS_MAX_FRAME_SIZE:
            if not frames.MIN_FRAME_BYTES <= value <= frames.MAX_FRAME_BYTES:
                raise Http2Error(frames.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is out of range")
            sender.max_frame_bytes = value
    return prefix
