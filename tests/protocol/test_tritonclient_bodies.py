"""Bodies that Triton's own Python client makes, and that it reads."""

from typing import Any

import numpy as np
import pytest
import tritonclient.http as http

from protocol.http_infer import HttpInferCodec
from protocol.infer import InferRequest
from tests.protocol.cases.models import SIGNATURES, answer

Client = http.InferenceServerClient


def ask(model: str, inputs: list[Any], outputs: list[Any] | None = None, **more: Any) -> tuple[InferRequest, Any]:
    codec = HttpInferCodec(SIGNATURES[model], "1")
    body, json_length = Client.generate_request_body(inputs, outputs=outputs, **more)
    request = codec.decode(body, json_length, lambda request, outcome: None)
    length, parts = codec.encode(request, answer(model, request))
    return request, Client.parse_response_body(b"".join(parts), header_length=length)


def tensor(name: str, datatype: str, array: Any, binary: bool = True) -> Any:
    tensor = http.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


@pytest.mark.parametrize("into", [True, False], ids=["binary-in", "json-in"])
@pytest.mark.parametrize("out", [True, False], ids=["binary-out", "json-out"])
def test_numbers(into: bool, out: bool) -> None:
    first, second = np.arange(16, dtype=np.int32).reshape(1, 16), np.ones((1, 16), np.int32)
    inputs = [tensor("INPUT0", "INT32", first, into), tensor("INPUT1", "INT32", second, into)]
    outputs = [http.InferRequestedOutput(name, binary_data=out) for name in ("OUTPUT0", "OUTPUT1")]
    _, result = ask("simple", inputs, outputs, request_id="7")
    assert result.get_response()["id"] == "7"
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), first + second)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), first - second)


@pytest.mark.parametrize("into", [True, False], ids=["binary-in", "json-in"])
def test_strings(into: bool) -> None:
    sent = np.array([["a", "ż", ""]], dtype=object)
    _, result = ask("strings", [tensor("TEXT", "BYTES", sent, into)])
    assert [[element.decode() for element in row] for row in result.as_numpy("TEXT_OUT")] == sent.tolist()


def test_half_precision() -> None:
    sent = np.array([[1, 2, 3, 4]], np.float16)
    _, result = ask("halves", [tensor("H", "FP16", sent)])
    np.testing.assert_array_equal(result.as_numpy("HO"), sent)


def test_no_elements() -> None:
    _, result = ask("floats", [tensor("X", "FP32", np.zeros(0, np.float32))])
    assert result.get_response()["outputs"][0]["shape"] == [0]


def test_parameters() -> None:
    request, _ = ask(
        "floats",
        [tensor("X", "FP32", np.ones(1, np.float32))],
        sequence_id=5,
        sequence_start=True,
        priority=1,
        timeout=9,
        parameters={"p": "x"},
    )
    assert (request.sequence_id, request.flags, request.timeout_us, request.parameters) == (5, 1, 9, {"p": "x"})


def test_classes() -> None:
    inputs = [tensor(name, "INT32", np.arange(16, dtype=np.int32).reshape(1, 16)) for name in ("INPUT0", "INPUT1")]
    _, result = ask("simple", inputs, [http.InferRequestedOutput("OUTPUT0", class_count=2)])
    assert result.as_numpy("OUTPUT0").tolist() == [[b"30:15", b"28:14"]]
