"""Properties of the gRPC codec: what goes in comes out, and no message does worse than be refused."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse

from protocol.datatypes import BY_NAME
from protocol.errors import ServingError
from protocol.grpc_infer import GrpcInferCodec
from protocol.grpc_route import read_route
from protocol.grpc_stream import GrpcStreamCodec
from protocol.infer import InferResponse
from protocol.output_content import tensor_bytes
from tests.protocol.cases.models import SIGNATURES, answer
from tests.protocol.grpc_cases import GRPC_CASES
from tests.protocol.test_codec_properties import DATATYPES, assert_same, ignore, signature, tensors

SEEDS = [(case.model, case.body) for case in GRPC_CASES if len(case.body) < 2000]
CODECS = {name: GrpcInferCodec(model, "1") for name, model in SIGNATURES.items()}
WORDS = (
    *(b"\x0a", b"\x12\x011", b"\x1a\x00", b"\x22", b"\x2a", b"\x32", b"\x3a", b"\x3a\x00", b"\xff" * 9 + b"\x01"),
    *(b"\x0a\x06floats", b"\x1a\x02id", b"\x08\x01", b"\x7b\x7c", b"\x80\x00", b"\xff\xff\xff\xff", b"FP16"),
)


@pytest.mark.parametrize("name", DATATYPES)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), rank=st.integers(0, 4), id=st.text(max_size=5))
def test_round_trip(name: str, data: st.DataObject, rank: int, id: str) -> None:
    datatype = BY_NAME[name]
    sent = data.draw(tensors(datatype, rank))
    codec = GrpcInferCodec(signature(datatype, rank), "1")
    message = ModelInferRequest(model_name="m", id=id, raw_input_contents=[bytes(tensor_bytes(sent, datatype))])
    message.inputs.add(name="I", datatype=name, shape=sent.shape)
    for _ in range(2):
        request = codec.decode(message.SerializeToString(), None, ignore)
        assert request.id == id
        assert_same(request.inputs["I"], sent)
        _, parts = codec.encode(request, InferResponse({"O": request.inputs["I"]}))
        response = ModelInferResponse.FromString(b"".join(parts))
        assert (response.id, response.outputs[0].datatype, tuple(response.outputs[0].shape)) == (id, name, sent.shape)
        assert response.raw_output_contents[0] == message.raw_input_contents[0]


def serve(model: str, body: bytes) -> None:
    unary = CODECS[model]
    for codec in (unary, GrpcStreamCodec(unary)):
        try:
            read_route(body)
            request = codec.decode(body, None, ignore)
            codec.encode(request, answer(model, request))
        except ServingError as error:
            assert error.message
            assert len(error.message.encode()) <= 1024


@st.composite
def mutants(draw: st.DrawFn) -> tuple[str, bytes]:
    model, body = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        end = draw(st.integers(at, min(len(body), at + 8)))
        body = body[:at] + draw(st.one_of(st.binary(max_size=6), st.sampled_from(WORDS))) + body[end:]
    return model, body


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(mutants())
def test_mutated_messages_are_served_or_refused(mutant: tuple[str, bytes]) -> None:
    serve(*mutant)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(CODECS)), st.binary(max_size=200))
def test_arbitrary_bytes_are_served_or_refused(model: str, body: bytes) -> None:
    serve(model, body)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(mutants())
def test_what_is_remembered_changes_no_answer(mutant: tuple[str, bytes]) -> None:
    model, body = mutant
    answers = []
    for codec in (CODECS[model], GrpcInferCodec(SIGNATURES[model], "1")):
        for _ in range(2):
            try:
                request = codec.decode(body, None, ignore)
                _, parts = codec.encode(request, answer(model, request))
                answers.append((request.id, request.flags, request.outputs, b"".join(parts)))
            except ServingError as error:
                answers.append(error.message)
    assert all(each == answers[0] for each in answers)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(mutants())
def test_messages_are_cut_as_protobuf_cuts_them(mutant: tuple[str, bytes]) -> None:
    from google.protobuf.message import DecodeError

    from protocol.grpc_request import SplitMessage
    from protocol.limits import Limits

    body = mutant[1]
    try:
        message = ModelInferRequest.FromString(body)
    except DecodeError:
        with pytest.raises(ServingError):
            SplitMessage(body, Limits(max_inputs=10**6, max_outputs=10**6, max_parameters=10**6))
        return
    try:
        split = SplitMessage(body, Limits(max_inputs=10**6, max_outputs=10**6, max_parameters=10**6))
    except ServingError:
        return  # groups
    assert [bytes(body[at : at + size]) for body, at, size in split.raw] == list(message.raw_input_contents)
    del message.raw_input_contents[:]
    message.DiscardUnknownFields()
    split.message.DiscardUnknownFields()
    assert split.message.SerializeToString(deterministic=True) == message.SerializeToString(deterministic=True)


def test_arrays_of_known_messages_are_within_the_body() -> None:
    for model, codec in CODECS.items():
        seeds = [body for name, body in SEEDS if name == model]
        for body in seeds:
            for cut in (1, 4, 5):
                serve(model, body[:-cut])
            try:
                request = codec.decode(body, None, ignore)
            except ServingError:
                continue
            assert all(isinstance(array, np.ndarray) for array in request.inputs.values())
