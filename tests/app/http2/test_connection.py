"""RFC 9113 as a server keeps it: framing, streams, and errors with their codes."""

import asyncio

import pytest

from app.http2 import frames
from app.http2.connection import Http2Connection
from app.http2.limits import Http2Limits
from tests.app.http2.wire import Transport, Wire, bodies, data, deliver, goaway_code, reset_codes, split

PING = frames.frame(frames.PING, 0, 0, b"12345678")


def test_says_its_settings_first_and_acknowledges_the_clients() -> None:
    wire = Wire()
    first, update, acknowledgement = wire.greeting
    assert first.kind == frames.SETTINGS
    assert dict(frames.parse_settings(first.payload)) == {
        frames.SETTINGS_MAX_CONCURRENT_STREAMS: 256,
        frames.SETTINGS_INITIAL_WINDOW_SIZE: 1 << 20,
        frames.SETTINGS_MAX_FRAME_SIZE: 1 << 20,
        frames.SETTINGS_MAX_HEADER_LIST_SIZE: 64 << 10,
    }
    assert (update.kind, update.stream_id) == (frames.WINDOW_UPDATE, 0)
    assert (acknowledgement.kind, acknowledgement.flags) == (frames.SETTINGS, frames.ACK)


def test_answers_a_request() -> None:
    wire = Wire()
    got = wire.send(wire.request(1))
    assert [frame.kind for frame in got] == [frames.HEADERS, frames.DATA, frames.HEADERS]
    assert bodies(got) == {1: b"body"}
    assert got[-1].flags & frames.END_STREAM
    assert not wire.connection.streams


@pytest.mark.parametrize("size", [1, 2, 7, 9, 10, 50])
def test_takes_frames_in_pieces_of_any_size(size: int) -> None:
    wire = Wire(greet=False)
    sent = frames.PREFACE + frames.settings({}) + wire.request(1, b"first") + wire.request(3, b"x" * 100)
    got = wire.send(*(sent[i : i + size] for i in range(0, len(sent), size)))
    assert bodies(got) == {1: b"first", 3: b"x" * 100}


def test_all_answers_of_one_turn_leave_together() -> None:
    wire = Wire()
    writes: list[bytes] = []
    wire.transport.write = writes.append  # type: ignore[method-assign, assignment]
    deliver(wire.connection, b"".join(wire.request(i) for i in (1, 3, 5)))
    wire.loop.turn()
    assert len(writes) == 1


def test_decodes_a_repeated_header_block_once() -> None:
    wire = Wire()
    for stream_id in (1, 3, 5, 7, 9):
        wire.send(wire.request(stream_id))
    # The first block fills the dynamic table, the second refers to it, and so do all others, with the same bytes.
    assert wire.application.reads == 1


def test_a_block_means_something_else_after_the_dynamic_table_has_changed() -> None:
    wire = Wire()
    table = b"\x83\x86\x44\x05/echo"  # POST, http, and :path with incremental indexing: entry 62
    indexed = b"\x83\x86\xbe"  # entry 62
    wire.send(frames.frame(frames.HEADERS, 4, 1, table))
    wire.send(frames.frame(frames.HEADERS, 4, 3, indexed))
    wire.send(frames.frame(frames.HEADERS, 4, 5, indexed))
    wire.send(frames.frame(frames.HEADERS, 4, 7, b"\x83\x86\x44\x06/other"))
    wire.send(frames.frame(frames.HEADERS, 4, 9, indexed))
    paths = [dict(head.headers)[b":path"] for head in wire.application.opened]
    assert paths == [b"/echo", b"/echo", b"/echo", b"/other", b"/other"]
    assert wire.application.reads == 2


