"""What a client may do at most; each limit on both sides."""

import pytest
from hpack import Encoder

from app.edge.body_budget import BodyBudget
from app.http2 import frames
from app.http2.connection import Http2Connection
from app.http2.limits import Http2Limits
from tests.app.http2.wire import HEADERS, Transport, Wire, bodies, data, deliver, goaway_code, reset_codes, split

PING = frames.frame(frames.PING, 0, 0, b"12345678")
CALM = frames.ENHANCE_YOUR_CALM
ACKNOWLEDGED = frames.frame(frames.SETTINGS, frames.ACK, 0)


def test_refuses_streams_above_the_limit_and_goes_on() -> None:
    wire = Wire(Http2Limits(max_concurrent_streams=2))
    wire.application.hold = True
    wire.send(ACKNOWLEDGED)
    assert reset_codes(wire.send(wire.request(1), wire.request(3), wire.request(5))) == {5: frames.REFUSED_STREAM}
    wire.application.streams[0].answer(b"1")
    wire.send()
    assert reset_codes(wire.send(wire.request(7))) == {}
    assert len(wire.connection.streams) == 2


def test_takes_more_streams_from_who_has_not_heard_of_the_limit() -> None:
    """As from Envoy, which sends all requests that have waited for the connection before it reads anything."""
    wire = Wire(Http2Limits(max_concurrent_streams=2, max_early_streams=4))
    wire.application.hold = True
    assert reset_codes(wire.send(*map(wire.request, range(1, 11, 2)))) == {9: frames.REFUSED_STREAM}
    wire.send(ACKNOWLEDGED)
    for stream in wire.application.streams[:2]:
        stream.answer(b"1")
    wire.send()
    assert reset_codes(wire.send(wire.request(11))) == {11: frames.REFUSED_STREAM}
    wire.application.streams[2].answer(b"1")
    wire.send()
    assert reset_codes(wire.send(wire.request(13))) == {}


@pytest.mark.parametrize(("count", "code"), [(5, None), (6, CALM)])
def test_rapid_reset(count: int, code: int | None) -> None:
    wire = Wire(Http2Limits(max_resets_burst=5, max_resets_per_s=2))
    wire.application.hold = True
    got = wire.send(*(wire.request(2 * i + 1) + frames.rst_stream(2 * i + 1, 8) for i in range(count)))
    assert goaway_code(got) == code


def test_resets_at_the_permitted_rate_go_on_for_ever() -> None:
    wire = Wire(Http2Limits(max_resets_burst=5, max_resets_per_s=2))
    for i in range(100):
        assert goaway_code(wire.send(wire.headers(2 * i + 1) + frames.rst_stream(2 * i + 1, 8))) is None
        wire.loop.now_s += 0.5


def test_who_gives_up_what_was_open_for_a_while_resets_nothing_rapidly() -> None:
    wire = Wire(Http2Limits(max_resets_burst=5, max_resets_per_s=2, max_concurrent_streams=50))
    wire.application.hold = True
    for first in range(1, 1001, 100):
        ids = range(first, first + 100, 2)
        wire.send(*map(wire.request, ids))
        wire.loop.now_s += 0.1
        assert goaway_code(wire.send(*(frames.rst_stream(stream_id, frames.CANCEL) for stream_id in ids))) is None


@pytest.mark.parametrize(("answered", "code"), [(4, CALM), (5, None)])
def test_a_request_that_is_answered_pays_for_one_that_is_given_up(answered: int, code: int | None) -> None:
    """As of a client that asks twice and takes the first answer; what is paid for in advance is bounded."""
    wire = Wire(Http2Limits(max_resets_burst=5, max_resets_per_s=0))
    got, stream_id = [], 1
    for of_each in (20, 5, answered):
        for given_up in [False] * of_each + [True] * 5:
            wire.application.hold = given_up
            got += wire.send(wire.request(stream_id))
            got += wire.send(frames.rst_stream(stream_id, frames.CANCEL)) if given_up else []
            stream_id += 2
    assert goaway_code(got) == code


