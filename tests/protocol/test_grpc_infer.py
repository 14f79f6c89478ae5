import json
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as client
from tritonclient.grpc import service_pb2
from tritonclient.grpc._utils import _get_inference_request

from protocol.bytes_tensor import object_array
from protocol.datatypes import BY_NAME
from protocol.errors import Internal, InvalidArgument, ServingError, Unsupported
from protocol.grpc_infer import GrpcInferCodec
from protocol.http_infer import HttpInferCodec
from protocol.infer import SEQUENCE_END, SEQUENCE_START, InferRequest, InferResponse
from protocol.limits import Limits
from protocol.signature import Signature, TensorSpec
from tests.protocol.cases.models import SIGNATURES, answer


def ignore(request: InferRequest, outcome: InferResponse | ServingError) -> None:
    pass


def tensor(name: str, datatype: str, *dims: int, model_dims: tuple[int, ...] | None = None) -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, BY_NAME[datatype], dims, dims if model_dims is None else model_dims)}


FLOATS = Signature("m", 8, tensor("X", "FP32", -1), tensor("Y", "FP32", -1) | tensor("Z", "BYTES", -1), 3, 2)


class Regions:
    def __init__(self) -> None:
        self.content = bytearray(1024)

    def view(self, region: str, offset: int, byte_size: int) -> memoryview:
        return memoryview(self.content)[offset : offset + byte_size]

    def check(self, region: str, view: memoryview) -> None:
        """It is always there."""


@pytest.fixture
def codec() -> GrpcInferCodec:
    return GrpcInferCodec(FLOATS, "3")


def body(shape: list[int] | None = None, **more: Any) -> bytes:
    shape = shape or [1, 4]
    message = service_pb2.ModelInferRequest(model_name="m", **more)
    message.inputs.add(name="X", datatype="FP32", shape=shape)
    message.raw_input_contents.append(np.arange(shape[0] * shape[1], dtype=np.float32).tobytes())
    serialised: bytes = message.SerializeToString()
    return serialised


def encoded(codec: GrpcInferCodec, request: InferRequest, response: InferResponse) -> service_pb2.ModelInferResponse:
    json_length, parts = codec.encode(request, response)
    assert json_length is None
    return service_pb2.ModelInferResponse.FromString(b"".join(parts))


@pytest.mark.parametrize("wrap", [bytes, memoryview, bytearray], ids=["bytes", "view", "writable"])
def test_arrays_are_views_on_the_body_and_as_writable(codec: GrpcInferCodec, wrap: Any) -> None:
    for content in (wrap(body([2, 4])), memoryview(wrap(body([2, 4], id="x")))):
        for _ in range(2):
            request = codec.decode(content, None, ignore, "context")
            array = request.inputs["X"]
            assert array.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
            assert np.shares_memory(array, np.frombuffer(content, np.uint8))
            assert array.flags.writeable == (wrap is bytearray)
            assert (request.rows, request.context, request.outputs) == (2, "context", None)


def test_a_known_message_is_checked_against_each_body(codec: GrpcInferCodec) -> None:
    codec.decode(body(), None, ignore)
    short = service_pb2.ModelInferRequest.FromString(body())
    short.raw_input_contents[0] = bytes(12)
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="Expected 16, got 12"):
            codec.decode(short.SerializeToString(), None, ignore)
        with pytest.raises(InvalidArgument, match="failed to parse"):
            codec.decode(body()[:-1], None, ignore)
    short.raw_input_contents.append(b"")
    short.raw_input_contents[0] = np.ones(4, np.float32).tobytes()
    assert codec.decode(short.SerializeToString(), None, ignore).inputs["X"].tolist() == [[1, 1, 1, 1]]


def test_known_messages_of_many_shapes_are_told_apart(codec: GrpcInferCodec) -> None:
    for _ in range(2):
        for columns in (1, 2, 3, 200, 1, 127, 128, 5000, 2):
            outputs = [{"name": "Y"}] if columns % 2 else []
            request = codec.decode(body([1, columns], outputs=outputs), None, ignore)
            assert request.inputs["X"].shape == (1, columns)
            assert request.outputs == (("Y",) if outputs else None)


def test_a_long_description_is_recognised() -> None:
    inputs = tensor("X" * 200, "FP32", 1) | tensor("Z", "FP32", 1)
    codec = GrpcInferCodec(Signature("m", 0, inputs, tensor("Y", "FP32", 1)), "1")
    message = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[bytes(4), b"\x00\x00\x80\x3f"])
    for name in inputs:
        message.inputs.add(name=name, datatype="FP32", shape=[1])
    first, second = [codec.decode(message.SerializeToString(), None, ignore) for _ in range(2)]
    assert first.encoding is second.encoding
    assert second.inputs["Z"].tolist() == [1]


