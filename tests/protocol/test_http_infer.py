import gc
import json
import weakref
from typing import Any

import numpy as np
import orjson
import pytest

from protocol.datatypes import BY_NAME
from protocol.errors import Internal, InvalidArgument, NotFound, ServingError
from protocol.http_infer import HttpInferCodec
from protocol.infer import SEQUENCE_END, SEQUENCE_START, InferRequest, InferResponse
from protocol.limits import Limits
from protocol.signature import Signature, TensorSpec


def ignore(request: InferRequest, outcome: InferResponse | ServingError) -> None:
    pass


def tensor(name: str, datatype: str, *dims: int, model_dims: tuple[int, ...] | None = None) -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, BY_NAME[datatype], dims, dims if model_dims is None else model_dims)}


FLOATS = Signature("m", 8, tensor("X", "FP32", -1), tensor("Y", "FP32", -1) | tensor("Z", "BYTES", -1), 3, 2)


@pytest.fixture
def codec() -> HttpInferCodec:
    return HttpInferCodec(FLOATS, "3")


def binary(shape: list[int] | None = None, **more: Any) -> tuple[bytes, int]:
    shape = shape or [1, 4]
    size = 4 * shape[0] * shape[1]
    document = more | {
        "inputs": [{"name": "X", "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": size}}]
    }
    head = json.dumps(document).encode()
    return head + np.arange(size // 4, dtype=np.float32).tobytes(), len(head)


def joined(codec: HttpInferCodec, request: InferRequest, **outputs: Any) -> tuple[dict[str, Any], bytes]:
    length, parts = codec.encode(request, InferResponse(outputs))
    body = b"".join(parts)
    return orjson.loads(body[:length]), body if length is None else body[length:]


@pytest.mark.parametrize("wrap", [bytes, memoryview, bytearray], ids=["bytes", "view", "writable"])
def test_arrays_are_views_on_the_body_and_as_writable(codec: HttpInferCodec, wrap: Any) -> None:
    content, length = binary([2, 4])
    for body in (wrap(content), memoryview(wrap(content))):
        for _ in range(2):
            request = codec.decode(body, length, ignore, "context")
            array = request.inputs["X"]
            assert array.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
            assert np.shares_memory(array, np.frombuffer(body, np.uint8))
            assert array.flags.writeable == (wrap is bytearray)
            assert (request.rows, request.context, request.outputs, request.id) == (2, "context", None, "")


def test_a_known_header_is_checked_against_each_body(codec: HttpInferCodec) -> None:
    content, length = binary()
    for _ in range(2):
        codec.decode(content, length, ignore)
        for body, text in (
            (content[:-1], "unexpected size for input 'X', expecting 1 additional bytes for model 'm'"),
            (content + b"x", "unexpected additional input data for model 'm'"),
        ):
            with pytest.raises(InvalidArgument) as raised:
                codec.decode(body, length, ignore)
            assert raised.value.message == text
    with pytest.raises(InvalidArgument, match="inference header size should be in range"):
        codec.decode(content[:length], length + 16, ignore)


@pytest.mark.parametrize("value", ["1", "NaN"])
def test_json_may_begin_with_a_byte_order_mark(codec: HttpInferCodec, value: str) -> None:
    body = f'\ufeff{{"inputs":[{{"name":"X","datatype":"FP32","shape":[1,1],"data":[{value}]}}]}}'.encode()
    for wrap in (bytes, memoryview):
        request = codec.decode(wrap(body), None, ignore, None)
        np.testing.assert_array_equal(request.inputs["X"], [[float(value)]])
    with pytest.raises(InvalidArgument, match=r"Invalid value\. at 0"):
        codec.decode(b"\xef\xbb\xbf" * 2 + b"{}", None, ignore, None)


def test_requests_do_not_share_what_can_be_changed(codec: HttpInferCodec) -> None:
    content, length = binary(parameters={"p": 1})
    first = codec.decode(content, length, ignore)
    assert first.parameters is not None
    first.parameters["p"] = 2
    first.inputs.clear()
    second = codec.decode(content, length, ignore)
    assert second.parameters == {"p": 1}
    assert list(second.inputs) == ["X"]


def test_ids_are_told_apart_however_often_they_change(codec: HttpInferCodec) -> None:
    for id in ("1", "2", "", "1", 'a"b', "ż", "3", "2", "x" * 100):
        for ascii in (True, False):
            content, length = binary()
            head = json.dumps({"id": id, **json.loads(content[:length])}, ensure_ascii=ascii).encode()
            request = codec.decode(head + content[length:], len(head), ignore)
            assert request.id == id
            document, _ = joined(codec, request, Y=np.zeros((1, 1), np.float32))
            assert document.get("id", "") == id
            assert next(iter(document)) == ("id" if id else "model_name")


def test_the_last_of_two_ids_counts(codec: HttpInferCodec) -> None:
    content, length = binary()
    for first, last in (("1", "2"), ("3", "2"), ("2", "2"), ("4", "2")):
        head = f'{{"id":"{first}","id":"{last}",'.encode() + content[1:length]
        assert codec.decode(head + content[length:], len(head), ignore).id == last


def test_parameters_reach_the_request(codec: HttpInferCodec) -> None:
    parameters = {
        "sequence_id": "s",
        "sequence_start": True,
        "sequence_end": True,
        "priority": 3,
        "timeout": 17,
        "p": 1,
        "q": 1.5,
        "r": "x",
        "s": False,
    }
    content, length = binary(parameters=parameters)
    for _ in range(2):
        request = codec.decode(content, length, ignore)
        assert request.sequence_id == "s"
        assert request.flags == SEQUENCE_START | SEQUENCE_END
        assert (request.priority, request.timeout_us) == (3, 17)
        assert request.parameters == {"p": 1, "q": 1.5, "r": "x", "s": False}


def test_priority_defaults_to_the_models(codec: HttpInferCodec) -> None:
    content, length = binary()
    assert codec.decode(content, length, ignore).priority == 2


def test_reshape_changes_what_the_model_sees() -> None:
    codec = HttpInferCodec(Signature("m", 8, tensor("X", "FP32", 4, model_dims=(2, 2)), {}), "1")
    content, length = binary([2, 4])
    assert codec.decode(content, length, ignore).inputs["X"].shape == (2, 2, 2)
    inline = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}'
    assert codec.decode(inline, None, ignore).inputs["X"].tolist() == [[[1, 2], [3, 4]]]


