"""Frames of HTTP/2: their types, flags, settings and error codes, and the bytes of those that a server sends."""

import struct
from typing import Final

from deployments.lane.frames import Buffer

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# The 24 bits of the length as 8 + 16, type, flags, stream.
FRAME: Final = struct.Struct(">BHBBI")
FRAME_SIZE: Final = FRAME.size
_SETTING: Final = struct.Struct(">HI")

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

_SIZES: Final = {
    PRIORITY: ("PRIORITY", 5),
    RST_STREAM: ("RST_STREAM", 4),
    PING: ("PING", 8),
    WINDOW_UPDATE: ("WINDOW_UPDATE", 4),
}

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20

SETTINGS_HEADER_TABLE_SIZE: Final = 1
SETTINGS_ENABLE_PUSH: Final = 2
SETTINGS_MAX_CONCURRENT_STREAMS: Final = 3
SETTINGS_INITIAL_WINDOW_SIZE: Final = 4
SETTINGS_MAX_FRAME_SIZE: Final = 5
SETTINGS_MAX_HEADER_LIST_SIZE: Final = 6

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11
INADEQUATE_SECURITY: Final = 12

DEFAULT_WINDOW_BYTES: Final = 65_535
MAX_WINDOW_BYTES: Final = 2**31 - 1
MIN_FRAME_BYTES: Final = 16_384
MAX_FRAME_BYTES: Final = 2**24 - 1
MAX_STREAM_ID: Final = 2**31 - 1


class Http2Error(Exception):
    """The peer broke the protocol or a limit: the connection ends with this code (RFC 9113 §5.4.1)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one whole frame."""
    length = len(payload)
    return FRAME.pack(length >> 16, length & 0xFFFF, kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in values.items()))


def parse_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return the settings of a SETTINGS frame, in their order."""
    if len(payload) % _SETTING.size:
        raise Http2Error(FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
    return list(_SETTING.iter_unpack(payload))


def check_payload_size(kind: int, size: int) -> None:
    """Refuse frames of a kind that has one size and of another size than that."""
    name, right_size = _SIZES.get(kind, ("", size))
    if size != right_size:
        raise Http2Error(FRAME_SIZE_ERROR, f"{name} of a wrong size")


def window_update(stream_id: int, size: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream_id, size.to_bytes(4, "big"))


def rst_stream(stream_id: int, code: int) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def goaway(last_stream_id: int, code: int, message: str = "") -> bytes:
    """Return a GOAWAY frame; the message is for whoever debugs the client."""
    data = last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big") + message.encode("ascii", "replace")
    return frame(GOAWAY, 0, 0, data)


def unpadded(payload: bytes) -> bytes:
    """Return what a PADDED payload holds besides its padding (RFC 9113 §6.1)."""
    if not payload or payload[0] >= len(payload):
        raise Http2Error(PROTOCOL_ERROR, "more padding than payload")
    return payload[1 : len(payload) - payload[0]]


def header_block(flags: int, payload: bytes) -> bytes:
    """Return what a HEADERS frame holds besides padding and priority."""
    if flags & PADDED:
        payload = unpadded(payload)
    if flags & PRIORITISED:
        if len(payload) < 5:
            raise Http2Error(FRAME_SIZE_ERROR, "HEADERS too short")
        payload = payload[5:]
    return payload


def is_greeting(data: Buffer) -> bool:
    """Whether a client's first bytes are the preface and the head of a SETTINGS frame; False while some are missing.

    Raises:
        Http2Error: they are something else.
    """
    if data[: len(PREFACE)] != PREFACE[: len(data)]:
        raise Http2Error(PROTOCOL_ERROR, "this port speaks gRPC over HTTP/2")
    if len(data) < len(PREFACE) + FRAME_SIZE:
        return False
    if data[len(PREFACE) + 3] != SETTINGS:
        raise Http2Error(PROTOCOL_ERROR, "the first frame must be SETTINGS")
    return True