def test_requests_do_not_share_what_can_be_changed(codec: GrpcInferCodec) -> None:
    content = body(parameters={"p": {"int64_param": 1}})
    first = codec.decode(content, None, ignore)
    assert first.parameters is not None
    first.parameters["p"] = 2
    first.inputs.clear()
    second = codec.decode(content, None, ignore)
    assert second.parameters == {"p": 1}
    assert list(second.inputs) == ["X"]


def test_ids_are_told_apart_however_often_they_change(codec: GrpcInferCodec) -> None:
    for id in ("1", "2", "", "1", "ż", "x" * 127, "x" * 128, "x" * 5000, "\x00", "1"):
        for version in ("", "3", "03"):
            request = codec.decode(body(id=id, model_version=version), None, ignore)
            assert request.id == id
            response = encoded(codec, request, InferResponse({"Y": np.zeros((1, 1), np.float32)}))
            assert (response.id, response.model_name, response.model_version) == (id, "m", "3")


def test_the_last_of_two_ids_counts(codec: GrpcInferCodec) -> None:
    content = body()
    for id in "121":
        twice = content[:3] + b"\x1a\x011\x1a\x01" + id.encode() + content[3:]
        assert codec.decode(twice, None, ignore).id == id


def test_parameters_reach_the_request(codec: GrpcInferCodec) -> None:
    parameters = {
        "sequence_id": {"string_param": "s"},
        "sequence_start": {"bool_param": True},
        "sequence_end": {"bool_param": True},
        "priority": {"uint64_param": 3},
        "timeout": {"int64_param": 17},
        "p": {"int64_param": -1},
        "q": {"double_param": 1.5},
        "r": {"string_param": "x"},
        "s": {"bool_param": False},
    }
    for _ in range(2):
        request = codec.decode(body(parameters=parameters), None, ignore)
        assert request.parameters == {"p": -1, "q": 1.5, "r": "x", "s": False}
        assert (request.sequence_id, request.priority, request.timeout_us) == ("s", 3, 17)
        assert request.flags == SEQUENCE_START | SEQUENCE_END
    assert codec.decode(body(), None, ignore).priority == 2


def test_sequence_ids_are_unsigned(codec: GrpcInferCodec) -> None:
    request = codec.decode(body(parameters={"sequence_id": {"int64_param": -1}}), None, ignore)
    assert request.sequence_id == 2**64 - 1


def test_a_reshaped_input_comes_as_the_model_sees_it() -> None:
    codec = GrpcInferCodec(Signature("m", 8, tensor("X", "FP32", 4, model_dims=(2, 2)), {}), "1")
    for _ in range(2):
        assert codec.decode(body(), None, ignore).inputs["X"].shape == (1, 2, 2)


def test_a_decoupled_model_does_not_answer_unary_calls() -> None:
    codec = GrpcInferCodec(Signature("m", 8, tensor("X", "FP32", 4), {}, decoupled=True), "1")
    with pytest.raises(Unsupported, match="ModelInfer RPC doesn't support models with decoupled transaction policy"):
        codec.decode(body(), None, ignore)
    assert codec.decode_any(body(), ignore).inputs["X"].shape == (1, 4)


TYPED = {
    "BOOL": ("bool_contents", [True, False, True]),
    "UINT8": ("uint_contents", [0, 1, 255]),
    "UINT16": ("uint_contents", [0, 1, 65535]),
    "UINT32": ("uint_contents", [0, 1, 2**32 - 1]),
    "UINT64": ("uint64_contents", [0, 1, 2**64 - 1]),
    "INT8": ("int_contents", [-128, 0, 127]),
    "INT16": ("int_contents", [-32768, 0, 32767]),
    "INT32": ("int_contents", [-(2**31), 0, 2**31 - 1]),
    "INT64": ("int64_contents", [-(2**63), 0, 2**63 - 1]),
    "FP32": ("fp32_contents", [1.5, -0.0, float("inf")]),
    "FP64": ("fp64_contents", [0.1, -1e300, float("nan")]),
    "BYTES": ("bytes_contents", [b"", b"\x00\xff", b"abc"]),
}