def test_key_order_of_a_response(codec: HttpInferCodec) -> None:
    content, length = binary(id="r")
    request = codec.decode(content, length, ignore)
    _, parts = codec.encode(request, InferResponse({"Y": np.ones((1, 2), np.float32)}, {"p": True}))
    assert b"".join(parts) == (
        b'{"id":"r","model_name":"m","model_version":"3","parameters":{"p":true},'
        b'"outputs":[{"name":"Y","datatype":"FP32","shape":[1,2],"data":[1.0,1.0]}]}'
    )


def test_binary_and_json_outputs_mix(codec: HttpInferCodec) -> None:
    outputs = [{"name": "Y", "parameters": {"binary_data": True}}, {"name": "Z"}]
    content, length = binary(outputs=outputs)
    request = codec.decode(content, length, ignore)
    assert request.outputs == ("Y", "Z")
    strings = np.array([[b"a", b"b"]], dtype=object)
    document, tail = joined(codec, request, Z=strings, Y=np.ones((1, 2), np.float32))
    assert [output["name"] for output in document["outputs"]] == ["Z", "Y"]
    assert document["outputs"][0]["data"] == ["a", "b"]
    assert document["outputs"][1]["parameters"] == {"binary_data_size": 8}
    assert tail == np.ones(2, np.float32).tobytes()


def test_outputs_that_were_not_asked_for_are_not_sent(codec: HttpInferCodec) -> None:
    content, length = binary(outputs=[{"name": "Y", "parameters": {"binary_data": True}}])
    request = codec.decode(content, length, ignore)
    for _ in range(3):
        strings = np.array([[b"a"]], dtype=object)
        document, tail = joined(codec, request, Q=strings, Y=np.ones((1, 1), np.float32), Z=strings)
        assert [output["name"] for output in document["outputs"]] == ["Y"]
        assert len(tail) == 4


