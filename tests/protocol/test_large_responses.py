"""Large JSON is written in pieces, between which other threads run."""

import functools
import json
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from protocol.datatypes import BY_NAME
from protocol.http_infer import HttpInferCodec
from protocol.infer import Array, InferRequest, InferResponse
from protocol.signature import Signature, TensorSpec
from tests.holds import assert_holds_are_short

LONG = b"\xc5\xbc" * 500_000


def codec_and_request(kind: str) -> tuple[HttpInferCodec, InferRequest]:
    spec = TensorSpec("X", BY_NAME[kind], (-1,), (-1,))
    codec = HttpInferCodec(Signature("echo", 0, {"X": spec}, {"X": spec, "Y": spec}), "1")
    tensor = {"name": "X", "datatype": kind, "shape": [1], "data": ["a" if kind == "BYTES" else 1]}
    return codec, codec.decode(json.dumps({"id": "7", "inputs": [tensor]}).encode(), None, lambda request, result: None)


LARGE: dict[str, tuple[str, Callable[[], Array]]] = {
    "numbers": ("FP32", lambda: np.random.default_rng(1).random(8 << 20, np.float32)),
    "short strings": ("BYTES", lambda: np.array([b"hello world"] * (4 << 20), object)),
    "long strings": ("BYTES", lambda: np.array([LONG] * 60, object)),
    "one string": ("BYTES", lambda: np.array([LONG * 40], object)),
    "one string that is no text": ("BYTES", lambda: np.array([LONG * 40 + b"\xff"], object)),
    "one string of characters": ("BYTES", lambda: np.array([(LONG * 40).decode()], object)),
    "a long string behind a short one": ("BYTES", lambda: np.array([b"a", LONG * 40], object)),
    "numbers without a value": ("FP32", lambda: np.full(4 << 20, np.nan, np.float32)),
}


@pytest.mark.parametrize("kind_and_make", LARGE.values(), ids=LARGE.keys())
def test_no_other_thread_waits_for_long(kind_and_make: tuple[str, Callable[[], Array]]) -> None:
    kind, make = kind_and_make
    codec, request = codec_and_request(kind)
    response = InferResponse({"X": make()})
    assert_holds_are_short(lambda: codec.encode(request, response))


def strings(sizes: Sequence[int]) -> list[bytes]:
    return [string(size) for size in sizes]


@functools.cache
def string(size: int) -> bytes:
    return bytes(random.Random(size).choices(b'abc"\\\n\xc5\xbc\xff', k=size))


ARRAYS: dict[str, tuple[str, Callable[[], Array]]] = {
    "as many numbers as a piece has": ("FP32", lambda: np.arange(1 << 15, dtype=np.float32)),
    "one more": ("INT32", lambda: np.arange((1 << 15) + 1, dtype=np.int32)),
    "many numbers": ("INT64", lambda: np.arange(1_000_003, dtype=np.int64)),
    "no number": ("FP32", lambda: np.empty(0, np.float32)),
    "no string": ("BYTES", lambda: np.empty(0, object)),
    "one long string": ("BYTES", lambda: np.array([b"x" * (3 << 20)], object)),
    "a long string that is no text": ("BYTES", lambda: np.array(strings([3 << 20]), object)),
    "a long string between short ones": (
        "BYTES",
        lambda: np.array(strings([*[9] * 50_000, 5 << 20, *[9] * 50_000]), object),
    ),
    **{
        f"wide characters from byte {at} on": (
            "BYTES",
            lambda at=at: np.array([b"x" * at + "𝄞".encode() * (1 << 19)], object),
        )
        for at in range(4)
    },
    "strings that grow": ("BYTES", lambda: np.array(strings([*[1] * 40_000, *[50_000] * 60]), object)),
    "strings that shrink": ("BYTES", lambda: np.array(strings([2 << 20, 2 << 20, *[40] * 40_000]), object)),
}


@pytest.mark.parametrize("kind_and_make", ARRAYS.values(), ids=ARRAYS.keys())
def test_pieces_are_one_document(kind_and_make: tuple[str, Callable[[], Array]]) -> None:
    kind, make = kind_and_make
    array = make()
    codec, request = codec_and_request(kind)
    json_length, parts = codec.encode(request, InferResponse({"X": array, "Y": array[:1]}))
    assert json_length is None
    document = json.loads(b"".join(parts).decode("utf-8", "surrogateescape"))
    assert document["id"] == "7"
    for output, whole in zip(document["outputs"], (array, array[:1]), strict=True):
        data = output["data"]
        given = [value.encode("utf-8", "surrogateescape") for value in data] if kind == "BYTES" else data
        assert given == whole.tolist()
        assert output["shape"] == [whole.size]


def test_the_length_of_large_json_before_binary_is_that_of_its_pieces() -> None:
    codec, _ = codec_and_request("FP32")
    body = (
        b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[1]}],'
        b'"outputs":[{"name":"X"},{"name":"Y","parameters":{"binary_data":true}}]}'
    )
    request = codec.decode(body, None, lambda request, result: None)
    values = np.arange(300_000, dtype=np.float32)
    json_length, parts = codec.encode(request, InferResponse({"X": values, "Y": values}))
    sent = b"".join(parts)
    assert json_length is not None
    assert json.loads(sent[:json_length])["outputs"][0]["data"] == values.tolist()
    assert sent[json_length:] == values.tobytes()


def test_a_long_string_is_written_beside_the_loop() -> None:
    codec, request = codec_and_request("BYTES")
    assert not codec.takes_long(request, InferResponse({"X": np.array([b"x", "y", None], object)}))
    assert not codec.takes_long(request, InferResponse({"X": np.array([LONG], object)}))
    assert codec.takes_long(request, InferResponse({"X": np.array([b"x", LONG * 40], object)}))
