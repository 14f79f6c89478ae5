"""A codec that knows a request reads the next ones as one that knows none does, whatever is in them."""

import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tritonclient.grpc.service_pb2 import ModelInferRequest

from protocol.datatypes import BY_NAME
from protocol.errors import ServingError
from protocol.grpc_infer import GrpcInferCodec
from protocol.http_infer import HttpInferCodec
from protocol.infer import InferRequest
from protocol.json_values import cut_values
from protocol.limits import Limits
from protocol.signature import Signature, TensorSpec
from tests.protocol.test_codec_properties import ignore

FORGETFUL = Limits(header_cache_key_bytes=0)
"""With which nothing is known."""


def spec(name: str, datatype: str, *dims: int) -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, BY_NAME[datatype], dims, dims, optional=True)}


MODEL = Signature(
    "m",
    8,
    spec("data", "FP32", -1)
    | spec("N", "INT64", 2)
    | spec("S", "BYTES", -1)
    | spec("B", "BOOL", -1)
    | spec("D", "FP64", -1),
    spec("Y", "FP32", -1) | spec("Z", "FP32", -1),
)


def known(codec: HttpInferCodec | GrpcInferCodec) -> int:
    return len(codec._cache.entries)


def read(codec: HttpInferCodec | GrpcInferCodec, body: bytes, json_length: int | None = None) -> tuple[Any, ...]:
    try:
        request = codec.decode(body, json_length, ignore)
    except ServingError as error:
        return type(error), error.message
    return told(request)


def assert_read_alike(kind: type[HttpInferCodec] | type[GrpcInferCodec], body: bytes, mutant: bytes) -> None:
    codec = kind(MODEL, "1")
    read(codec, body)
    for each in (mutant, body, mutant):
        assert read(codec, each) == read(kind(MODEL, "1", FORGETFUL), each)


def told(request: InferRequest) -> tuple[Any, ...]:
    inputs = {name: (array.dtype, array.shape, array.tolist()) for name, array in request.inputs.items()}
    about = (request.id, request.rows, request.parameters, request.priority, request.timeout_us, request.flags)
    return *about, request.sequence_id, request.outputs, repr(inputs)


def tensor(name: str, datatype: str, shape: list[int], data: object, **more: object) -> dict[str, object]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data, **more}


FLAT = tensor("data", "FP32", [1, 3], [1.5, -2, 3e38])
NESTED = tensor("N", "INT64", [2, 2], [[1, 2], [3, 4]])
TEXT = tensor("S", "BYTES", [1, 3], ['a "quoted" ]', "", '"data":['])
ALL = [FLAT | {"shape": [2, 1], "data": [1, 2]}, NESTED, TEXT | {"shape": [2, 1], "data": ["[", "]\\"]}]
BOOL = tensor("B", "BOOL", [1, 2], [True, False])
LAST = {"data": [5, 6], "name": "N", "shape": [1, 2], "datatype": "INT64"}
OUTPUTS = [{"name": "Y", "parameters": {"binary_data": True}}, {"name": "Z"}]
DOCUMENTS: list[dict[str, object]] = [
    {"inputs": [FLAT]},
    {"id": "7", "inputs": [FLAT], "outputs": OUTPUTS},
    {"inputs": [NESTED], "id": "late", "parameters": {"priority": 3, "data": "x", "sequence_id": 5}},
    {"inputs": [TEXT]},
    {"inputs": ALL, "outputs": OUTPUTS},
    {"inputs": [BOOL, LAST]},
    {"inputs": [tensor("data", "FP32", [1, 0], [])]},
]
SEPARATORS = ((",", ":"), (", ", ": "), (" ,\n ", " : "))
REQUESTS = [json.dumps(each, separators=marks).encode() for each in DOCUMENTS for marks in SEPARATORS]
WORDS = (
    *(b'"data":[', b'"data" : [1]', b'"data":[]', b"[", b"]", b'"', b"\\", b'\\"', b"{", b"}", b",", b":", b"1", b"-"),
    *(b"null", b"true", b"NaN", b"\\u0064", b'"id":"x",', b"\xef\xbb\xbf", b"\xff", b" ", b"1e400", b"9" * 25),
    *(b'"inputs":[', b'"x":{"data":[1]},', b'"parameters":{"data":[]},', b'"d\\u0061ta":[1],'),
)