def test_same_shapes_of_another_type_are_described_anew(codec: HttpInferCodec) -> None:
    content, length = binary(parameters={"binary_data_output": True})
    request = codec.decode(content, length, ignore)
    for dtype, name in ((np.float32, "FP32"), (np.float64, "FP64"), (">f4", "FP32"), (np.float32, "FP32")):
        document, tail = joined(codec, request, Y=np.array([[1, 2]], dtype))
        assert document["outputs"][0]["datatype"] == name
        assert np.frombuffer(tail, BY_NAME[name].numpy).tolist() == [1, 2]


@pytest.mark.parametrize("count", [4, 40_000], ids=["copied", "viewed"])
def test_outputs_may_have_any_layout(codec: HttpInferCodec, count: int) -> None:
    content, length = binary(parameters={"binary_data_output": True})
    request = codec.decode(content, length, ignore)
    array = np.arange(2 * count, dtype=np.float32).reshape(count, 2).T
    for _ in range(2):
        _, tail = joined(codec, request, Y=array)
        assert tail == np.ascontiguousarray(array).tobytes()


def test_large_outputs_are_not_copied(codec: HttpInferCodec) -> None:
    content, length = binary(parameters={"binary_data_output": True})
    request = codec.decode(content, length, ignore)
    array = np.zeros((2, 50_000), np.float32)
    for _ in range(2):
        _, parts = codec.encode(request, InferResponse({"Y": array[1:]}))
        assert np.shares_memory(np.frombuffer(parts[1], np.uint8), array)
        assert len(parts[1]) == 200_000


def test_empty_binary_outputs_make_a_json_response(codec: HttpInferCodec) -> None:
    content, length = binary(parameters={"binary_data_output": True})
    request = codec.decode(content, length, ignore)
    for _ in range(2):
        sent, parts = codec.encode(request, InferResponse({"Y": np.zeros((1, 0), np.float32)}))
        assert sent is None
        assert b'"binary_data_size":0' in b"".join(parts)


def test_requests_made_elsewhere_get_binary_outputs(codec: HttpInferCodec) -> None:
    request = InferRequest({}, 1, ignore)
    assert joined(codec, request, Y=np.ones((1, 1), np.float32))[1] == np.float32(1).tobytes()


def test_models_do_not_mix_their_responses() -> None:
    for name in ("a", "b"):
        codec = HttpInferCodec(Signature(name, 0, {}, tensor("Y", "FP32", -1)), "1")
        document, _ = joined(codec, InferRequest({}, 1, ignore), Y=np.ones(1, np.float32))
        assert document["model_name"] == name


def test_bf16_keeps_its_name() -> None:
    codec = HttpInferCodec(Signature("m", 0, {}, tensor("Y", "BF16", -1)), "1")
    for _ in range(2):
        document, _ = joined(codec, InferRequest({}, 1, ignore), Y=np.zeros(2, np.uint16))
        assert document["outputs"][0]["datatype"] == "BF16"


def test_outputs_without_a_datatype_are_the_models_fault(codec: HttpInferCodec) -> None:
    request = InferRequest({}, 1, ignore)
    with pytest.raises(Internal, match="output 'Y' of type complex64 has no datatype"):
        codec.encode(request, InferResponse({"Y": np.zeros(1, np.complex64)}))
    with pytest.raises(Internal, match="a response parameter"):
        codec.encode(request, InferResponse({}, {"p": b"x"}))  # type: ignore[dict-item]


def test_labels_join_classes() -> None:
    codec = HttpInferCodec(FLOATS, "1", labels={"Y": ["cat", "dog"]})
    content, length = binary(outputs=[{"name": "Y", "parameters": {"classification": 1}}])
    document, _ = joined(codec, codec.decode(content, length, ignore), Y=np.array([[0.5, 1]], np.float32))
    assert document["outputs"][0] == {"name": "Y", "datatype": "BYTES", "shape": [1, 1], "data": ["1.000000:1:dog"]}


class Regions:
    def __init__(self) -> None:
        self.regions = {"in": bytearray(np.arange(4, dtype=np.float32).tobytes()), "out": bytearray(16)}

    def view(self, region: str, offset: int, byte_size: int) -> memoryview:
        if region not in self.regions:
            raise NotFound(f"Unable to find shared memory region: '{region}'")
        return memoryview(self.regions[region])[offset : offset + byte_size]

    def check(self, region: str, view: memoryview) -> None:
        """It is always there."""


