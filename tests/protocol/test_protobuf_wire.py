import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidArgument
from protocol.protobuf_wire import (
    FIXED32,
    FIXED64,
    LENGTH_DELIMITED,
    MAX_FIELDS,
    VARINT,
    field_head,
    fields,
    read_varint,
    varint,
)


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_varints_are_read_as_they_are_written(value: int, before: bytes) -> None:
    encoded = varint(value)
    assert read_varint(before + encoded + b"x", len(before)) == (value, len(before) + len(encoded))


@pytest.mark.parametrize(("value", "encoded"), [(0, b"\x00"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02")])
def test_varints_have_the_lowest_bits_first(value: int, encoded: bytes) -> None:
    assert varint(value) == encoded


@pytest.mark.parametrize("encoded", [b"", b"\x80", b"\xff" * 10, b"\x80" * 11 + b"\x01"])
def test_varints_have_an_end(encoded: bytes) -> None:
    with pytest.raises(InvalidArgument):
        read_varint(encoded, 0)


def test_fields_of_every_wire_type() -> None:
    message = b"\x08\x96\x01" + b"\x12\x02ab" + b"\x19" + bytes(8) + b"\x25" + bytes(4)
    assert list(fields(message)) == [
        (1, VARINT, 0, 150, 3),
        (2, LENGTH_DELIMITED, 3, 5, 7),
        (3, FIXED64, 7, 8, 16),
        (4, FIXED32, 16, 17, 21),
    ]


def test_a_walk_has_an_end() -> None:
    assert len(list(fields(b"\x3a\x00" * MAX_FIELDS))) == MAX_FIELDS
    with pytest.raises(InvalidArgument, match=f"request has more than {MAX_FIELDS} fields"):
        list(fields(b"\x3a\x00" * (MAX_FIELDS + 1)))


@given(st.integers(1, 2**20), st.binary(max_size=300))
def test_a_head_stands_before_its_value(number: int, value: bytes) -> None:
    head = field_head(number, len(value))
    assert list(fields(head + value)) == [(number, LENGTH_DELIMITED, 0, len(head), len(head) + len(value))]