@pytest.mark.parametrize("body", REQUESTS, ids=range(len(REQUESTS)))
def test_a_request_with_its_values_in_the_json_is_known_when_it_comes_again(body: bytes) -> None:
    codec = HttpInferCodec(MODEL, "1")
    assert read(codec, body) == read(codec, body) == read(HttpInferCodec(MODEL, "1", FORGETFUL), body)
    assert known(codec) == 1
    assert read(codec, body.replace(b"3e+38", b"4.25")) == read(
        HttpInferCodec(MODEL, "1", FORGETFUL), body.replace(b"3e+38", b"4.25")
    )
    assert known(codec) == 1


@st.composite
def mutants(draw: st.DrawFn, bodies: list[bytes], words: tuple[bytes, ...]) -> tuple[bytes, bytes]:
    body = mutated = draw(st.sampled_from(bodies))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(mutated)))
        end = draw(st.integers(at, min(len(mutated), at + 12)))
        middle = draw(st.one_of(st.sampled_from(words), st.binary(max_size=4)))
        mutated = mutated[:at] + middle + mutated[end:]
    return body, mutated


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutants(REQUESTS, WORDS))
@example((REQUESTS[0], REQUESTS[0].replace(b"[1.5", b'["')))
@example((b'{"x":{"data":[]},"inputs":[{"d\\u0061ta":[],"name":"data","datatype":"FP32","shape":[1,0]}]}', REQUESTS[0]))
def test_what_is_like_a_known_request_is_read_as_if_it_were_not_known(pair: tuple[bytes, bytes]) -> None:
    assert_read_alike(HttpInferCodec, *pair)


def test_values_elsewhere_are_never_taken_for_an_inputs() -> None:
    codec = HttpInferCodec(MODEL, "1")
    hidden = b'{"x":{"data":%s},"inputs":[{"d\\u0061ta":[%s],"name":"data","datatype":"FP32","shape":[1,1]}]}'
    twice = b'{"inputs":[{"data":[%s],"data":[%s],"name":"data","datatype":"FP32","shape":[1,1]}]}'
    for text, values in (
        (hidden, (b"[1]", b"2")),
        (hidden, (b"[3]", b"4")),
        (twice, (b"1", b"2")),
        (twice, (b"3", b"4")),
    ):
        body = text % values
        assert read(codec, body) == read(HttpInferCodec(MODEL, "1", FORGETFUL), body)
    assert codec.decode(hidden % (b"[3]", b"4"), None, ignore).inputs["data"].tolist() == [[4.0]]


def message(*inputs: tuple[str, str, list[int], str, list[Any]], **more: Any) -> bytes:
    built = ModelInferRequest(model_name="m", **more)
    for name, datatype, shape, field, values in inputs:
        getattr(built.inputs.add(name=name, datatype=datatype, shape=shape).contents, field).extend(values)
    return built.SerializeToString()


FLOATS = ("data", "FP32", [1, 3], "fp32_contents", [1.5, -2.0, float("nan")])
DOUBLES = ("D", "FP64", [1, 2], "fp64_contents", [0.1, 1e300])
INTEGERS = ("N", "INT64", [1, 2], "int64_contents", [7, -1])
TYPED = [
    message(FLOATS),
    message(FLOATS, id="7", model_version="1"),
    message(FLOATS, DOUBLES, outputs=[{"name": "Y"}], parameters={"priority": {"uint64_param": 3}}),
]
UNTYPED = [
    message(FLOATS, INTEGERS),
    message(("data", "FP32", [1, 0], "fp32_contents", [])),
    message(FLOATS, parameters={"triton_enable_empty_final_response": {"bool_param": True}}),
]
FIELDS = (
    *(
        b"\x0a",
        b"\x0a\x01m",
        b"\x12\x011",
        b"\x1a\x00",
        b"\x1a\x02id",
        b"\x22",
        b"\x2a",
        b"\x2a\x00",
        b"\x32",
        b"\x32\x00",
    ),
    *(
        b"\x3a",
        b"\x3a\x04\x00\x00\x80\x3f",
        b"\x35\x00\x00\x80\x3f",
        b"\x0a\x04data",
        b"\x0a\x01D",
        b"\xff" * 9 + b"\x01",
    ),
)