def test_a_reset_that_crosses_the_answer_is_no_rapid_one() -> None:
    wire = Wire(Http2Limits(max_resets_burst=5, max_resets_per_s=2, max_control_frames_burst=20))
    for number in range(100):
        wire.send(wire.request(2 * number + 1))
        assert goaway_code(wire.send(frames.rst_stream(2 * number + 1, frames.CANCEL))) is None
    resets = wire.send(*(frames.rst_stream(1, frames.CANCEL) for _ in range(500)))
    assert goaway_code(resets) == frames.ENHANCE_YOUR_CALM, "a request does not pay for any number"


@pytest.mark.parametrize(("count", "code"), [(5, None), (6, CALM)])
def test_making_the_server_reset_counts_as_resetting(count: int, code: int | None) -> None:
    wire = Wire(Http2Limits(max_resets_burst=5, max_resets_per_s=2))
    got = wire.send(*(wire.headers(2 * i + 1) + frames.window_update(2 * i + 1, 0) for i in range(count)))
    assert goaway_code(got) == code


FLOODS = {
    "settings": frames.settings({}),
    "acknowledged settings": frames.frame(frames.SETTINGS, frames.ACK, 0),
    "priority": frames.frame(frames.PRIORITY, 0, 1, b"\0\0\0\0\1"),
    "unknown frames": frames.frame(0x77, 0, 0, b"x"),
    "acknowledged pings": frames.frame(frames.PING, frames.ACK, 0, b"12345678"),
    "empty data": data(1, b""),
    "empty padded data": data(1, b"\x03\0\0\0", flags=frames.PADDED),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
@pytest.mark.parametrize(("count", "code"), [(9, None), (10, CALM)])
def test_floods(flood: bytes, count: int, code: int | None) -> None:
    wire = Wire(Http2Limits(max_control_frames_burst=10, max_control_frames_per_s=1))  # one is spent on the greeting
    assert goaway_code(wire.send(wire.headers(1) + flood * count)) == code
    assert wire.transport.closed == (code is not None)


@pytest.mark.parametrize(("count", "code"), [(9, None), (10, CALM)])
@pytest.mark.parametrize("stream_id", [0, 1])
def test_window_updates_that_no_data_of_ours_has_paid_for(stream_id: int, count: int, code: int | None) -> None:
    wire = Wire(Http2Limits(max_control_frames_burst=10, max_control_frames_per_s=1))
    wire.application.hold = True
    # A request pays for four of them.
    assert goaway_code(wire.send(wire.headers(1) + frames.window_update(stream_id, 1) * (count + 4))) == code


def test_window_updates_for_data_of_ours_are_free() -> None:
    wire = Wire(Http2Limits(max_control_frames_burst=10, max_control_frames_per_s=1))
    wire.send(wire.headers(1) + data(1, bytes(60_000), end=True))
    assert goaway_code(wire.send(frames.window_update(0, 32) * 1800)) is None


@pytest.mark.parametrize("frame", [data(1, b"x"), data(1, b"\x01xp", flags=frames.PADDED)], ids=["plain", "padded"])
@pytest.mark.parametrize(("count", "code"), [(9, None), (10, CALM)])
def test_single_bytes_of_data(frame: bytes, count: int, code: int | None) -> None:
    wire = Wire(Http2Limits(max_control_frames_burst=10, max_control_frames_per_s=1))
    assert goaway_code(wire.send(wire.headers(1) + frame * (count + 4))) == code


def test_small_messages_are_free() -> None:
    wire = Wire(Http2Limits(max_control_frames_burst=10, max_control_frames_per_s=1))
    assert goaway_code(wire.send(wire.headers(1) + data(1, b"x" * 16) * 10_000)) is None


@pytest.mark.parametrize(("values", "code"), [(72, None), (80, CALM)])
def test_settings_cost_what_they_hold(values: int, code: int | None) -> None:
    wire = Wire(Http2Limits(max_control_frames_burst=11, max_control_frames_per_s=1))  # one is spent on the greeting
    sent = frames.frame(frames.SETTINGS, 0, 0, b"\0\6\0\0\0\1" * values)
    assert goaway_code(wire.send(sent)) == code


def test_settings_that_move_many_windows_cost_more() -> None:
    for count, code in ((9, None), (10, CALM)):
        wire = Wire(Http2Limits(max_control_frames_burst=20, max_control_frames_per_s=1))
        wire.application.hold = True
        wire.send(*(wire.request(2 * i + 1) for i in range(32)))
        assert goaway_code(wire.send(frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 70_000}) * count)) == code


