import pytest

from app.trace.trace_parent import TraceParent, find_parent, read_parent

ID = b"0af7651916cd43dd8448eb211c80319c"
SPAN = b"b7ad6b7169203331"
PARENT = TraceParent(int(ID, 16), int(SPAN, 16))
NONE = {
    "not sampled": b"00-%b-%b-00" % (ID, SPAN),
    "no trace": b"00-%b-%b-01" % (b"0" * 32, SPAN),
    "no span": b"00-%b-%b-01" % (ID, b"0" * 16),
    "version ff": b"ff-%b-%b-01" % (ID, SPAN),
    "upper case": b"00-%b-%b-01" % (ID.upper(), SPAN),
    "short": b"00-%b-%b-01" % (ID[1:], SPAN),
    "cut": b"00-%b-%b" % (ID, SPAN),
    "junk": b"junk",
    "empty": b"",
}


@pytest.mark.parametrize("flags", [b"01", b"03", b"ff"])
def test_a_sampled_parent_is_read(flags: bytes) -> None:
    assert read_parent(b"00-%b-%b-%b" % (ID, SPAN, flags)) == PARENT
    assert read_parent(b" cc-%b-%b-%b-later.version\t" % (ID, SPAN, flags)) == PARENT


@pytest.mark.parametrize("value", NONE.values(), ids=NONE)
def test_anything_else_is_none(value: bytes) -> None:
    assert read_parent(value) is None
    assert find_parent(b"POST / HTTP/1.1\r\nHost: x\r\ntraceparent: %b\r\n\r\n" % value) is None


def test_it_is_found_among_headers() -> None:
    line = b"TraceParent:00-%b-%b-01\r\n" % (ID, SPAN)
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n%bContent-Length: 2\r\n\r\n"
    assert find_parent(head % line) == PARENT
    assert find_parent(head % b"") is None
    assert find_parent(head % b"x-traceparent: 00-%b-%b-01\r\n" % (ID, SPAN)) is None
    assert find_parent(head % (line + line)) is None, "two are none"