def typed(datatype: str, values: list[Any]) -> tuple[GrpcInferCodec, bytes]:
    message = service_pb2.ModelInferRequest(model_name="m")
    message.inputs.add(name="X", datatype=datatype, shape=[len(values)], contents={TYPED[datatype][0]: values})
    return GrpcInferCodec(Signature("m", 0, tensor("X", datatype, -1), {}), "1"), message.SerializeToString()


@pytest.mark.parametrize("datatype", TYPED)
def test_typed_contents_of_every_kind(datatype: str) -> None:
    values = TYPED[datatype][1]
    codec, content = typed(datatype, values)
    for _ in range(2):
        array = codec.decode(content, None, ignore).inputs["X"]
        assert array.dtype == BY_NAME[datatype].numpy
        np.testing.assert_array_equal(array, np.array(values, array.dtype))


@pytest.mark.parametrize(
    ("datatype", "value"), [("INT8", 128), ("INT8", -129), ("INT16", 2**15), ("UINT8", 256), ("UINT16", 2**16)]
)
def test_typed_integers_that_do_not_fit_are_refused(datatype: str, value: int) -> None:
    codec, content = typed(datatype, [0, value])
    with pytest.raises(InvalidArgument, match=f"value out of range of {datatype} for input 'X'"):
        codec.decode(content, None, ignore)


def test_unknown_fields_among_typed_contents_do_not_matter() -> None:
    codec, content = typed("FP32", [1.0, 2.0])
    inner = b"\x32\x08" + np.array([1, 2], np.float32).tobytes() + b"\x7a\x01x"
    described = b"\x0a\x01X\x12\x04FP32\x1a\x01\x02\x2a" + bytes([len(inner)]) + inner
    content = b"\x0a\x01m\x2a" + bytes([len(described)]) + described
    assert codec.decode(content, None, ignore).inputs["X"].tolist() == [1.0, 2.0]


def test_inputs_and_outputs_in_shared_memory() -> None:
    regions = Regions()
    codec = GrpcInferCodec(FLOATS, "1", shared_memory=regions)

    def place(offset: int, size: int) -> dict[str, Any]:
        return {
            "shared_memory_region": {"string_param": "r"},
            "shared_memory_offset": {"int64_param": offset},
            "shared_memory_byte_size": {"int64_param": size},
        }

    message = service_pb2.ModelInferRequest(model_name="m")
    message.inputs.add(name="X", datatype="FP32", shape=[1, 2], parameters=place(8, 8))
    message.outputs.add(name="Y", parameters=place(32, 8))
    message.outputs.add(name="Z")
    for value in (1.0, 2.0):
        np.frombuffer(regions.content, np.float32)[2:4] = value
        request = codec.decode(message.SerializeToString(), None, ignore)
        assert request.inputs["X"].tolist() == [[value, value]]
        outputs = {"Y": request.inputs["X"] * 3, "Z": object_array([b"a"], (1, 1))}
        response = encoded(codec, request, InferResponse(outputs))
        assert list(response.raw_output_contents) == [b"", b"\x01\x00\x00\x00a"]
        assert np.frombuffer(regions.content, np.float32)[8:10].tolist() == [3 * value] * 2
    with pytest.raises(Internal, match=r"for output 'Y' \(8 bytes\) should be at least 12 bytes to hold the results"):
        codec.encode(request, InferResponse({"Y": np.zeros((1, 3), np.float32)}))


def test_response_has_raw_contents_for_each_output(codec: GrpcInferCodec) -> None:
    request = codec.decode(body(id="7"), None, ignore)
    outputs = {"Y": np.ones((1, 2), np.float32), "Z": object_array([b"a"], (1, 1))}
    for more in ({}, {"E": np.zeros((1, 0), np.float32)}):
        for _ in range(2):
            response = encoded(codec, request, InferResponse(outputs | more))
            described = [(each.name, each.datatype, list(each.shape)) for each in response.outputs]
            assert described[:2] == [("Y", "FP32", [1, 2]), ("Z", "BYTES", [1, 1])]
            assert response.raw_output_contents[1:] == [b"\x01\x00\x00\x00a", *[b""] * len(more)]
            assert not any(each.HasField("contents") for each in response.outputs)


def test_known_responses_are_written_anew_for_each_array(codec: GrpcInferCodec) -> None:
    request = codec.decode(body(), None, ignore)
    for dtype in (np.float32, np.float64, ">f4", np.float32):
        for value in (1, 2):
            outputs = {"Y": np.full((2, 3), value, dtype), "W": np.full((2, 1), value, np.int8)}
            response = encoded(codec, request, InferResponse(outputs))
            wire = BY_NAME[response.outputs[0].datatype].numpy
            assert np.frombuffer(response.raw_output_contents[0], wire).tolist() == [value] * 6
            assert response.raw_output_contents[1] == bytes([value, value])


