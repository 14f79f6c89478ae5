"""A frame that comes a few bytes at a time costs no more than one that comes whole."""

import tracemalloc

import pytest

from app.http2 import frames
from app.http2.frames import DATA, END_HEADERS, END_STREAM, PADDED
from tests.app.http2.wire import Wire, bodies, data, goaway_code

_FRAME_BYTES = 1 << 17
_PADDED_BODY = bytes([5]) + b"x" * (_FRAME_BYTES - 6) + bytes(5)

DRIBBLED = {
    "padded DATA": frames.frame(DATA, PADDED, 1, _PADDED_BODY),
    "padded DATA for a stream that is over": frames.frame(DATA, PADDED, 3, _PADDED_BODY),
    "HEADERS": frames.frame(frames.HEADERS, END_HEADERS, 5, bytes(_FRAME_BYTES)),
    "SETTINGS": frames.frame(frames.SETTINGS, 0, 0, bytes(_FRAME_BYTES)),
    "an unknown frame": frames.frame(0x77, 0, 0, bytes(_FRAME_BYTES)),
}


@pytest.mark.parametrize("frame", DRIBBLED.values(), ids=DRIBBLED)
def test_a_byte_of_a_frame_costs_no_copy_of_what_came_before(frame: bytes) -> None:
    wire = Wire()
    wire.application.hold = True
    wire.send(wire.headers(1), wire.headers(3), frames.rst_stream(3, frames.CANCEL))
    tracemalloc.start()
    try:
        wire.send(frame[: _FRAME_BYTES // 2])
        held_bytes = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for at in range(_FRAME_BYTES // 2, _FRAME_BYTES // 2 + 200):
            wire.send(frame[at : at + 1])
        copied_bytes = tracemalloc.get_traced_memory()[1] - held_bytes
    finally:
        tracemalloc.stop()
    assert not wire.transport.closed
    assert copied_bytes < _FRAME_BYTES // 4


@pytest.mark.parametrize("size", [1, 8, 1000])
def test_padded_data_in_pieces_is_taken_once_it_is_whole(size: int) -> None:
    wire = Wire()
    wire.send(wire.headers(1))
    sent = frames.frame(DATA, PADDED | END_STREAM, 1, bytes([9]) + b"body" * 500 + bytes(9)) + wire.headers(3)[:5]
    got = [each for at in range(0, len(sent), size) for each in wire.send(sent[at : at + size])]
    assert bodies(got) == {1: b"body" * 500}


def test_padded_data_for_a_stream_that_was_never_opened_is_refused_by_its_head() -> None:
    wire = Wire()
    head = frames.frame(DATA, PADDED, 7, _PADDED_BODY)[: frames.FRAME_SIZE]
    assert goaway_code(wire.send(wire.headers(1), head)) == frames.PROTOCOL_ERROR


def test_a_frame_behind_one_that_came_in_pieces_is_taken_with_it() -> None:
    wire = Wire()
    first = frames.frame(DATA, PADDED | END_STREAM, 1, b"\x01first\0")
    wire.send(wire.headers(1) + first[:12])
    second = wire.headers(3) + data(3, b"second", end=True)
    assert bodies(wire.send(first[12:] + second)) == {1: b"first", 3: b"second"}
