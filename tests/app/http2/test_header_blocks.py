"""Fields that the application ignores: how a block is recognised without them, and when that must not be."""

import time

import pytest
from hpack import Encoder

from app.http2 import frames
from app.http2.limits import Http2Limits
from tests.app.http2.wire import HEADERS, Wire, goaway_code

_TRACE = b"\x00\x05trace"
_BASE = b"\x83\x86\x44\x05/echo"


def _literal(value: bytes, name: bytes = b"trace") -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def _send(wire: Wire, stream_id: int, block: bytes) -> int | None:
    return goaway_code(wire.send(frames.frame(frames.HEADERS, 5, stream_id, block)))


@pytest.mark.parametrize("huffman", [True, False])
@pytest.mark.parametrize("sensitive", [True, False])
def test_a_head_is_read_once_though_an_ignored_field_changes(huffman: bool, sensitive: bool) -> None:
    wire = Wire()
    for i in range(100):
        block = wire.encoder.encode([*HEADERS, ("trace", f"{i:032x}", sensitive)], huffman=huffman)  # type: ignore[list-item]
        _send(wire, 2 * i + 1, block)
    assert len(wire.application.opened) == 100
    assert wire.application.reads == 1


def test_other_fields_are_never_left_out() -> None:
    wire = Wire()
    for i in range(10):
        _send(wire, 2 * i + 1, _BASE + _literal(b"%d" % i, b"other") + _literal(b"x"))
    assert [dict(head.headers)[b"other"] for head in wire.application.opened] == [b"%d" % i for i in range(10)]


def test_a_block_that_ends_within_an_ignored_field_is_refused() -> None:
    field = _literal(b"value")
    for size in range(1, len(field)):
        wire = Wire()
        assert _send(wire, 1, _BASE) is None
        assert _send(wire, 3, b"\x83\x86\xbe" + field[:size]) == frames.COMPRESSION_ERROR


@pytest.mark.parametrize("ignored", [b"", _literal(b"x")])
def test_heads_that_are_forgotten_are_made_anew_of_known_blocks(ignored: bytes) -> None:
    """As when API keys change: a head says whether its key is good."""
    wire = Wire()
    for i in range(8):
        if i == 5:
            wire.connection.blocks.forget()
        _send(wire, 2 * i + 1, b"\x83\x86\xbe" + ignored if i else _BASE)
    known, anew = wire.application.opened[4], wire.application.opened[5:]
    assert all(head is anew[0] is not known for head in anew)


def test_a_block_means_something_else_once_another_has_changed_the_table() -> None:
    wire = Wire()
    for i, path in enumerate((b"/echo", b"/none")):
        for j, ignored in enumerate((b"", _literal(b"x"), b"", _literal(b"y"))):
            first = b"\x83\x86\x44\x05" + path
            _send(wire, 8 * i + 2 * j + 1, b"\x83\x86\xbe" + ignored if j else first)
            assert dict(wire.application.opened[-1].headers)[b":path"] == path


@pytest.mark.parametrize("value", [b"a\nb", b"a\rb", b"a\0b"])
def test_a_malformed_value_of_an_ignored_field_is_seen(value: bytes) -> None:
    wire = Wire()
    for stream_id, text in ((1, b"good"), (3, b"good"), (5, value)):
        _send(wire, stream_id, b"\x83\x86\x04\x05/echo" + _literal(text))
    assert wire.application.opened[-1].headers[-1] == (b"trace", value)


@pytest.mark.parametrize("late", [b"\x83", b"\x04\x05/echo"])
def test_a_pseudo_header_behind_an_ignored_field_is_seen(late: bytes) -> None:
    wire = Wire()
    good = b"\x86\x83\x04\x05/echo"
    for i in range(4):
        _send(wire, 4 * i + 1, good + _literal(b"%d" % i))
        _send(wire, 4 * i + 3, good.replace(late, b"") + _literal(b"%d" % i) + late)
        assert wire.application.opened[-1].headers[-1][0][:1] == b":"


def test_ignored_fields_count_as_others_do() -> None:
    one = len("trace") + 60 + 32
    base = sum(len(n) + len(v) + 32 for n, v in [(":method", "POST"), (":scheme", "http"), (":path", "/echo")])
    for count, too_large in ((10, False), (11, True)):
        wire = Wire(Http2Limits(max_header_list_bytes=base + 10 * one))
        for stream_id in (1, 3, 5):
            _send(wire, stream_id, b"\x83\x86\x04\x05/echo" + _literal(b"v" * 60))
        _send(wire, 7, b"\x83\x86\x04\x05/echo" + _literal(b"v" * 60) * count)
        assert wire.application.opened[-1].too_large == too_large
    wire = Wire(Http2Limits(max_header_count=20))
    assert _send(wire, 1, _BASE + _literal(b"") * 17) is None
    assert _send(wire, 3, b"\x83\x86\xbe" + _literal(b"") * 18) == frames.ENHANCE_YOUR_CALM


def _cpu_us(blocks: list[bytes]) -> float:
    wire = Wire(Http2Limits(max_resets_burst=1 << 30))
    sent = [frames.frame(frames.HEADERS, 5, 2 * i + 1, block) for i, block in enumerate(blocks)]
    for each in sent[:100]:
        wire.send(each)
    begun_s = time.thread_time()
    for each in sent[100:]:
        wire.send(each)
    return (time.thread_time() - begun_s) * 1e6 / (len(sent) - 100)


def test_a_changing_field_costs_little_more_than_a_constant_one() -> None:
    encoder = Encoder()
    first = encoder.encode(HEADERS)
    base = encoder.encode(HEADERS)
    constant, changing = [], []
    for _ in range(5):
        constant.append(_cpu_us([first, *[base + _literal(b"0" * 55)] * 2000]))
        changing.append(_cpu_us([first, *[base + _literal(b"%055d" % i) for i in range(2000)]]))
    assert min(changing) - min(constant) <= 3.0


@pytest.mark.parametrize("huffman", [True, False])
@pytest.mark.parametrize("sensitive", [True, False])
def test_a_watched_field_counts_with_the_values_that_are_heeded(huffman: bool, sensitive: bool) -> None:
    wire = Wire()
    values = ["a", "b-heeded", "c", "d-heeded", "e", "d-heeded"]
    for i, value in enumerate(values):
        block = wire.encoder.encode([*HEADERS, ("traceparent", value, sensitive)], huffman=huffman)  # type: ignore[list-item]
        _send(wire, 2 * i + 1, block)
    opened = [dict(head.headers)[b"traceparent"].decode() for head in wire.application.opened]
    assert [value for value in opened if value.endswith("-heeded")] == ["b-heeded", "d-heeded", "d-heeded"]
    assert [value for value in opened if not value.endswith("-heeded")] == ["a"] * 3, "whose heads are one"


def test_what_a_long_name_looks_like_inside_is_no_field() -> None:
    """In a name of more than 126 bytes its own end seems to stand, and an ignored field to which all else belongs."""
    wire = Wire()
    _send(wire, 1, _BASE)
    for i, value in enumerate((b"one", b"two")):
        other = b"\x10" + _literal(value, b"other")[1:]
        name = b"n" * 126 + b"\x01v" + b"\x00\x05trace" + bytes([64 + 2 + len(other)]) + b"y" * 64
        _send(wire, 2 * i + 3, b"\x83\x86\xbe\x00\x7f" + bytes([len(name) - 127]) + name + b"\x01v" + other)
    assert [dict(head.headers)[b"other"] for head in wire.application.opened[1:]] == [b"one", b"two"]