def test_a_turn_ends_after_so_much_work_and_the_rest_is_done_in_the_next() -> None:
    wire = Wire(Http2Limits(max_concurrent_streams=4000))
    deliver(wire.connection, b"".join(wire.request(2 * i + 1) for i in range(1000)))
    assert not wire.transport.reading
    assert 100 < len(wire.application.streams) < 600
    wire.loop.turn()
    assert wire.transport.reading
    assert len(wire.application.streams) == 1000


@pytest.mark.parametrize("kind", ["requests", "trailers"])
def test_large_header_blocks_are_decoded_one_in_a_turn(kind: str) -> None:
    wire = Wire(Http2Limits(max_concurrent_streams=100))
    wire.application.hold = True
    ids = range(1, 13, 2)
    if kind == "trailers":
        wire.send(*(wire.headers(stream_id) for stream_id in ids))
    # 60,000 symbols of Huffman's code, byte by byte: some milliseconds each
    huge = wire.encoder.encode([("x-note", "a" * 60_000)])
    blocks = (huge if kind == "trailers" else wire.encoder.encode([*HEADERS, ("x-note", "a" * 60_000)]) for _ in ids)
    deliver(wire.connection, b"".join(frames.frame(frames.HEADERS, 5, i, b) for i, b in zip(ids, blocks, strict=True)))
    done = [stream for stream in wire.application.streams if stream.peer_ended]
    assert len(done) == 1
    assert not wire.transport.reading
    wire.loop.turn()
    assert all(stream.peer_ended for stream in wire.application.streams)
    assert len(wire.application.streams) == len(ids)
    assert wire.transport.reading


@pytest.mark.parametrize("kind", ["whole", "continued", "padded"])
def test_of_many_connections_one_decodes_a_large_header_block_in_a_turn(kind: str) -> None:
    wire = Wire()
    wire.application.hold = True
    connections = []
    for _ in range(8):
        connection = Http2Connection(wire.application)
        connection.connection_made(Transport())
        deliver(connection, frames.PREFACE + frames.settings({}))
        connections.append(connection)
    encoder = Encoder()
    encoder.header_table_size = 0  # the same block for all of them
    block = encoder.encode([*HEADERS, ("x-note", "a" * 60_000)])
    if kind == "continued":
        half = len(block) // 2
        begun = frames.frame(frames.HEADERS, 1, 1, block[:half])
        sent = begun + frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, block[half:])
    else:
        padded = kind == "padded"
        sent = frames.frame(frames.HEADERS, 5 | (frames.PADDED if padded else 0), 1, b"\0" * padded + block)
    for connection in connections:
        deliver(connection, sent)
    streams = wire.application.streams
    assert len(streams) == 1
    wire.send(wire.request(1))
    assert len(streams) == 1 + len(connections), "all have their turn, and who sends little waits for none of them"
    assert all(stream.peer_ended for stream in streams)


