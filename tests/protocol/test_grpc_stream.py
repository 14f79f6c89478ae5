from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as client
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse

from protocol.errors import InvalidArgument
from protocol.grpc_infer import GrpcInferCodec
from protocol.grpc_stream import GrpcStreamCodec, stream_error
from protocol.infer import InferRequest, InferResponse
from tests.protocol.cases.models import SIGNATURES
from tests.protocol.grpc_case import message

PLAIN = SIGNATURES["floats"]
DECOUPLED = replace(PLAIN, decoupled=True)
OUTPUTS = {"Y": np.array([1.5, 2.5], np.float32)}


def codec(decoupled: bool) -> GrpcStreamCodec:
    return GrpcStreamCodec(GrpcInferCodec(DECOUPLED if decoupled else PLAIN, "3"))


def decoded(codec: GrpcStreamCodec, **more: Any) -> InferRequest:
    sent: ModelInferRequest = message(**more)
    return codec.decode(sent.SerializeToString(), None, lambda request, outcome: None)


def encoded(codec: GrpcStreamCodec, request: InferRequest, response: InferResponse) -> ModelStreamInferResponse | None:
    json_length, parts = codec.encode(request, response)
    assert json_length is None
    return ModelStreamInferResponse.FromString(b"".join(parts)) if parts else None


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("final", [False, True])
def test_responses_say_whether_they_are_the_last(decoupled: bool, final: bool) -> None:
    stream = codec(decoupled)
    request = decoded(stream, id="7")
    for parameters in (None, {"p": 1}):
        for _ in range(2):
            wrapped = encoded(stream, request, InferResponse(OUTPUTS, parameters, final))  # type: ignore[arg-type]
            assert wrapped is not None
            response = wrapped.infer_response
            assert wrapped.error_message == ""
            assert (response.id, response.model_name, response.model_version) == ("7", "floats", "3")
            assert response.parameters["triton_final_response"].WhichOneof("parameter_choice") == "bool_param"
            assert response.parameters["triton_final_response"].bool_param is final
            assert len(response.parameters) == (2 if parameters else 1)
            assert client.InferResult(response).as_numpy("Y").tolist() == [1.5, 2.5]


def test_a_decoupled_model_may_end_without_a_word() -> None:
    stream = codec(decoupled=True)
    assert encoded(stream, decoded(stream), InferResponse({}, final=True)) is None


@pytest.mark.parametrize("version", ["", "3", "03"])
def test_the_end_is_told_to_those_who_ask(version: str) -> None:
    stream = codec(decoupled=True)
    wanted = {"triton_enable_empty_final_response": {"bool_param": True}}
    for id in ("1", "2"):
        request = decoded(stream, id=id, model_version=version, parameters=wanted)
        wrapped = encoded(stream, request, InferResponse({}, final=True))
        assert wrapped is not None
        response = wrapped.infer_response
        assert (response.id, response.model_name, response.model_version) == (id, "floats", version)
        assert response.parameters["triton_final_response"].bool_param is True
        assert len(response.outputs) == len(response.raw_output_contents) == 0
        assert request.parameters is None
    unwanted = {"triton_enable_empty_final_response": {"bool_param": False}}
    assert encoded(stream, decoded(stream, parameters=unwanted), InferResponse({}, final=True)) is None


def test_a_last_response_without_outputs_is_sent() -> None:
    stream = codec(decoupled=True)
    wrapped = encoded(stream, decoded(stream, id="7"), InferResponse({}, {}, final=True))
    assert wrapped is not None
    response = wrapped.infer_response
    assert (response.id, response.model_name, response.model_version) == ("7", "floats", "3")
    assert response.parameters["triton_final_response"].bool_param is True
    assert len(response.outputs) == 0


def test_an_empty_response_that_is_not_the_end_is_sent() -> None:
    stream = codec(decoupled=True)
    wrapped = encoded(stream, decoded(stream), InferResponse({}, final=False))
    assert wrapped is not None
    assert wrapped.infer_response.parameters["triton_final_response"].bool_param is False


def test_large_outputs_are_not_copied() -> None:
    stream = codec(decoupled=False)
    array = np.zeros(100_000, np.float32)
    for _ in range(2):
        _, parts = stream.encode(decoded(stream), InferResponse({"Y": array}))
        assert any(np.shares_memory(np.frombuffer(part, np.uint8), array) for part in parts)
        assert (
            len(ModelStreamInferResponse.FromString(b"".join(parts)).infer_response.raw_output_contents[0]) == 400_000
        )


def test_requests_are_checked_as_unary_ones_are() -> None:
    with pytest.raises(InvalidArgument, match="unable to find data for input tensor 'X'"):
        decoded(codec(decoupled=True), raw_input_contents=[], inputs=[{"name": "X", "datatype": "FP32", "shape": [1]}])


@pytest.mark.parametrize(("text", "id"), [("no such model", "7"), ("", ""), ("a\ud800b", "ż")])
def test_errors_name_the_request(text: str, id: str) -> None:
    wrapped = ModelStreamInferResponse.FromString(stream_error(text, ("m", "2", id)))
    assert wrapped.error_message == text.encode("utf-8", "replace").decode()
    response = wrapped.infer_response
    assert (response.id, response.model_name, response.model_version) == (id, "m", "2")
    assert response.parameters["triton_final_response"].bool_param is True
    refused = ModelStreamInferResponse.FromString(stream_error(text, ("m", "2", id), taken=False))
    assert refused.error_message == wrapped.error_message
    assert refused.infer_response == ModelInferResponse(id=id)