@pytest.mark.parametrize("body", TYPED, ids=range(len(TYPED)))
def test_a_message_with_typed_floats_is_known_when_it_comes_again(body: bytes) -> None:
    codec, forgetful = GrpcInferCodec(MODEL, "1"), GrpcInferCodec(MODEL, "1", FORGETFUL)
    other = body.replace(b"\x00\x00\xc0\x3f", b"\x00\x00\x80\x7f").replace(b"\x1a\x017", b"\x1a\x0242")
    assert other != body
    for each in (body, body, other, other, bytes(memoryview(other))):
        assert read(codec, each) == read(codec, memoryview(each)) == read(forgetful, each)
    assert [len(each._typed.by_size) for each in (codec, forgetful)] == [1, 0]
    assert next(iter(codec._typed.by_size.values())).misses == 0


def test_typed_floats_are_read_where_they_come_unless_they_are_very_many() -> None:
    codec = GrpcInferCodec(Signature("m", 8, spec("data", "FP32", -1), {}), "1")
    for count, long in ((10_000, False), (2_000_000, True)):
        assert codec.reads_long(message(("data", "FP32", [1, count], "fp32_contents", [1.0] * count))) is long


@pytest.mark.parametrize("body", UNTYPED, ids=range(len(UNTYPED)))
def test_other_messages_are_not_kept(body: bytes) -> None:
    codec, forgetful = GrpcInferCodec(MODEL, "1"), GrpcInferCodec(MODEL, "1", FORGETFUL)
    assert read(codec, body) == read(codec, body) == read(forgetful, body)
    assert not codec._typed.by_size


def test_a_message_makes_room_for_others_of_its_length_when_it_no_longer_comes() -> None:
    codec = GrpcInferCodec(MODEL, "1")
    first, second = (message(FLOATS, parameters={"sequence_id": {"int64_param": each}}) for each in (1, 2))
    read(codec, first)
    kept = codec._typed.by_size[len(first) - 3]
    for _ in range(100):
        assert read(codec, second)[6] == 2
        if codec._typed.by_size[len(first) - 3] is not kept:
            break
    else:
        pytest.fail("the first message stays for ever")
    assert read(codec, first)[6] == 1


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutants([*TYPED, *UNTYPED], FIELDS))
def test_what_is_like_a_known_message_is_read_as_if_it_were_not_known(pair: tuple[bytes, bytes]) -> None:
    assert_read_alike(GrpcInferCodec, *pair)


def test_values_are_cut_out_of_strings_and_nested_arrays_whole() -> None:
    text = b'{"name":"data","data":[[1,2],["]","\\\\"]] ,"shape":[]} "data" : [ ]"data":5'
    rest, arrays = cut_values(text)
    assert arrays == [b'[[1,2],["]","\\\\"]]', b"[ ]"]
    assert rest == b'{"name":"data","data":[] ,"shape":[]} "data" : []"data":5'
    assert cut_values(b'"data":[[1]') == (b'"data":[[1]', [])


@pytest.mark.parametrize(
    "body", [b'"data":["' + b'\\"' * 30000, b'"data":[' * 8000, b'"data":["]' * 6000, b'"data" ' * 9000]
)
def test_a_hostile_text_is_cut_in_one_pass(body: bytes) -> None:
    began_s = time.perf_counter()
    cut_values(body)
    assert time.perf_counter() - began_s < 1.0