def test_trailers_and_refused_blocks_change_the_table_too() -> None:
    wire = Wire(Http2Limits(max_early_streams=1))
    wire.application.hold = True
    wire.send(frames.frame(frames.HEADERS, 4, 1, b"\x83\x86\x44\x05/echo"))
    assert reset_codes(wire.send(frames.frame(frames.HEADERS, 4, 3, b"\x83\x86\x44\x06/other"))) == {
        3: frames.REFUSED_STREAM
    }
    wire.send(frames.frame(frames.HEADERS, 5, 1, b"\x44\x08/trailer"))
    wire.application.streams[0].answer(b"")
    wire.send(frames.frame(frames.HEADERS, 5, 5, b"\x83\x86\xbe"))
    assert dict(wire.application.opened[-1].headers)[b":path"] == b"/trailer"


def test_joins_continuation_and_ignores_padding_and_priority() -> None:
    wire = Wire()
    block = wire.encoder.encode([(":method", "POST"), (":scheme", "http"), (":path", "/echo")])
    padded = bytes([3]) + b"\0\0\0\0\x10" + block[:4] + bytes(3)
    got = wire.send(
        frames.frame(frames.HEADERS, frames.PADDED | frames.PRIORITISED, 1, padded)
        + frames.frame(frames.CONTINUATION, 0, 1, block[4:6])
        + frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, block[6:])
        + frames.frame(frames.PRIORITY, 0, 1, b"\0\0\0\0\x10")
        + frames.frame(frames.DATA, frames.PADDED | 1, 1, bytes([4]) + b"body" + bytes(4))
    )
    assert bodies(got) == {1: b"body"}


def test_ignores_frames_of_unknown_types_and_reserved_bits() -> None:
    wire = Wire()
    request = bytearray(wire.headers(1) + data(1, b"body", end=True))
    request[5] |= 0x80
    assert bodies(wire.send(frames.frame(0xF0, 0xFF, 77, b"what"), bytes(request))) == {1: b"body"}


def test_answers_a_ping() -> None:
    (pong,) = Wire().send(PING)
    assert (pong.kind, pong.flags, pong.payload) == (frames.PING, frames.ACK, b"12345678")


def test_resets_a_malformed_request_alone() -> None:
    wire = Wire()
    got = wire.send(wire.headers(1, ("x-malformed", "1")) + wire.request(3))
    assert reset_codes(got) == {1: frames.PROTOCOL_ERROR}
    assert bodies(got) == {3: b"body"}


def test_tells_the_stream_that_the_client_has_given_it_up() -> None:
    wire = Wire()
    wire.application.hold = True
    wire.send(wire.request(1), frames.rst_stream(1, frames.CANCEL))
    assert wire.application.streams[0].gone
    assert not wire.connection.streams
    assert wire.send(frames.window_update(1, 5), frames.rst_stream(1, 0)) == []
    assert reset_codes(wire.send(data(1, b"late"))) == {1: frames.STREAM_CLOSED}


def test_tells_every_stream_that_the_connection_is_gone() -> None:
    wire = Wire()
    wire.application.hold = True
    wire.send(wire.request(1), wire.headers(3))
    wire.connection.connection_lost(None)
    assert [stream.gone for stream in wire.application.streams] == [True, True]
    assert not wire.application.connections


def test_an_early_answer_asks_the_client_to_stop_sending() -> None:
    wire = Wire()
    wire.send(wire.headers(1))
    wire.application.streams[0].answer(b"no")
    assert reset_codes(wire.send()) == {1: frames.NO_ERROR}


BROKEN: dict[str, tuple[bytes, int]] = {
    "http/1.1": (b"POST / HTTP/1.1\r\n\r\n", frames.PROTOCOL_ERROR),
    "half a preface, then junk": (frames.PREFACE[:10] + b"junk", frames.PROTOCOL_ERROR),
    "no settings first": (frames.PREFACE + PING, frames.PROTOCOL_ERROR),
}


@pytest.mark.parametrize(("sent", "code"), BROKEN.values(), ids=BROKEN)
def test_refuses_what_is_not_http2(sent: bytes, code: int) -> None:
    wire = Wire(greet=False)
    assert goaway_code(wire.send(sent)) == code
    assert wire.transport.closed