def regions_request(count: int, out: str = "out", out_bytes: int = 16, offset: int = 0) -> bytes:
    where = {"shared_memory_region": "in", "shared_memory_byte_size": 4 * count, "shared_memory_offset": offset}
    output = {"shared_memory_region": out, "shared_memory_byte_size": out_bytes}
    return orjson.dumps(
        {
            "inputs": [{"name": "X", "datatype": "FP32", "shape": [1, count], "parameters": where}],
            "outputs": [{"name": "Y", "parameters": output}],
        }
    )


def test_tensors_in_shared_memory() -> None:
    regions = Regions()
    codec = HttpInferCodec(FLOATS, "1", shared_memory=regions)
    for start in (0, 10):
        regions.regions["in"][:] = np.arange(start, start + 4, dtype=np.float32).tobytes()
        request = codec.decode(regions_request(2, offset=8), None, ignore)
        assert request.inputs["X"].tolist() == [[start + 2, start + 3]]
        document, _ = joined(codec, request, Y=request.inputs["X"] * 2)
        assert document["outputs"] == [{"name": "Y", "datatype": "FP32", "shape": [1, 2]}]
        assert np.frombuffer(regions.regions["out"], np.float32)[:2].tolist() == [2 * start + 4, 2 * start + 6]


def test_only_text_takes_long() -> None:
    codec = HttpInferCodec(FLOATS, "1", shared_memory=Regions())
    response = InferResponse({"Y": np.zeros((1, 100_000), np.float32)})

    def takes_long(**form: Any) -> bool:
        head, length = binary(outputs=[{"name": "Y", "parameters": form}])
        return codec.takes_long(codec.decode(head, length, ignore), response)

    assert takes_long(binary_data=False)
    assert takes_long(classification=3)
    assert takes_long(classification=3, binary_data=True)
    assert not takes_long(binary_data=True)
    assert not takes_long(shared_memory_region="out", shared_memory_byte_size=16)
    assert not codec.takes_long(
        codec.decode(regions_request(1), None, ignore), InferResponse({"Z": np.zeros((1, 100_000), np.float32)})
    ), "an output that was not asked for"


def test_shared_memory_that_does_not_fit() -> None:
    codec = HttpInferCodec(FLOATS, "1", shared_memory=Regions())
    with pytest.raises(NotFound, match="Unable to find shared memory region: 'gone'"):
        codec.decode(regions_request(2, "gone"), None, ignore)
    with pytest.raises(InvalidArgument, match=r"Invalid offset . byte size for shared memory region: 'in'"):
        codec.decode(regions_request(2, offset=12), None, ignore)
    request = codec.decode(regions_request(4, out_bytes=8), None, ignore)
    with pytest.raises(Internal, match=r"for output 'Y' \(8 bytes\) should be at least 16 bytes to hold the results"):
        joined(codec, request, Y=request.inputs["X"])


def test_a_raw_string_is_the_whole_body() -> None:
    codec = HttpInferCodec(Signature("m", 8, tensor("X", "BYTES", 1), tensor("Y", "BYTES", 1)), "1")
    request = codec.decode(b"hello", 0, ignore)
    assert request.inputs["X"].tolist() == [[b"hello"]]
    _, tail = joined(codec, request, Y=request.inputs["X"])
    assert tail == b"\x05\x00\x00\x00hello"


def test_of_several_faulty_strings_the_last_is_named() -> None:
    inputs = tensor("A", "BYTES", 1) | tensor("B", "BYTES", 1) | tensor("C", "BYTES", 1)
    codec = HttpInferCodec(Signature("m", 0, inputs, tensor("Y", "BYTES", 1)), "1")
    sent = [
        {"name": name, "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 4}} for name in ("A", "B")
    ]
    good = {"name": "C", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}}
    header = orjson.dumps({"inputs": [*sent, good]})
    with pytest.raises(InvalidArgument, match="incomplete string data for inference input 'B', expecting"):
        codec.decode(header + b"\5\0\0\0" * 2 + b"\1\0\0\0x", len(header), ignore)


