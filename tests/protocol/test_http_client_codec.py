import math
from typing import Any

import numpy as np
import pytest

from protocol.datatypes import BY_NAME
from protocol.errors import Internal, ServingError
from protocol.http_client_codec import HttpClientCodec
from protocol.http_infer import HttpInferCodec
from protocol.infer import SEQUENCE_START, InferRequest, InferResponse
from protocol.limits import DEFAULT_LIMITS
from protocol.signature import Signature, TensorSpec


def ignore(request: InferRequest, outcome: InferResponse | ServingError) -> None:
    pass


def tensor(name: str, datatype: str, *dims: int, model_dims: tuple[int, ...] | None = None) -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, BY_NAME[datatype], dims, dims if model_dims is None else model_dims)}


SIGNATURE = Signature(
    "m",
    8,
    tensor("A", "FP32", 4, model_dims=(2, 2))
    | tensor("S", "BYTES", -1)
    | tensor("H", "BF16", -1)
    | tensor("B", "BOOL", -1),
    tensor("A", "FP32", 4) | tensor("S", "BYTES", -1) | tensor("H", "BF16", -1) | tensor("B", "BOOL", -1),
)


def inputs(rows: int) -> dict[str, Any]:
    return {
        "A": np.arange(4 * rows, dtype=np.float32).reshape(rows, 2, 2),
        "S": np.array([[b"a", "ż".encode(), b"\xff"]] * rows, dtype=object),
        "H": np.arange(3 * rows, dtype=np.uint16).reshape(rows, 3),
        "B": np.array([[True, False]] * rows),
    }


def test_a_request_arrives_as_it_was() -> None:
    client, server = HttpClientCodec(SIGNATURE), HttpInferCodec(SIGNATURE, "1")
    for rows, id in ((1, ""), (2, ""), (1, ""), (1, "a"), (1, "b"), (2, 'q"')):
        request = InferRequest(
            inputs(rows), rows, ignore, id=id, parameters={"p": "x"}, timeout_us=5, sequence_id=7, flags=SEQUENCE_START
        )
        request.callers = ("m",)
        length, parts = client.encode_request(request)
        got = server.decode(b"".join(parts), length, ignore)
        assert (got.id, got.rows, got.parameters, got.timeout_us) == (id, rows, {"p": "x"}, 5)
        assert (got.sequence_id, got.flags, got.outputs) == (7, SEQUENCE_START, None)
        assert got.callers == ("m",)
        for name, array in request.inputs.items():
            assert got.inputs[name].dtype == array.dtype
            np.testing.assert_array_equal(got.inputs[name], array)


@pytest.mark.parametrize("outputs", [None, ("A",)], ids=["all outputs", "one output"])
@pytest.mark.parametrize(
    "given",
    [
        {"p": math.inf},
        {"p": -math.inf, "q": "null"},
        {"binary_data_output": "x"},
        {"binary_data_output": False, "p": 1},
        {"binary_data_output": math.inf},
    ],
    ids=repr,
)
def test_parameters_that_only_grpc_can_give_arrive_as_they_were(given: Any, outputs: tuple[str, ...] | None) -> None:
    client, server = HttpClientCodec(SIGNATURE), HttpInferCodec(SIGNATURE, "1")
    sent = given.copy()
    length, parts = client.encode_request(InferRequest(inputs(1), 1, ignore, parameters=sent, outputs=outputs))
    got = server.decode(b"".join(parts), length, ignore)
    assert (got.parameters, got.outputs) == (given, outputs)
    assert sent == given


def test_a_parameter_that_is_no_number_arrives() -> None:
    client, server = HttpClientCodec(SIGNATURE), HttpInferCodec(SIGNATURE, "1")
    length, parts = client.encode_request(InferRequest(inputs(1), 1, ignore, parameters={"p": math.nan}))
    got = server.decode(b"".join(parts), length, ignore)
    assert got.parameters is not None and math.isnan(float(got.parameters["p"]))


