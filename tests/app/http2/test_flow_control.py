"""Windows in both directions."""

import gc
import weakref

import pytest

from app.http2 import frames
from app.http2.limits import Http2Limits
from tests.app.http2.wire import Wire, bodies, data, goaway_code, reset_codes

BIG = bytes(range(256)) * 800  # 204,800 bytes


def test_sends_as_much_as_the_window_allows_and_the_rest_when_it_grows() -> None:
    wire = Wire()
    wire.application.hold = True
    wire.send(wire.request(1))
    wire.application.streams[0].answer(BIG)
    got = wire.send()
    sent = bodies(got)[1]
    assert sent == BIG[: frames.DEFAULT_WINDOW_BYTES]
    assert max(len(frame.payload) for frame in got) == frames.MIN_FRAME_BYTES
    # The stream's window alone does not help, nor does the connection's.
    assert wire.send(frames.window_update(1, 1 << 20)) == []
    got = wire.send(frames.window_update(0, 1 << 20))
    assert sent + bodies(got)[1] == BIG
    assert got[-1].flags & frames.END_STREAM
    assert not wire.connection.streams
    assert wire.connection.sender.queued_bytes == 0


def test_honours_the_clients_largest_frame_and_initial_window() -> None:
    wire = Wire(settings={frames.SETTINGS_MAX_FRAME_SIZE: 1 << 20, frames.SETTINGS_INITIAL_WINDOW_SIZE: 1 << 20})
    wire.send(frames.window_update(0, 1 << 20))
    wire.application.hold = True
    wire.send(wire.request(1))
    wire.application.streams[0].answer(BIG)
    assert [len(frame.payload) for frame in wire.send() if frame.kind == frames.DATA] == [len(BIG)]


@pytest.mark.parametrize("window", [0, 1, 100])
def test_a_larger_initial_window_frees_streams_that_wait(window: int) -> None:
    wire = Wire(settings={frames.SETTINGS_INITIAL_WINDOW_SIZE: window})
    sent = bodies(wire.send(wire.request(1, b"x" * 1000))).get(1, b"")
    assert len(sent) == window
    got = wire.send(frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 1000}))
    assert len(bodies(got)[1]) == 1000 - window
    assert (got[0].kind, got[0].flags) == (frames.SETTINGS, frames.ACK)
    assert not wire.connection.streams


def test_a_smaller_initial_window_may_make_windows_negative() -> None:
    wire = Wire(settings={frames.SETTINGS_INITIAL_WINDOW_SIZE: 500})
    assert len(bodies(wire.send(wire.request(1, b"x" * 1000)))[1]) == 500
    assert bodies(wire.send(frames.settings({frames.SETTINGS_INITIAL_WINDOW_SIZE: 100}))) == {}
    assert bodies(wire.send(frames.window_update(1, 400))) == {}
    assert len(bodies(wire.send(frames.window_update(1, 1)))[1]) == 1


def test_streams_take_turns() -> None:
    wire = Wire()
    wire.application.hold = True
    wire.send(wire.request(1), wire.request(3))
    for stream in wire.application.streams:
        stream.answer(b"x" * 60_000)
    wire.send()
    order = [f.stream_id for f in wire.send(frames.window_update(0, 1 << 20)) if f.kind == frames.DATA]
    assert set(order) == {3} or order[0] != order[1]


def test_sends_nothing_more_of_a_stream_that_the_client_has_reset() -> None:
    wire = Wire()
    wire.application.hold = True
    wire.send(wire.request(1))
    wire.application.streams[0].answer(BIG)
    wire.send(frames.rst_stream(1, frames.CANCEL))
    assert wire.send(frames.window_update(0, 1 << 20)) == []
    assert wire.connection.sender.queued_bytes == 0