def test_who_waits_in_a_turn_that_a_closed_connection_had_goes_on() -> None:
    wire = Wire()
    encoder = Encoder()
    block = encoder.encode([*HEADERS, ("x-note", "a" * 60_000)])
    others = []
    for _ in range(3):
        connection = Http2Connection(wire.application)
        connection.connection_made(Transport())
        deliver(connection, frames.PREFACE + frames.settings({}))
        deliver(connection, frames.frame(frames.HEADERS, 5, 1, block))
        others.append(connection)
    others[1].connection_lost(None)
    wire.loop.turn()
    assert len(wire.application.streams) == 2


@pytest.mark.parametrize(("count", "code"), [(3, None), (4, CALM)])
def test_pings_without_data_in_between(count: int, code: int | None) -> None:
    wire = Wire()
    wire.application.hold = True
    assert goaway_code(wire.send(wire.headers(1), *[PING] * count)) == code


def test_pings_with_data_in_between_are_answered_for_ever() -> None:
    wire = Wire()
    # grpc-go measures the path by a ping after whatever it receives, thousands in a second.
    for i in range(3000):
        assert goaway_code(wire.send(wire.request(2 * i + 1), PING)) is None


def test_pings_at_the_permitted_interval_are_answered_for_ever() -> None:
    wire = Wire()
    wire.application.hold = True
    wire.send(wire.headers(1))
    for _ in range(10):
        wire.loop.now_s += 301
        assert goaway_code(wire.send(PING)) is None


@pytest.mark.parametrize(
    ("permitted", "interval_s", "code"), [(False, 301, CALM), (False, 7201, None), (True, 301, None)]
)
def test_pings_without_calls_are_for_hours_unless_they_are_permitted(
    permitted: bool, interval_s: int, code: int | None
) -> None:
    wire = Wire(Http2Limits(keepalive_permit_without_calls=permitted))
    for last in (False, False, False, True):
        wire.loop.now_s += interval_s
        assert goaway_code(wire.send(PING)) == (code if last else None)


def test_a_header_block_in_few_pieces_is_taken_and_in_many_not() -> None:
    for count, code in ((16, None), (17, CALM)):
        wire = Wire()
        block = wire.encoder.encode([(":method", "POST"), (":scheme", "http"), (":path", "/echo")])
        pieces = frames.frame(frames.HEADERS, 0, 1, block)
        pieces += frames.frame(frames.CONTINUATION, 0, 1, b"") * (count - 1)
        pieces += frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, b"")
        assert goaway_code(wire.send(pieces)) == code


def test_compressed_headers_up_to_the_limit() -> None:
    for size, code in ((1000, None), (1001, CALM)):
        for in_two in (False, True):
            wire = Wire(Http2Limits(max_header_block_bytes=1000))
            block = b"\x83\x86\x44\x05/echo"
            value = size - len(block) - 6
            block += b"\x00\x01x\x7f" + bytes([(value - 127) & 127 | 128, (value - 127) >> 7]) + b"v" * value
            assert len(block) == size
            if in_two:
                sent = frames.frame(frames.HEADERS, 0, 1, block[:500])
                sent += frames.frame(frames.CONTINUATION, 4, 1, block[500:])
            else:
                sent = frames.frame(frames.HEADERS, 4, 1, block)
            assert goaway_code(wire.send(sent)) == code


def test_a_header_list_too_large_is_told_to_the_application_and_far_too_large_ends_the_connection() -> None:
    one = len("x") + 967 + 32
    pseudo = sum(len(n) + len(v) + 32 for n, v in [(":method", "POST"), (":scheme", "http"), (":path", "/echo")])
    pseudo += len(":authority") + len("localhost") + 32
    limit = pseudo + one
    outcomes = []
    for extra in (967, 968, 967 + limit, 968 + limit):
        wire = Wire(Http2Limits(max_header_list_bytes=limit))
        code = goaway_code(wire.send(wire.headers(1, ("x", "v" * extra))))
        outcomes.append((code, [head.too_large for head in wire.application.opened]))
    assert outcomes == [(None, [False]), (None, [True]), (None, [True]), (CALM, [])]


