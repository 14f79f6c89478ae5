"""Our decoder against the `hpack` package: the same fields from the same blocks, whatever the table went through."""

import pytest
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given, settings
from hypothesis import strategies as st

from app.http2.frames import COMPRESSION_ERROR, Http2Error
from app.http2.hpack_decoder import HpackDecoder
from app.http2.huffman import check_value, decode_huffman

_encoder = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
_NAMES = st.one_of(
    st.sampled_from([b":path", b":method", b"te", b"user-agent", b"traceparent", b"x-request-id", b"content-type"]),
    st.binary(min_size=1, max_size=40),
)
_VALUES = st.one_of(st.sampled_from([b"", b"POST", b"trailers"]), st.binary(max_size=300))
_FIELDS = st.lists(st.tuples(_NAMES, _VALUES, st.booleans()), max_size=12)
_BLOCKS = st.lists(st.tuples(_FIELDS, st.booleans(), st.none() | st.integers(0, 4096)), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(_BLOCKS)
def test_decodes_what_any_encoder_writes(
    blocks: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None]],
) -> None:
    encoder, ours, theirs = Encoder(), HpackDecoder(1 << 20, 256), Decoder(1 << 20)
    for fields, huffman, table_size in blocks:
        if table_size is not None:
            encoder.header_table_size = table_size
        block = encoder.encode(fields, huffman=huffman)
        assert ours.decode(block) == [tuple(field) for field in theirs.decode(block, raw=True)]


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode).map(_encoder.encode)))
def test_checks_a_value_as_decoding_it_would(data: bytes) -> None:
    try:
        good = not {0, 10, 13} & set(decode_huffman(data))
    except ValueError:
        good = False
    if good:
        check_value(data)
    else:
        with pytest.raises(ValueError, match=r"."):
            check_value(data)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4))
def test_takes_and_refuses_random_bytes_as_the_package_does(blocks: list[bytes]) -> None:
    ours, theirs = HpackDecoder(1 << 20, 256), Decoder(1 << 20)
    for block in blocks:
        try:
            expected = [tuple(field) for field in theirs.decode(block, raw=True)]
        except (HPACKError, IndexError):
            with pytest.raises(Http2Error) as raised:
                ours.decode(block)
            assert raised.value.code == COMPRESSION_ERROR
            return
        assert ours.decode(block) == expected


def test_the_table_grows_no_larger_than_was_allowed() -> None:
    decoder = HpackDecoder(1 << 20, 256)
    for i in range(100):
        decoder.decode(b"\x40\x01n\x64%0100d" % i)  # 1 + 100 + 32 bytes in the table
    kept = 4096 // 133
    oldest = 61 + kept
    assert decoder.decode(bytes((0x80 | oldest,))) == [(b"n", b"%0100d" % (100 - kept))]
    for block in (bytes((0x80 | oldest + 1,)), b"\x3f\xe2\x1f"):  # which asks for a table of 4097 bytes
        with pytest.raises(Http2Error) as raised:
            decoder.decode(block)
        assert raised.value.code == COMPRESSION_ERROR
    assert decoder.decode(b"\x3f\xe1\x1f") == []