def test_large_outputs_are_not_copied(codec: GrpcInferCodec) -> None:
    request = codec.decode(body(), None, ignore)
    array = np.zeros((1, 100_000), np.float32)
    for _ in range(2):
        _, parts = codec.encode(request, InferResponse({"Y": array}))
        assert np.shares_memory(np.frombuffer(parts[-1], np.uint8), array)
    assert encoded(codec, request, InferResponse({"Y": array[:, ::2]})).raw_output_contents[0] == bytes(200_000)


def test_only_requested_outputs_are_sent(codec: GrpcInferCodec) -> None:
    request = codec.decode(body(outputs=[{"name": "Y"}]), None, ignore)
    for _ in range(2):
        outputs = {name: np.ones((1, 1), np.float32) for name in ("P", "Y", "Q")}
        response = encoded(codec, request, InferResponse(outputs))
        assert ([each.name for each in response.outputs], len(response.raw_output_contents)) == (["Y"], 1)


def test_classes() -> None:
    codec = GrpcInferCodec(FLOATS, "1", labels={"Y": ["cat", "dog"]})
    outputs = [{"name": "Y", "parameters": {"classification": {"int64_param": 2}}}]
    request = codec.decode(body(outputs=outputs), None, ignore)
    response = encoded(codec, request, InferResponse({"Y": np.array([[0.25, 1, 0]], np.float32)}))
    assert (response.outputs[0].datatype, list(response.outputs[0].shape)) == ("BYTES", [1, 2])
    assert response.raw_output_contents[0] == b"\x0e\x00\x00\x001.000000:1:dog\x0e\x00\x00\x000.250000:0:cat"


def test_parameters_are_those_of_one_response(codec: GrpcInferCodec) -> None:
    request = codec.decode(body(), None, ignore)
    for parameters in (None, {"p": 1}, {"p": 2}, None):
        response = encoded(codec, request, InferResponse({"Y": np.ones((1, 1), np.float32)}, parameters))
        assert {name: value.int64_param for name, value in response.parameters.items()} == (parameters or {})


def test_response_parameters_keep_their_types(codec: GrpcInferCodec) -> None:
    parameters = {"a": True, "b": -1, "c": 1.5, "d": "x", "e": 2**64 - 1}
    response = encoded(codec, codec.decode(body(), None, ignore), InferResponse({}, parameters))  # type: ignore[arg-type]
    kinds = {key: value.WhichOneof("parameter_choice") for key, value in response.parameters.items()}
    assert kinds == {
        "a": "bool_param",
        "b": "int64_param",
        "c": "double_param",
        "d": "string_param",
        "e": "uint64_param",
    }
    assert {key: getattr(response.parameters[key], kind) for key, kind in kinds.items()} == parameters


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, [1], None])
def test_response_parameters_of_no_type_are_an_error(codec: GrpcInferCodec, value: Any) -> None:
    with pytest.raises(Internal, match="a response parameter is not a bool, integer, float or string"):
        codec.encode(codec.decode(body(), None, ignore), InferResponse({}, {"p": value}))


def test_a_request_may_have_all_the_inputs_and_outputs_of_a_very_wide_model() -> None:
    names = [f"T{number}" for number in range(1024)]
    tensors = {name: tensor(name, "FP32", 1)[name] for name in names}
    message = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[bytes(4)] * len(names))
    for name in names:
        message.inputs.add(name=name, datatype="FP32", shape=[1])
        message.outputs.add(name=name)
    codec = GrpcInferCodec(Signature("m", 0, tensors, tensors), "1", Limits())
    assert codec.decode(message.SerializeToString(), None, ignore).inputs.keys() == tensors.keys()


def test_limits_hold_on_both_sides() -> None:
    inputs = tensor("A", "FP32", 1) | tensor("B", "FP32", 1)
    message = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[bytes(4)] * 2)
    for name in inputs:
        message.inputs.add(name=name, datatype="FP32", shape=[1])
    signature = Signature("m", 0, inputs, {})
    GrpcInferCodec(signature, "1", Limits(max_inputs=2)).decode(message.SerializeToString(), None, ignore)
    with pytest.raises(InvalidArgument, match="request has 2 inputs, more than 1"):
        GrpcInferCodec(signature, "1", Limits(max_inputs=1)).decode(message.SerializeToString(), None, ignore)