_BLOCK = b"\x83\x86\x44\x05/echo"
CONNECTION_ERRORS: dict[str, tuple[bytes, int]] = {
    "DATA on stream 0": (data(0, b"x"), frames.PROTOCOL_ERROR),
    "DATA on an idle stream": (data(7, b"x"), frames.PROTOCOL_ERROR),
    "DATA on a stream of the server": (data(2, b"x"), frames.PROTOCOL_ERROR),
    "a piece of DATA on an idle stream": (data(7, b"x" * 100)[:50], frames.PROTOCOL_ERROR),
    "DATA with more padding than payload": (data(1, b"\x09abc", flags=frames.PADDED), frames.PROTOCOL_ERROR),
    "HEADERS on stream 0": (frames.frame(frames.HEADERS, 4, 0, _BLOCK), frames.PROTOCOL_ERROR),
    "HEADERS on an even stream": (frames.frame(frames.HEADERS, 4, 2, _BLOCK), frames.PROTOCOL_ERROR),
    "HEADERS with a lower id": (
        frames.frame(frames.HEADERS, 5, 9, _BLOCK) + frames.frame(frames.HEADERS, 5, 7, _BLOCK),
        frames.PROTOCOL_ERROR,
    ),
    "HEADERS too short for its priority": (
        frames.frame(frames.HEADERS, 4 | frames.PRIORITISED, 1, b"\0\0"),
        frames.FRAME_SIZE_ERROR,
    ),
    "HEADERS with bad padding": (frames.frame(frames.HEADERS, 4 | frames.PADDED, 1, b"\x05"), frames.PROTOCOL_ERROR),
    "empty padded HEADERS": (frames.frame(frames.HEADERS, 4 | frames.PADDED, 1, b""), frames.PROTOCOL_ERROR),
    "index 0": (frames.frame(frames.HEADERS, 4, 1, b"\x80"), frames.COMPRESSION_ERROR),
    "index outside the table": (frames.frame(frames.HEADERS, 4, 1, b"\xff\x50"), frames.COMPRESSION_ERROR),
    "a literal cut short": (frames.frame(frames.HEADERS, 4, 1, b"\x00\x7f"), frames.COMPRESSION_ERROR),
    "bad Huffman code": (frames.frame(frames.HEADERS, 4, 1, b"\x00\x82\xff\xff\x00"), frames.COMPRESSION_ERROR),
    "an integer without end": (frames.frame(frames.HEADERS, 4, 1, b"\xff" * 100), frames.COMPRESSION_ERROR),
    "a table too large": (frames.frame(frames.HEADERS, 4, 1, b"\x3f\xff\xff\x7f"), frames.COMPRESSION_ERROR),
    "CONTINUATION of nothing": (frames.frame(frames.CONTINUATION, 4, 1, b""), frames.PROTOCOL_ERROR),
    "another frame within a header block": (
        frames.frame(frames.HEADERS, 0, 1, _BLOCK) + PING,
        frames.PROTOCOL_ERROR,
    ),
    "CONTINUATION of another stream": (
        frames.frame(frames.HEADERS, 0, 1, _BLOCK) + frames.frame(frames.CONTINUATION, 4, 3, b""),
        frames.PROTOCOL_ERROR,
    ),
    "PRIORITY of a wrong size": (frames.frame(frames.PRIORITY, 0, 1, b"1234"), frames.FRAME_SIZE_ERROR),
    "RST_STREAM of a wrong size": (frames.frame(frames.RST_STREAM, 0, 1, b"123"), frames.FRAME_SIZE_ERROR),
    "RST_STREAM on an idle stream": (frames.rst_stream(5, 0), frames.PROTOCOL_ERROR),
    "RST_STREAM on stream 0": (frames.rst_stream(0, 0), frames.PROTOCOL_ERROR),
    "SETTINGS on a stream": (frames.frame(frames.SETTINGS, 0, 1), frames.PROTOCOL_ERROR),
    "SETTINGS of a wrong size": (frames.frame(frames.SETTINGS, 0, 0, b"12345"), frames.FRAME_SIZE_ERROR),
    "SETTINGS acknowledged with a payload": (frames.frame(frames.SETTINGS, 1, 0, b"123456"), frames.FRAME_SIZE_ERROR),
    "ENABLE_PUSH of 2": (frames.settings({2: 2}), frames.PROTOCOL_ERROR),
    "INITIAL_WINDOW_SIZE of 2^31": (frames.settings({4: 2**31}), frames.FLOW_CONTROL_ERROR),
    "MAX_FRAME_SIZE of 16383": (frames.settings({5: 16383}), frames.PROTOCOL_ERROR),
    "MAX_FRAME_SIZE of 2^24": (frames.settings({5: 2**24}), frames.PROTOCOL_ERROR),
    "PUSH_PROMISE": (frames.frame(frames.PUSH_PROMISE, 4, 1, b"\0\0\0\2" + _BLOCK), frames.PROTOCOL_ERROR),
    "PING on a stream": (frames.frame(frames.PING, 0, 1, b"12345678"), frames.PROTOCOL_ERROR),
    "PING of a wrong size": (frames.frame(frames.PING, 0, 0, b"1234567"), frames.FRAME_SIZE_ERROR),
    "GOAWAY on a stream": (frames.frame(frames.GOAWAY, 0, 1, bytes(8)), frames.PROTOCOL_ERROR),
    "WINDOW_UPDATE of a wrong size": (frames.frame(frames.WINDOW_UPDATE, 0, 0, b"123"), frames.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of nothing": (frames.window_update(0, 0), frames.PROTOCOL_ERROR),
    "WINDOW_UPDATE on an idle stream": (frames.window_update(5, 1), frames.PROTOCOL_ERROR),
    "the window overflows": (frames.window_update(0, 2**31 - 1), frames.FLOW_CONTROL_ERROR),
    "a frame too large": (b"\xff\xff\xff\0\0\0\0\0\1", frames.FRAME_SIZE_ERROR),
    "a control frame too large": (b"\x03\0\0\x04\0\0\0\0\0", frames.FRAME_SIZE_ERROR),
    "headers too large to wait for": (b"\x03\0\0\x01\x04\0\0\0\1", frames.ENHANCE_YOUR_CALM),
}


@pytest.mark.parametrize(("sent", "code"), CONNECTION_ERRORS.values(), ids=CONNECTION_ERRORS)
def test_ends_the_connection_with_the_code_for_the_error(sent: bytes, code: int) -> None:
    wire = Wire()
    wire.application.hold = True
    if sent[3] == frames.DATA and sent[4] & frames.PADDED:
        wire.send(wire.headers(1))
    assert goaway_code(wire.send(sent)) == code
    assert wire.transport.closed
    assert not wire.connection.streams


STREAM_ERRORS: dict[str, tuple[bytes, int]] = {
    "WINDOW_UPDATE of nothing": (frames.window_update(1, 0), frames.PROTOCOL_ERROR),
    "the stream's window overflows": (frames.window_update(1, 2**31 - 1), frames.FLOW_CONTROL_ERROR),
    "DATA after the end": (data(1, b"more"), frames.STREAM_CLOSED),
    "a piece of DATA after the end": (data(1, b"more" * 10)[:20], frames.STREAM_CLOSED),
    "trailers after the end": (frames.frame(frames.HEADERS, 5, 1, b"\x44\x01/"), frames.STREAM_CLOSED),
}


@pytest.mark.parametrize(("sent", "code"), STREAM_ERRORS.values(), ids=STREAM_ERRORS)
def test_resets_the_stream_with_the_code_for_the_error(sent: bytes, code: int) -> None:
    wire = Wire()
    wire.application.hold = True
    assert reset_codes(wire.send(wire.request(1), sent)) == {1: code}
    assert wire.application.streams[0].gone
    assert not wire.transport.closed


def test_trailers_that_do_not_end_the_stream_reset_it() -> None:
    wire = Wire()
    got = wire.send(wire.headers(1), frames.frame(frames.HEADERS, 4, 1, b"\x44\x01/"))
    assert reset_codes(got) == {1: frames.PROTOCOL_ERROR}


def test_tells_a_client_without_header_table_that_none_is_used() -> None:
    wire = Wire(settings={frames.SETTINGS_HEADER_TABLE_SIZE: 0})
    assert wire.connection.table_update == b"\x20"


def test_finishes_what_is_under_way_when_it_shuts_down() -> None:
    wire = Wire()
    wire.application.hold = True
    wire.send(wire.request(1))
    wire.connection.shut()
    notice, ping = wire.send(wire.request(3))
    assert (notice.kind, notice.payload[:4]) == (frames.GOAWAY, b"\x7f\xff\xff\xff")
    assert len(wire.application.streams) == 2, "what the client began before it knew is answered"
    (goaway,) = wire.send(frames.frame(frames.PING, frames.ACK, 0, ping.payload) + wire.request(5))
    assert (goaway.kind, goaway.payload[:4]) == (frames.GOAWAY, b"\0\0\0\5")
    wire.send(wire.request(7))
    assert len(wire.application.streams) == 3
    wire.application.streams[0].answer(b"first")
    wire.application.streams[2].answer(b"third")
    assert bodies(wire.send()) == {1: b"first", 5: b"third"}
    assert not wire.transport.closed
    wire.application.streams[1].answer(b"second")
    assert bodies(wire.send()) == {3: b"second"}
    assert wire.transport.closed


def test_nothing_is_sent_behind_the_end() -> None:
    wire = Wire()
    wire.application.hold = True
    wire.send(wire.headers(1))
    wire.connection.shut()
    assert goaway_code(wire.sweep(15.0)) == frames.NO_ERROR
    assert goaway_code(wire.sweep(4.0)) is None
    assert goaway_code(wire.sweep(2.0)) == frames.NO_ERROR
    wire.application.streams[0].answer(b"answer")
    wire.send()
    assert wire.transport.closed
    wire.connection.sender.write(frames.window_update(0, 1))
    assert not wire.send()


@pytest.mark.parametrize("answers", [True, False])
def test_shuts_an_idle_connection_down_when_it_knows_or_after_a_second(answers: bool) -> None:
    wire = Wire()
    wire.connection.shut()
    notice, ping = wire.send()
    assert goaway_code([notice]) == frames.NO_ERROR
    wire.sweep(0.5)
    assert not wire.transport.closed
    if answers:
        wire.send(frames.frame(frames.PING, frames.ACK, 0, ping.payload))
    else:
        wire.sweep(1.0)
    assert wire.transport.closed


def test_an_idle_connection_that_is_old_has_time_to_hear_of_it() -> None:
    wire = Wire(Http2Limits(max_connection_age_s=10.0))
    assert goaway_code(wire.sweep(11.0)) == frames.NO_ERROR
    wire.sweep(15.0)
    wire.application.hold = True
    wire.send(wire.request(1))
    wire.application.streams[0].answer(b"late")
    assert bodies(wire.send()) == {1: b"late"}, "it had begun this call before it heard"
    wire.sweep(6.0)
    assert wire.transport.closed


def test_a_connection_that_comes_while_the_server_stops_is_told_so() -> None:
    wire = Wire()
    asyncio.run(wire.application.connections.drain(0))
    late = Transport()
    Http2Connection(wire.application).connection_made(late)
    assert goaway_code(list(split(late.written))) == frames.NO_ERROR and late.closed
    assert wire.application.refusals == ["server is shutting down"]