def test_the_body_of_a_request_with_faulty_strings_is_free_at_once() -> None:
    codec = HttpInferCodec(Signature("m", 0, tensor("A", "BYTES", -1), {}), "1", Limits(), {})
    header = orjson.dumps(
        {"inputs": [{"name": "A", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 8}}]}
    )
    body = np.frombuffer(header + b"\xff" * 8, np.uint8)
    taken = weakref.ref(body)
    gc.collect()
    gc.disable()
    try:
        try:
            codec.decode(memoryview(body), len(header), ignore)
        except InvalidArgument as error:
            assert "string" in str(error)
        else:
            raise AssertionError("not refused")
        del body
        assert taken() is None
    finally:
        gc.enable()


def test_a_raw_shape_needs_one_unknown_at_most() -> None:
    codec = HttpInferCodec(Signature("m", 8, tensor("X", "INT8", -1, -1), {}), "1")
    with pytest.raises(InvalidArgument, match="because there are more than one variable-sized dimension"):
        codec.decode(b"hello", 0, ignore)
    codec = HttpInferCodec(Signature("m", 8, tensor("X", "INT16", 3, -1, model_dims=(-1, 3)), {}), "1")
    assert codec.decode(bytes(24), 0, ignore).inputs["X"].shape == (1, 4, 3)


@pytest.mark.parametrize(
    ("limits", "inside", "outside"),
    [
        (Limits(max_parameters=1), {"parameters": {"a": 1}}, {"parameters": {"a": 1, "b": 1}}),
        (Limits(max_outputs=1), {"outputs": [{"name": "Z"}]}, {"outputs": [{"name": "Y"}, {"name": "Z"}]}),
        (
            Limits(max_correlation_id_bytes=2),
            {"parameters": {"sequence_id": "ab"}},
            {"parameters": {"sequence_id": "abc"}},
        ),
    ],
    ids=["parameters", "outputs", "correlation-id"],
)
def test_limits_hold_on_both_sides(limits: Limits, inside: dict[str, Any], outside: dict[str, Any]) -> None:
    codec = HttpInferCodec(FLOATS, "1", limits)
    content, length = binary(**inside)
    codec.decode(content, length, ignore)
    content, length = binary(**outside)
    with pytest.raises(InvalidArgument, match=r"more than|longer than"):
        codec.decode(content, length, ignore)


def test_the_number_of_inputs_is_bounded() -> None:
    inputs = [{"name": name, "datatype": "INT8", "shape": [1, 1], "data": [1]} for name in ("A", "B")]
    signature = Signature("m", 8, tensor("A", "INT8", -1) | tensor("B", "INT8", -1), {})
    content = json.dumps({"inputs": inputs}).encode()
    HttpInferCodec(signature, "1", Limits(max_inputs=2)).decode(content, None, ignore)
    with pytest.raises(InvalidArgument, match="request has 2 inputs, more than 1"):
        HttpInferCodec(signature, "1", Limits(max_inputs=1)).decode(content, None, ignore)


def test_json_size_is_limited_on_both_sides() -> None:
    content, length = binary()
    HttpInferCodec(FLOATS, "1", Limits(http_max_input_size_bytes=length)).decode(content, length, ignore)
    with pytest.raises(InvalidArgument, match=f"request JSON size of {length} bytes exceeds the maximum allowed"):
        HttpInferCodec(FLOATS, "1", Limits(http_max_input_size_bytes=length - 1)).decode(content, length, ignore)


def test_an_output_without_a_json_form_is_refused_once_the_model_answers_it_unless_it_is_named() -> None:
    signature = Signature("m", 8, tensor("X", "FP32", -1), tensor("Y", "FP32", -1) | tensor("H", "FP16", -1))
    codec = HttpInferCodec(signature, "1")
    request = codec.decode(*binary(), ignore)
    assert joined(codec, request, Y=np.zeros((1, 1), np.float32))[0]["outputs"][0]["data"] == [0]
    with pytest.raises(InvalidArgument, match="sending FP16 data via JSON is not supported"):
        codec.encode(request, InferResponse({"H": np.zeros((1, 1), np.float16)}))
    with pytest.raises(InvalidArgument, match="sending FP16 data via JSON is not supported"):
        codec.decode(*binary(outputs=[{"name": "H"}]), ignore)