CASES = {
    "simple": [("INPUT0", np.arange(16, dtype=np.int32).reshape(1, 16)), ("INPUT1", np.ones((1, 16), np.int32))],
    "strings": [("TEXT", object_array([b"a", "ż".encode(), b""], (1, 3)))],
    "floats": [("X", np.array([1.5, -0.0, np.nan], np.float32))],
    "halves": [("H", np.ones((2, 4), np.float16))],
    "flags": [("B", np.array([[True, False, True, True]]))],
}
PARAMETERS = {"p": 1, "q": "x", "r": True}
OPTIONS = [
    {},
    {"request_id": "7", "parameters": PARAMETERS},
    {"sequence_id": 2**40, "sequence_start": True, "sequence_end": False, "priority": 1, "timeout": 5},
    {"sequence_id": "abc", "sequence_start": False, "sequence_end": True},
]


def client_inputs(model: str) -> list[Any]:
    inputs = []
    for name, array in CASES[model]:
        datatype = SIGNATURES[model].inputs[name].datatype.name
        inputs.append(client.InferInput(name, list(array.shape), datatype).set_data_from_numpy(array))
    return inputs


def client_body(model: str, outputs: Any = None, **options: Any) -> bytes:
    settings = {
        "model_version": "",
        "request_id": "",
        "sequence_id": 0,
        "sequence_start": False,
        "sequence_end": False,
        "priority": 0,
        "timeout": None,
        "parameters": None,
    } | options
    message = _get_inference_request(inputs=client_inputs(model), model_name=model, outputs=outputs, **settings)
    serialised: bytes = message.SerializeToString()
    return serialised


def http_body(model: str, outputs: list[str], options: dict[str, Any]) -> tuple[bytes, int]:
    import tritonclient.http as http

    inputs = []
    for name, array in CASES[model]:
        datatype = SIGNATURES[model].inputs[name].datatype.name
        inputs.append(http.InferInput(name, list(array.shape), datatype).set_data_from_numpy(array))
    wanted = [http.InferRequestedOutput(name) for name in outputs] or None
    content, length = http.InferenceServerClient.generate_request_body(inputs, outputs=wanted, **options)
    return content, length


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "parameters", "sequence", "sequence-string"])
@pytest.mark.parametrize("listed", [False, True], ids=["all", "listed"])
@pytest.mark.parametrize("model", CASES)
def test_http_and_grpc_decode_to_equal_requests(model: str, listed: bool, options: dict[str, Any]) -> None:
    names = list(SIGNATURES[model].outputs) if listed else []
    outputs = [client.InferRequestedOutput(name) for name in names] or None
    content, length = http_body(model, names, options)
    http, grpc = HttpInferCodec(SIGNATURES[model], "1"), GrpcInferCodec(SIGNATURES[model], "1")
    for _ in range(2):
        one = http.decode(content, length, ignore)
        other = grpc.decode(client_body(model, outputs, **options), None, ignore)
        assert list(one.inputs) == list(other.inputs)
        for name, array in one.inputs.items():
            np.testing.assert_array_equal(array, other.inputs[name])
            assert (array.dtype, array.shape) == (other.inputs[name].dtype, other.inputs[name].shape)
        for field in ("rows", "id", "outputs", "parameters", "priority", "timeout_us", "sequence_id", "flags"):
            assert getattr(one, field) == getattr(other, field), field


@pytest.mark.parametrize("model", CASES)
def test_tritonclient_reads_the_answer(model: str) -> None:
    codec = GrpcInferCodec(SIGNATURES[model], "1")
    for id in ("", "1", "2"):
        request = codec.decode(client_body(model, request_id=id), None, ignore)
        sent = answer(model, request)
        result = client.InferResult(encoded(codec, request, sent))
        assert result.get_response().id == id
        for name, array in sent.outputs.items():
            np.testing.assert_array_equal(result.as_numpy(name), array)


def test_error_texts_are_those_of_http() -> None:
    http, grpc = HttpInferCodec(FLOATS, "1"), GrpcInferCodec(FLOATS, "1")
    for shape in ([9, 1], [1, 1, 1], [1]):
        document = {"inputs": [{"name": "X", "datatype": "FP32", "shape": shape, "data": [0.0] * shape[0]}]}
        message = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[bytes(4 * shape[0])])
        message.inputs.add(name="X", datatype="FP32", shape=shape)
        with pytest.raises(InvalidArgument) as one:
            http.decode(json.dumps(document).encode(), None, ignore)
        with pytest.raises(InvalidArgument) as other:
            grpc.decode(message.SerializeToString(), None, ignore)
        assert one.value.message == other.value.message