@pytest.mark.parametrize(("count", "code"), [(256, None), (257, CALM)])
def test_the_number_of_header_fields(count: int, code: int | None) -> None:
    block = b"\x83\x86\x44\x05/echo" + b"\x00\x01x\x01y" * (count - 3)
    assert goaway_code(Wire().send(frames.frame(frames.HEADERS, 4, 1, block))) == code


def test_an_hpack_bomb_is_not_expanded() -> None:
    wire = Wire()
    bomb = b"\x40\x01x\x7f\xa1\x1e" + b"v" * 4000 + b"\xbe" * 200  # 800 KB from 4 KB
    assert goaway_code(wire.send(frames.frame(frames.HEADERS, 4, 1, bomb))) == CALM


def test_refuses_a_connection_above_the_limit() -> None:
    wire = Wire(Http2Limits(max_connections=1))
    assert bodies(wire.send(wire.request(1)))
    other = connect(wire)
    assert goaway_code(list(split(other.written))) == CALM
    assert other.closed


def connect(wire: Wire) -> Transport:
    """Another client of the same port."""
    other = Transport()
    Http2Connection(wire.application).connection_made(other)
    return other


def test_a_connection_that_is_idle_gives_way_to_a_new_one() -> None:
    wire = Wire(Http2Limits(max_connections=1))
    wire.send(wire.request(1))
    assert goaway_code(wire.sweep(1.0)) is None
    wire.sweep(1.0)
    other = connect(wire)
    assert not other.closed
    assert goaway_code(wire.send()) == frames.NO_ERROR
    assert wire.transport.closed


@pytest.mark.parametrize("sent", [PING, frames.window_update(0, 1), frames.settings({})])
def test_a_connection_without_requests_gives_way_whatever_else_it_sends(sent: bytes) -> None:
    wire = Wire(Http2Limits(max_connections=1, max_ping_strikes=0))
    for _ in range(5):
        wire.send(sent)
        wire.sweep(1.0)
    wire.send(sent)
    assert not connect(wire).closed
    wire.send()
    assert wire.transport.closed


def test_the_connection_whose_last_request_is_oldest_gives_way() -> None:
    wire = Wire(Http2Limits(max_connections=2))
    wire.send(wire.request(1))
    wire.sweep(1.0)
    other = connect(wire)
    for connection in wire.application.connections:
        connection.sweep(wire.loop.now_s)
    wire.send(wire.request(3))
    wire.sweep(1.0)
    assert not connect(wire).closed
    wire.send()
    assert other.closed
    assert not wire.transport.closed


def test_frames_that_have_come_in_part_are_bounded_over_all_connections() -> None:
    wire = Wire()
    wire.application.bodies = BodyBudget(1 << 20)
    wire.send(wire.headers(1), data(1, b"\x05" + bytes(900_000), flags=frames.PADDED)[:-10_000])
    wire.sweep(1.0)
    assert 880_000 < wire.application.bodies.used_bytes < 900_000
    other = Wire()
    other.connection.application = wire.application
    other.send(other.headers(1), data(1, b"\x05" + bytes(900_000), flags=frames.PADDED)[:-10_000])
    assert goaway_code(other.sweep(1.0)) == CALM
    other.connection.connection_lost(None)
    wire.send(bytes(10_000))
    wire.sweep(1.0)
    assert wire.application.bodies.used_bytes == 0


@pytest.mark.parametrize("busy", ["a call is under way", "it has just asked"])
def test_a_connection_that_is_in_use_does_not_give_way(busy: str) -> None:
    wire = Wire(Http2Limits(max_connections=1))
    wire.sweep(1.0)
    wire.sweep(1.0)
    wire.application.hold = "under way" in busy
    wire.send(wire.request(1))
    if wire.application.hold:
        wire.sweep(1.0)  # nothing has come since, and the call goes on
    assert connect(wire).closed
    assert not wire.transport.closed
