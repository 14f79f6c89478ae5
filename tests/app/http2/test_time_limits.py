"""What a client has to do in time, and how long it may stay."""

import pytest

from app.http2 import frames
from app.http2.limits import Http2Limits
from tests.app.http2.wire import Wire, goaway_code, reset_codes

TIMES = {
    "no preface": b"",
    "half a preface": frames.PREFACE[:10],
    "a preface alone": frames.PREFACE,
}


@pytest.mark.parametrize("sent", TIMES.values(), ids=TIMES)
def test_a_client_must_greet_in_time(sent: bytes) -> None:
    wire = Wire(greet=False)
    wire.send(sent)
    assert goaway_code(wire.sweep(9.0)) is None
    assert goaway_code(wire.sweep(2.0)) == frames.NO_ERROR
    assert wire.transport.closed


SLOW = {
    "half a frame": frames.frame(frames.PING, 0, 0, b"12345678")[:12],
    "half a header block": frames.frame(frames.HEADERS, 0, 1, b"\x83"),
}


@pytest.mark.parametrize("sent", SLOW.values(), ids=SLOW)
def test_what_was_begun_must_be_completed_in_time(sent: bytes) -> None:
    wire = Wire()
    wire.send(sent)
    assert goaway_code(wire.sweep(59.0)) is None
    assert goaway_code(wire.sweep(2.0)) == frames.NO_ERROR


def test_an_idle_connection_may_stay() -> None:
    wire = Wire()
    wire.send(wire.request(1))
    assert wire.sweep(100_000.0) == []
    assert not wire.transport.closed


def test_a_message_must_arrive_in_time() -> None:
    wire = Wire()
    wire.send(wire.headers(1))
    wire.connection.incomplete[wire.application.streams[0]] = wire.loop.now_s + 60.0
    assert reset_codes(wire.sweep(59.0)) == {}
    assert reset_codes(wire.sweep(2.0)) == {1: frames.CANCEL}


@pytest.mark.parametrize("window", [0, 10])
def test_a_client_that_takes_nothing_of_an_answer_loses_it(window: int) -> None:
    wire = Wire(settings={frames.SETTINGS_INITIAL_WINDOW_SIZE: window})
    wire.send(wire.request(1, b"x" * 100))
    assert reset_codes(wire.sweep(119.0)) == {}
    wire.send(frames.window_update(1, 10))
    assert reset_codes(wire.sweep(119.0)) == {}
    assert reset_codes(wire.sweep(2.0)) == {1: frames.CANCEL}
    assert not wire.transport.closed


def test_a_client_that_reads_nothing_at_all_is_left() -> None:
    wire = Wire()
    wire.send(wire.request(1))
    wire.connection.pause_writing()
    wire.sweep(119.0)
    assert not wire.transport.closed
    wire.sweep(2.0)
    assert wire.transport.closed


def test_a_client_that_opens_no_window_at_all_is_left() -> None:
    wire = Wire()
    wire.application.hold = True
    wire.send(wire.request(1))
    wire.application.streams[0].answer(bytes(100_000))
    wire.sweep(119.0)
    assert not wire.transport.closed
    wire.sweep(2.0)
    assert wire.transport.closed


def test_pings_a_silent_client_with_calls_and_leaves_it_when_it_does_not_answer() -> None:
    wire = Wire()
    wire.application.hold = True
    wire.send(wire.request(1))
    wire.sweep(1.0)
    assert wire.sweep(7199.0) == []
    (ping,) = wire.sweep(2.0)
    assert (ping.kind, ping.flags) == (frames.PING, 0)
    wire.send(frames.frame(frames.PING, frames.ACK, 0, ping.payload))
    assert not wire.sweep(21.0)
    assert not wire.transport.closed
    wire.sweep(7201.0)
    wire.sweep(21.0)
    assert wire.transport.closed


def test_an_old_connection_is_told_to_go_and_left_after_its_grace() -> None:
    wire = Wire(Http2Limits(max_connection_age_s=100.0, max_connection_age_grace_s=10.0))
    wire.application.hold = True
    wire.send(wire.request(1))
    assert goaway_code(wire.sweep(99.0)) is None
    assert goaway_code(wire.sweep(2.0)) == frames.NO_ERROR
    assert not wire.transport.closed
    wire.sweep(8.0)
    assert not wire.transport.closed
    wire.sweep(2.0)
    assert wire.transport.closed


def test_a_closed_connection_that_lingers_is_cut() -> None:
    wire = Wire()
    wire.connection.shut()
    cut: list[bool] = []
    wire.transport.abort = lambda: cut.append(True)  # type: ignore[method-assign]
    wire.sweep(2.0)
    wire.sweep(4.0)
    assert not cut
    wire.sweep(2.0)
    assert cut