def test_numbers_alone_take_the_prepared_way() -> None:
    signature = Signature("m", 8, tensor("A", "FP32", -1) | tensor("H", "BF16", -1), tensor("Y", "FP32", -1))
    client, server = HttpClientCodec(signature), HttpInferCodec(signature, "1")
    for value in range(3):
        arrays: dict[str, Any] = {"A": np.full((1, 3), value, np.float32), "H": np.full((1, 1), value, np.uint16)}
        request = InferRequest(arrays, 1, ignore, id=str(value), outputs=("Y",))
        length, parts = client.encode_request(request)
        got = server.decode(b"".join(parts), length, ignore)
        assert (got.id, got.outputs) == (str(value), ("Y",))
        assert got.inputs["A"].tolist() == [[value] * 3]
        sent, body = server.encode(got, InferResponse({"Y": arrays["A"] + 1}))
        response = client.decode_response(b"".join(body), sent)
        assert response.outputs["Y"].tolist() == [[value + 1] * 3]


def test_a_response_arrives_as_it_was() -> None:
    client, server = HttpClientCodec(SIGNATURE), HttpInferCodec(SIGNATURE, "1")
    for rows in (1, 2, 1):
        outputs = inputs(rows) | {"A": np.ones((rows, 4), np.float32)}
        request = InferRequest({}, rows, ignore, id=str(rows))
        length, parts = server.encode(request, InferResponse(outputs, {"p": 1}))
        for body in (b"".join(parts), memoryview(b"".join(parts))):
            got = client.decode_response(body, length)
            assert got.parameters == {"p": 1}
            assert list(got.outputs) == list(outputs)
            for name, array in outputs.items():
                assert got.outputs[name].dtype == array.dtype
                np.testing.assert_array_equal(got.outputs[name], array)


def test_a_response_without_elements_is_json_alone() -> None:
    client, server = HttpClientCodec(SIGNATURE), HttpInferCodec(SIGNATURE, "1")
    length, parts = server.encode(InferRequest({}, 1, ignore), InferResponse({"A": np.zeros((1, 0), np.float32)}))
    assert length is None
    assert client.decode_response(b"".join(parts), None).outputs["A"].shape == (1, 0)


GOOD = b'{"model_name":"m","model_version":"1","outputs":[{"name":"A","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}'


@pytest.mark.parametrize(
    ("body", "length"),
    [
        (b"", None),
        (b"", 0),
        (GOOD, len(GOOD) + 1),
        (GOOD, -1),
        (GOOD, None),
        (GOOD + bytes(3), len(GOOD)),
        (GOOD + bytes(5), len(GOOD)),
        (b"{}", 2),
        (b'{"error":"x"}', None),
        (GOOD.replace(b"FP32", b"FP33") + bytes(4), len(GOOD)),
        (GOOD.replace(b"[1]", b"[2]") + bytes(4), len(GOOD)),
        (GOOD.replace(b"binary_data_size", b"binary_data_nope") + bytes(4), len(GOOD)),
        (GOOD.replace(b"FP32", b"BYTES") + b"\xff" * 4, len(GOOD) + 1),
    ],
)
def test_a_broken_response_is_the_servers_fault(body: bytes, length: int | None) -> None:
    client = HttpClientCodec(SIGNATURE)
    with pytest.raises(Internal, match="response of model 'm': "):
        client.decode_response(body, length)
    assert client.decode_response(GOOD + bytes(4), len(GOOD)).outputs["A"].tolist() == [0]


def test_a_string_of_a_response_has_no_limit() -> None:
    client, server = HttpClientCodec(SIGNATURE), HttpInferCodec(SIGNATURE, "1")
    longest = bytes(DEFAULT_LIMITS.max_bytes_element_bytes + 1)
    string = np.array([[longest]], object)
    length, parts = server.encode(InferRequest({}, 1, ignore), InferResponse({"S": string}))
    assert client.decode_response(b"".join(parts), length).outputs["S"].item() == longest


def test_of_a_broken_string_the_output_is_named() -> None:
    head = b'{"outputs":[{"name":"S","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":4}}]}'
    with pytest.raises(Internal, match="for inference output 'S'"):
        HttpClientCodec(SIGNATURE).decode_response(head + b"\xff" * 4, len(head))


def test_inputs_without_a_datatype_are_refused() -> None:
    with pytest.raises(Internal, match="input 'A' of type complex128"):
        HttpClientCodec(SIGNATURE).encode_request(InferRequest({"A": np.zeros((1, 2, 2), complex)}, 1, ignore))