@pytest.mark.parametrize("ending", ["reset", "leaves", "answered"])
def test_what_waits_for_a_client_is_free_as_soon_as_it_no_longer_does(ending: str) -> None:
    gc.collect()
    gc.disable()
    try:
        wire = Wire()
        wire.application.hold = True
        wire.send(wire.request(1))
        stream = weakref.ref(wire.application.streams[0])
        connection = weakref.ref(wire.connection)
        wire.connection.reservations.take(wire.application.streams[0], 1000)
        wire.application.streams.pop().answer(BIG)
        wire.send()
        assert stream() is not None
        if ending == "reset":
            wire.send(frames.rst_stream(1, frames.CANCEL))
            assert stream() is None
        elif ending == "answered":
            wire.send(frames.window_update(1, 1 << 20), frames.window_update(0, 1 << 20))
            assert stream() is None
        wire.connection.connection_lost(None)
        del wire.connection
        assert (stream(), connection()) == (None, None)
    finally:
        gc.enable()


def test_does_not_write_while_the_socket_is_full() -> None:
    wire = Wire(settings={frames.SETTINGS_INITIAL_WINDOW_SIZE: 1 << 20})
    wire.application.hold = True
    wire.send(wire.request(1), frames.window_update(0, 1 << 20))
    wire.connection.pause_writing()
    assert not wire.transport.reading
    wire.application.streams[0].answer(BIG)
    assert bodies(wire.send()) == {}
    wire.connection.resume_writing()
    assert wire.transport.reading
    assert bodies(wire.send()) == {1: BIG}


def test_an_answer_waits_while_the_socket_is_full() -> None:
    wire = Wire()
    wire.application.hold = True
    wire.send(wire.request(1))
    wire.connection.pause_writing()
    wire.application.streams[0].answer(b"small")
    assert bodies(wire.send()) == {}
    wire.connection.resume_writing()
    assert bodies(wire.send()) == {1: b"small"}


def test_large_answers_leave_in_portions() -> None:
    wire = Wire(settings={frames.SETTINGS_INITIAL_WINDOW_SIZE: 1 << 30, frames.SETTINGS_MAX_FRAME_SIZE: 1 << 20})
    wire.send(frames.window_update(0, 1 << 30))
    wire.application.hold = True
    wire.send(wire.request(1))
    big = bytes(5 << 20)
    writes: list[int] = []
    wire.transport.writelines = lambda parts: writes.append(sum(map(len, parts)))  # type: ignore[method-assign]
    wire.application.streams[0].answer(big)
    wire.loop.turn()
    assert len(writes) >= 4
    assert max(writes) < 3 << 20


def test_a_client_may_send_its_window_and_no_byte_more() -> None:
    limits = Http2Limits(initial_window_bytes=70_000, max_frame_bytes=1 << 20)
    wire = Wire(limits)
    assert bodies(wire.send(wire.headers(1), data(1, bytes(69_999)), data(1, b"x", end=True)))
    wire = Wire(limits)
    got = wire.send(wire.headers(1), data(1, bytes(70_000)), data(1, b"x", end=True))
    assert reset_codes(got) == {1: frames.FLOW_CONTROL_ERROR}
    assert wire.application.streams[0].gone


def test_padding_counts_against_the_window_and_is_given_back() -> None:
    wire = Wire()
    got = wire.send(wire.headers(1), data(1, bytes([200]) + b"x" + bytes(200), flags=frames.PADDED))
    assert [(f.stream_id, int.from_bytes(f.payload, "big")) for f in got] == [(1, 201)]
    assert wire.connection.streams[1].credit_bytes == wire.connection.initial_credit_bytes - 1


def test_replenishes_the_connections_window_in_bulk() -> None:
    wire = Wire()
    wire.application.hold = True
    updates = []
    for stream_id in range(1, 2 * 80, 2):
        got = wire.send(wire.headers(stream_id) + data(stream_id, bytes(250_000), end=True))
        updates += [int.from_bytes(f.payload, "big") for f in got if f.kind == frames.WINDOW_UPDATE]
        wire.send(frames.rst_stream(stream_id, frames.CANCEL))
    assert len(updates) == 1
    assert updates[0] >= 16 << 20


