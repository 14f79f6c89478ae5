"""Properties of the codecs: what goes in comes out, and no body does worse than be refused."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from protocol.bytes_tensor import object_array
from protocol.datatypes import BY_NAME, DataType
from protocol.errors import ServingError
from protocol.http_client_codec import HttpClientCodec
from protocol.http_infer import HttpInferCodec
from protocol.infer import Array, InferRequest, InferResponse
from protocol.signature import Signature, TensorSpec
from tests.protocol.cases import CASES
from tests.protocol.cases.models import SIGNATURES, answer

DATATYPES = sorted(BY_NAME)
IN_JSON = sorted(set(DATATYPES) - {"FP16", "BF16"})


def ignore(request: InferRequest, outcome: InferResponse | ServingError) -> None:
    pass


def shapes(rank: int) -> st.SearchStrategy[tuple[int, ...]]:
    return arrays.array_shapes(min_dims=rank, max_dims=rank, min_side=0, max_side=5)


@st.composite
def tensors(draw: st.DrawFn, datatype: DataType, rank: int, text: bool = False) -> Array:
    shape = draw(shapes(rank))
    if datatype.name == "BYTES":
        count = int(np.prod(shape))
        element = st.text(max_size=20).map(str.encode) if text else st.binary(max_size=20)
        return object_array(draw(st.lists(element, min_size=count, max_size=count)), shape)
    return draw(arrays.arrays(datatype.numpy, shape))


def signature(datatype: DataType, rank: int) -> Signature:
    dims = (-1,) * rank
    return Signature("m", 0, {"I": TensorSpec("I", datatype, dims, dims)}, {"O": TensorSpec("O", datatype, dims, dims)})


def assert_same(got: Array, sent: Array) -> None:
    assert got.shape == sent.shape
    assert got.dtype == sent.dtype
    if sent.dtype.kind == "O":
        assert got.tolist() == sent.tolist()
    else:
        np.testing.assert_array_equal(got, sent)


@pytest.mark.parametrize("name", DATATYPES)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), rank=st.integers(0, 4), id=st.text(max_size=5))
def test_binary_round_trip(name: str, data: st.DataObject, rank: int, id: str) -> None:
    sent = data.draw(tensors(BY_NAME[name], rank))
    model = signature(BY_NAME[name], rank)
    client, server = HttpClientCodec(model), HttpInferCodec(model, "1")
    for _ in range(2):
        length, parts = client.encode_request(InferRequest({"I": sent}, 1, ignore, id=id))
        request = server.decode(b"".join(parts), length, ignore)
        assert request.id == id
        assert_same(request.inputs["I"], sent)
        replied, parts = server.encode(request, InferResponse({"O": request.inputs["I"]}))
        assert_same(client.decode_response(b"".join(parts), replied).outputs["O"], sent)


@pytest.mark.parametrize("name", IN_JSON)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), rank=st.integers(0, 4), nested=st.booleans())
def test_json_round_trip(name: str, data: st.DataObject, rank: int, nested: bool) -> None:
    sent = data.draw(tensors(BY_NAME[name], rank, text=True))
    codec = HttpInferCodec(signature(BY_NAME[name], rank), "1")
    values = sent.tolist() if nested and rank else sent.ravel().tolist()
    tensor = {"name": "I", "datatype": name, "shape": sent.shape, "data": values}
    body = json.dumps({"inputs": [tensor]}, default=bytes.decode).encode()
    request = codec.decode(body, None, ignore)
    assert_same(request.inputs["I"], sent)
    length, parts = codec.encode(request, InferResponse({"O": sent}))
    assert length is None
    output = json.loads(b"".join(parts))["outputs"][0]
    assert (output["datatype"], tuple(output["shape"])) == (name, sent.shape)
    again = json.dumps({"inputs": [output | {"name": "I"}]}).encode()
    assert_same(codec.decode(again, None, ignore).inputs["I"], sent)


SEEDS = [(case.model, case.body, case.json_length) for case in CASES if isinstance(case.content, bytes)]
CODECS = {name: HttpInferCodec(model, "1") for name, model in SIGNATURES.items()}


def serve(model: str, body: bytes, json_length: int | None) -> None:
    try:
        request = CODECS[model].decode(body, json_length, ignore)
        CODECS[model].encode(request, answer(model, request))
    except ServingError as error:
        assert error.message
        assert len(error.message) <= 1024


def mutate(draw: st.DrawFn, body: bytes) -> bytes:
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        end = draw(st.integers(at, min(len(body), at + 8)))
        middle = draw(st.one_of(st.binary(max_size=6), st.sampled_from(WORDS)))
        body = body[:at] + middle + body[end:]
    return body


WORDS = [
    *(b'"', b"[", b"]", b"{", b"}", b",", b":", b"\\", b"-", b"NaN", b"Infinity", b"null", b"true", b"1e400"),
    *(b"\\ud800", b"\\u0000", b"\xff", b"\x00", b"9" * 30, b"[" * 200, b'"parameters":{', b'"data":[', b'"id":"'),
]


@st.composite
def mutants(draw: st.DrawFn) -> tuple[str, bytes, int | None]:
    model, body, length = draw(st.sampled_from(SEEDS))
    mutated = mutate(draw, body)
    if not isinstance(length, int):
        return model, mutated, None
    return model, mutated, draw(st.sampled_from([length, length + len(mutated) - len(body), len(mutated), 0]))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(mutants())
def test_mutated_bodies_are_served_or_refused(mutant: tuple[str, bytes, int | None]) -> None:
    serve(*mutant)


def json_values() -> st.SearchStrategy[Any]:
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    names = st.sampled_from(["name", "datatype", "shape", "data", "parameters", "binary_data_size", "classification"])
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=5), max_leaves=12
    )


@settings(max_examples=500, deadline=None)
@given(document=st.dictionaries(st.sampled_from(["id", "parameters", "inputs", "outputs"]), json_values()))
def test_arbitrary_documents_are_served_or_refused(document: dict[str, Any]) -> None:
    for model in CODECS:
        serve(model, json.dumps(document).encode(), None)


@settings(max_examples=500, deadline=None)
@given(member=st.sampled_from(["name", "datatype", "shape", "data", "parameters"]), value=json_values())
def test_arbitrary_members_are_served_or_refused(member: str, value: Any) -> None:
    tensor = {"name": "X", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]} | {member: value}
    serve("floats", json.dumps({"inputs": [tensor]}).encode(), None)
    serve("floats", json.dumps({"inputs": [tensor], "outputs": [{"name": "Y", member: value}]}).encode(), None)


@settings(max_examples=300, deadline=None)
@given(body=st.binary(max_size=200), json_length=st.none() | st.integers(-5, 220))
def test_arbitrary_bytes_never_break_a_client(body: bytes, json_length: int | None) -> None:
    client = HttpClientCodec(SIGNATURES["floats"])
    try:
        client.decode_response(body, json_length)
    except ServingError as error:
        assert error.http_status == 500
