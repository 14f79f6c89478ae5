import gzip
import os
import time
import zlib
from collections.abc import Callable

import pytest

from app.grpc.compression import Inflation
from app.http.content_coding import choose, compress, decompress
from protocol.errors import InvalidArgument

MIB = 1 << 20

PREFERENCES = {
    "nothing": (b"", b""),
    "gzip": (b"gzip", b"gzip"),
    "deflate": (b"deflate", b"deflate"),
    "both, the first wins": (b"gzip, deflate", b"gzip"),
    "both, the other way round": (b"deflate,gzip", b"deflate"),
    "q-values decide": (b"gzip;q=0.4, deflate;q=0.8", b"deflate"),
    "spaces around q": (b"gzip; q=0.4 , deflate ; q = 0.8", b"deflate"),
    "refused": (b"gzip;q=0", b""),
    "identity liked better": (b"identity, gzip;q=0.5", b""),
    "identity liked as much": (b"identity, gzip", b"gzip"),
    "identity liked less": (b"identity;q=0.5, gzip;q=0.9", b"gzip"),
    "only others": (b"br, zstd", b""),
    "what aiohttp sends": (b"gzip, deflate, br", b"gzip"),
    "any": (b"*", b""),
    "upper case": (b"GZIP", b"gzip"),
    "malformed q": (b"gzip;q=high, deflate", b"deflate"),
    "several parameters": (b"gzip;x=1;q=1, deflate;q=0.1", b"deflate"),
}


@pytest.mark.parametrize(("header", "coding"), PREFERENCES.values(), ids=PREFERENCES.keys())
def test_response_coding_follows_accept_encoding(header: bytes, coding: bytes) -> None:
    assert choose(header) == coding


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
@pytest.mark.parametrize("body", [b"", b"x", b"0123456789" * 1000], ids=["empty", "one", "many"])
def test_what_was_compressed_comes_back(coding: bytes, body: bytes) -> None:
    assert decompress(compress([body[:3], memoryview(body[3:])], coding), coding, MIB, 100) == body


def test_clients_own_compressors_are_understood() -> None:
    assert decompress(gzip.compress(b"body"), b"gzip", MIB, 100) == b"body"
    assert decompress(zlib.compress(b"body"), b"deflate", MIB, 100) == b"body"


good = gzip.compress(b"0123456789" * 50)
BAD = {
    "not compressed": (b"{}", b"gzip", "invalid data"),
    "the other coding": (zlib.compress(b"body"), b"gzip", "invalid data"),
    "empty": (b"", b"gzip", "unexpected end of data"),
    "truncated": (good[:-6], b"gzip", "unexpected end of data"),
    "bad checksum": (good[:-8] + bytes(8), b"gzip", "invalid data"),
    "something behind the end": (good + b"x", b"gzip", "unexpected data after its end"),
    "two members": (good + good, b"gzip", "unexpected data after its end"),
}


@pytest.mark.parametrize(("body", "coding", "reason"), BAD.values(), ids=BAD.keys())
def test_damaged_body_is_refused(body: bytes, coding: bytes, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=f"failed to decompress the request body: {reason}"):
        decompress(body, coding, MIB, 100)


def test_size_limit_is_inclusive() -> None:
    packed = gzip.compress(bytes(1000))
    assert len(decompress(packed, b"gzip", 1000, 100)) == 1000
    with pytest.raises(InvalidArgument, match="exceeds the maximum allowed input size of 999 bytes"):
        decompress(packed, b"gzip", 999, 100)


def test_ratio_counts_beyond_the_first_mebibyte() -> None:
    assert len(decompress(gzip.compress(bytes(MIB)), b"gzip", 64 * MIB, 100)) == MIB
    with pytest.raises(InvalidArgument, match="more than 100 times as large"):
        decompress(gzip.compress(bytes(2 * MIB)), b"gzip", 64 * MIB, 100)
    assert len(decompress(gzip.compress(bytes(2 * MIB)), b"gzip", 64 * MIB, 2000)) == 2 * MIB


@pytest.mark.parametrize(
    "unpack",
    [
        lambda packed: decompress(packed, b"gzip", 64 * MIB, 100),
        lambda packed: Inflation(b"gzip", packed, 64 * MIB, 100).complete(),
    ],
    ids=["HTTP", "gRPC"],
)
def test_time_does_not_grow_with_the_square_of_the_size(unpack: Callable[[bytes], object]) -> None:
    """It is a few times that of a copy; to copy what there is with each of the parts would take hundreds of it."""

    def cost_s(call: Callable[[], object]) -> float:
        began_s = time.thread_time()
        assert call()
        return time.thread_time() - began_s

    data = os.urandom(48 * MIB)
    packed = gzip.compress(data, 1)
    costs_s, copies_s = zip(
        *((cost_s(lambda: unpack(packed)), cost_s(lambda: data[1:])) for _ in range(3)), strict=True
    )
    assert min(costs_s) < 40 * min(copies_s)


@pytest.mark.parametrize("size", [1 << 18, (1 << 18) + 1, 1 << 20])
@pytest.mark.parametrize("behind", [b"", b"x"])
def test_what_is_longer_than_a_slice_comes_back_and_ends_where_it_must(size: int, behind: bytes) -> None:
    body = os.urandom(size)
    for packed in (gzip.compress(body, 1), gzip.compress(body, 0)):
        if behind:
            with pytest.raises(InvalidArgument, match="unexpected data after its end"):
                decompress(packed + behind, b"gzip", 2 * MIB, 100)
        else:
            assert decompress(packed, b"gzip", 2 * MIB, 100) == body
            with pytest.raises(InvalidArgument, match="unexpected end of data"):
                decompress(packed[:-1], b"gzip", 2 * MIB, 100)