@pytest.mark.parametrize(
    ("waiting", "idle_s", "window", "ended"),
    [
        (100_000, 5.0, 0, False),
        (100_001, 5.0, 0, True),
        (100_001, 4.9, 0, False),
        (400_000, 4.9, 0, False),
        (400_001, 0.0, 0, True),
        (400_001, 5.0, 1, False),
        (400_002, 5.0, 1, True),
    ],
)
def test_an_answer_behind_too_many_that_wait_for_a_client_ends_the_connection(
    waiting: int, idle_s: float, window: int, ended: bool
) -> None:
    wire = Wire(Http2Limits(max_queued_bytes=100_000), settings={frames.SETTINGS_INITIAL_WINDOW_SIZE: 0})
    wire.application.hold = True
    wire.send(wire.request(1), wire.request(3))
    first, second = wire.application.streams
    first.answer(bytes(waiting))
    assert goaway_code(wire.send()) is None
    wire.loop.now_s += idle_s
    if window:
        wire.send(frames.window_update(1, window))
    second.answer(b"x")
    assert goaway_code(wire.send()) == (frames.ENHANCE_YOUR_CALM if ended else None)


def test_large_messages_wait_for_memory_in_their_order() -> None:
    wire = Wire(Http2Limits(max_buffered_bytes=1000))
    wire.application.hold = True
    wire.send(*(wire.headers(i) for i in (1, 3, 5, 7)))
    first, second, third, fourth = wire.application.streams
    reservations = wire.connection.reservations
    reservations.take(first, 5000)  # alone, any size
    reservations.take(second, 900)
    reservations.take(third, 200)
    reservations.take(fourth, 100)
    assert [s.granted_count for s in wire.application.streams] == [1, 0, 0, 0]
    reservations.give_back(first)
    assert [s.granted_count for s in wire.application.streams] == [1, 1, 0, 0]
    reservations.give_back(third)  # gave up while it waited
    assert [s.granted_count for s in wire.application.streams] == [1, 1, 0, 1]


def test_a_stream_that_the_client_does_not_take_is_reset_whatever_it_takes_of_others() -> None:
    wire = Wire(settings={frames.SETTINGS_INITIAL_WINDOW_SIZE: 100})
    wire.send(frames.window_update(0, 1 << 20), wire.request(1, b"x" * 1000))
    wire.loop.now_s += 60
    wire.send(wire.request(3, b"y" * 1000))
    for _ in range(60):
        assert bodies(wire.send(frames.window_update(3, 1)))[3] == b"y"
        assert reset_codes(wire.sweep(1.0)) == {}
    assert wire.connection.sender.queued_bytes == 900 + 900 - 60
    got = [*wire.sweep(1.0), *wire.send(frames.window_update(3, 1))]
    assert reset_codes(got) == {1: frames.CANCEL}
    assert bodies(got) == {3: b"y"}
    assert wire.connection.sender.queued_bytes == 900 - 61
    assert wire.application.streams[0].gone
    assert len(bodies(wire.send(frames.window_update(3, 1000)))[3]) == 839
    assert not wire.connection.streams


def test_a_stream_whose_turn_comes_late_is_not_reset() -> None:
    wire = Wire(settings={frames.SETTINGS_INITIAL_WINDOW_SIZE: 1 << 20})
    wire.send(wire.request(1, b"x" * 65_535), wire.request(3, b"y" * 1000))
    for _ in range(130):
        assert wire.sweep(1.0) == []
        wire.connection.sender.progress_s = wire.loop.now_s  # as if other streams got what the connection takes
    assert bodies(wire.send(frames.window_update(0, 1000))) == {3: b"y" * 1000}


def test_reads_no_more_when_a_large_answer_fills_the_socket_again() -> None:
    wire = Wire(settings={frames.SETTINGS_INITIAL_WINDOW_SIZE: 1 << 30})
    wire.application.hold = True
    wire.send(wire.request(1), frames.window_update(0, 1 << 30))
    wire.connection.pause_writing()
    wire.application.streams[0].answer(bytes(3 << 20))
    # As a transport does whose buffer is full again.
    wire.transport.writelines = lambda parts: wire.connection.pause_writing()  # type: ignore[method-assign]
    wire.connection.resume_writing()
    assert not wire.transport.reading
