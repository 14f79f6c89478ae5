import struct

import numpy as np
import pytest

from protocol.bytes_tensor import as_bytes, decode_bytes, encode_bytes, object_array
from protocol.errors import Internal, InvalidArgument
from protocol.limits import Limits


def wire(*elements: bytes) -> bytes:
    return b"".join([struct.pack("<I", len(element)) + element for element in elements])


@pytest.mark.parametrize(
    "elements",
    [
        [],
        [b""],
        [b"a", b"", b"ccc"],
        [b"abcd"] * 100,
        [b"ab\x00\x00"] * 16,
        [b"\x00"] * 16,
        [b""] * 100,
        [bytes([i]) * (i % 7) for i in range(100)],
    ],
    ids=["none", "empty", "three", "even", "even-with-nul", "only-nul", "all-empty", "uneven"],
)
def test_elements_survive_the_wire(elements: list[bytes]) -> None:
    array = object_array(elements, (len(elements),))
    content = encode_bytes(array)
    assert content == wire(*elements)
    for buffer in (b"pad" + content, memoryview(b"pad" + content)):
        decoded = decode_bytes(buffer, 3, len(content), (len(elements),), "I", "m")
        assert decoded.dtype == object
        assert decoded.tolist() == elements
        assert all(type(element) is bytes for element in decoded)


def test_shape_is_row_major() -> None:
    content = wire(b"a", b"b", b"c", b"d", b"e", b"f")
    array = decode_bytes(content, 0, len(content), (2, 3), "I", "m")
    assert array[1, 0] == b"d"
    assert encode_bytes(array.T) == wire(b"a", b"d", b"b", b"e", b"c", b"f")


def test_text_arrays_are_sent_as_utf_8() -> None:
    assert encode_bytes(np.array(["ż", "b"])) == wire("ż".encode(), b"b")
    assert encode_bytes(np.array([b"x", b"yz"])) == wire(b"x", b"yz")
    assert encode_bytes(object_array(["ż", b"b", bytearray(b"c")], (3,))) == wire("ż".encode(), b"b", b"c")


def test_other_objects_are_the_models_fault() -> None:
    with pytest.raises(Internal, match="neither bytes nor str but int"):
        as_bytes(object_array([1], (1,)))


def test_lists_do_not_become_dimensions() -> None:
    assert object_array([b"ab", b"cd"], (2, 1)).shape == (2, 1)


def test_element_length_is_bounded() -> None:
    limits = Limits(max_bytes_element_bytes=3)
    assert decode_bytes(wire(b"abc"), 0, 7, (1,), "I", "m", limits=limits).tolist() == [b"abc"]
    with pytest.raises(InvalidArgument, match=r"string element of 4 bytes.* is longer than 3 bytes"):
        decode_bytes(wire(b"abcd"), 0, 8, (1,), "I", "m", limits=limits)


def test_even_elements_are_bounded_too() -> None:
    content = wire(*[b"abcd"] * 50)
    with pytest.raises(InvalidArgument, match="is longer than 3 bytes"):
        decode_bytes(content, 0, len(content), (50,), "I", "m", limits=Limits(max_bytes_element_bytes=3))


def test_messages_name_the_request() -> None:
    with pytest.raises(InvalidArgument, match=r"^\[request id: r1\] incomplete string length indicator"):
        decode_bytes(b"\x00", 0, 1, (1,), "I", "m", "r1")
