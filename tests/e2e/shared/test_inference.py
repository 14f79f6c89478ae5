"""Right answers, in every form in which a client can ask for them."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest
import tritonclient.http as http_client
import tritonclient.http.aio as aio_client
from tritonclient.utils import InferenceServerException

from examples.held_out import held_out_images, held_out_pngs
from tests.e2e.shared.conftest import isolated
from tests.repositories import needs_torch
from tests.serving import Server, tensor

FIRST, SECOND = np.arange(16, dtype=np.int32).reshape(1, 16), np.full((1, 16), 3, np.int32)


def pair(binary: bool = True) -> list[http_client.InferInput]:
    return [given("INPUT0", FIRST, "INT32", binary), given("INPUT1", SECOND, "INT32", binary)]


def given(name: str, array: np.ndarray, datatype: str, binary: bool = True) -> http_client.InferInput:
    made = http_client.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def json_pair() -> list[dict[str, Any]]:
    return [tensor(name, "INT32", [1, 16], a.ravel().tolist()) for name, a in (("INPUT0", FIRST), ("INPUT1", SECOND))]


def test_pipeline_reads_held_out_digits(server: Server) -> None:
    files, labels = held_out_pngs()
    right = 0
    with http_client.InferenceServerClient(server.address, network_timeout=60) as client:
        for start in range(0, len(files), 50):
            batch = np.array(files[start : start + 50], dtype=object).reshape(-1, 1)
            answer = client.infer("digits_pipeline", [given("IMAGE_BYTES", batch, "BYTES")])
            found = [label.decode() for label in answer.as_numpy("LABEL").ravel()]
            confidences = answer.as_numpy("CONFIDENCE")
            assert confidences.shape == (len(batch), 1)
            assert ((confidences > 0) & (confidences <= 1)).all()
            right += sum(a == b for a, b in zip(found, labels[start : start + 50], strict=True))
    assert right / len(files) >= 0.95


def test_pipeline_reads_one_image_at_a_time(server: Server) -> None:
    files, labels = held_out_pngs()
    with http_client.InferenceServerClient(server.address) as client:
        answers = [
            client.infer("digits_pipeline", [given("IMAGE_BYTES", np.array([[file]], dtype=object), "BYTES")])
            for file in files[:20]
        ]
    found = [answer.as_numpy("LABEL")[0, 0].decode() for answer in answers]
    assert sum(a == b for a, b in zip(found, labels[:20], strict=True)) >= 19


def test_pipeline_names_the_image_that_it_cannot_read(server: Server) -> None:
    batch = np.array([[held_out_pngs()[0][0]], [b"no image"]], dtype=object)
    with (
        http_client.InferenceServerClient(server.address) as client,
        pytest.raises(InferenceServerException, match="image 1 of the request is not a readable PNG or JPEG file"),
    ):
        client.infer("digits_pipeline", [given("IMAGE_BYTES", batch, "BYTES")])


@pytest.mark.parametrize(
    ("model", "version", "least"),
    [
        ("digits", "1", 0.88),
        ("digits", "2", 0.97),
        ("digits", "", 0.97),
        pytest.param("digits_torch", "", 0.97, marks=needs_torch),
    ],
)
def test_digits_models_read_held_out_digits(server: Server, model: str, version: str, least: float) -> None:
    images, digits = held_out_images()
    name, output = ("INPUT__0", "OUTPUT__0") if model == "digits_torch" else ("IMAGE", "SCORES")
    right = 0
    with http_client.InferenceServerClient(server.address) as client:
        for start in range(0, len(images), 64):
            rows = images[start : start + 64]
            answer = client.infer(model, [given(name, rows, "FP32")], model_version=version)
            assert answer.get_response()["model_version"] == (version or ("2" if model == "digits" else "1"))
            right += int((answer.as_numpy(output).argmax(1) == digits[start : start + 64]).sum())
    assert right / len(images) >= least


@pytest.mark.parametrize("binary_in", [True, False], ids=["binary-in", "json-in"])
@pytest.mark.parametrize("binary_out", [True, False], ids=["binary-out", "json-out"])
def test_tensors_travel_as_json_or_binary_in_both_directions(server: Server, binary_in: bool, binary_out: bool) -> None:
    wanted = [http_client.InferRequestedOutput(name, binary_data=binary_out) for name in ("OUTPUT0", "OUTPUT1")]
    with http_client.InferenceServerClient(server.address) as client:
        answer = client.infer("simple", pair(binary_in), outputs=wanted)
    assert ("data" in answer.get_output("OUTPUT0")) is not binary_out
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), FIRST + SECOND)
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), FIRST - SECOND)


def test_json_and_binary_tensors_mix_in_one_request(server: Server) -> None:
    inputs = [given("INPUT0", FIRST, "INT32", True), given("INPUT1", SECOND, "INT32", False)]
    outputs = [http_client.InferRequestedOutput("OUTPUT0", True), http_client.InferRequestedOutput("OUTPUT1", False)]
    with http_client.InferenceServerClient(server.address) as client:
        answer = client.infer("simple", inputs, outputs=outputs)
    assert "data" not in answer.get_output("OUTPUT0") and "data" in answer.get_output("OUTPUT1")
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), FIRST - SECOND)


def test_plain_json_request_gets_plain_json(server: Server) -> None:
    answer = server.infer("simple", *json_pair(), id="seven")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == {
        "id": "seven",
        "model_name": "simple",
        "model_version": "1",
        "outputs": [
            {"name": "OUTPUT0", "datatype": "INT32", "shape": [1, 16], "data": (FIRST + SECOND).ravel().tolist()},
            {"name": "OUTPUT1", "datatype": "INT32", "shape": [1, 16], "data": (FIRST - SECOND).ravel().tolist()},
        ],
    }


def test_answer_has_no_id_when_the_request_has_none(server: Server) -> None:
    assert "id" not in server.infer("simple", *json_pair()).json


def test_only_requested_outputs_are_returned(server: Server) -> None:
    answer = server.infer("simple", *json_pair(), outputs=[{"name": "OUTPUT1"}])
    assert [output["name"] for output in answer.json["outputs"]] == ["OUTPUT1"]


def test_binary_data_output_makes_all_outputs_binary(server: Server) -> None:
    answer = server.infer("simple", *json_pair(), parameters={"binary_data_output": True})
    assert answer.headers["content-type"] == "application/octet-stream"
    length = int(answer.headers["inference-header-content-length"])
    head, tail = json.loads(answer.body[:length]), answer.body[length:]
    assert [output["parameters"] for output in head["outputs"]] == [{"binary_data_size": 64}] * 2
    assert tail == (FIRST + SECOND).tobytes() + (FIRST - SECOND).tobytes()


def test_id_and_parameters_reach_the_model(server: Server) -> None:
    parameters = {"text": "a", "whole": 7, "flag": True, "half": 0.5}
    answer = server.infer("async_model", tensor("X", "INT32", [1], [5]), id="r1", parameters=parameters)
    (text,) = answer.json["outputs"][0]["data"]
    assert json.loads(text) == {"id": "r1", "x": 5, "parameters": parameters}


def test_classification_names_the_labels(server: Server) -> None:
    images, digits = held_out_images()
    wanted = [http_client.InferRequestedOutput("SCORES", class_count=2)]
    with http_client.InferenceServerClient(server.address) as client:
        answer = client.infer("digits", [given("IMAGE", images[:1], "FP32")], outputs=wanted)
    best = answer.as_numpy("SCORES")[0, 0].decode().split(":")
    assert (best[1], best[2]) == (
        str(digits[0]),
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"][digits[0]],
    )


@pytest.mark.parametrize(
    ("model", "name", "output", "array", "datatype"),
    [
        ("floats", "X", "Y", np.array([np.nan, np.inf, -np.inf, 1.5], np.float32), "FP32"),
        ("floats", "X", "Y", np.zeros(0, np.float32), "FP32"),
        ("halves", "H", "HO", np.array([[1.5, -2, np.inf, 0]], np.float16), "FP16"),
        ("flags", "B", "BO", np.array([[True, False, True, True]]), "BOOL"),
        ("strings", "TEXT", "TEXT_OUT", np.array([[b"a\0b", b"", b"\xff\xfe", "ü".encode()]], dtype=object), "BYTES"),
    ],
    ids=["nan-and-infinity", "empty", "halves", "flags", "strings"],
)
def test_values_come_back_as_they_were_sent(
    server: Server, model: str, name: str, output: str, array: np.ndarray, datatype: str
) -> None:
    with http_client.InferenceServerClient(server.address) as client:
        answer = client.infer(model, [given(name, array, datatype)])
    np.testing.assert_array_equal(answer.as_numpy(output), array)


def test_asynchronous_client_runs_requests_at_once(server: Server) -> None:
    async def ask() -> list[Any]:
        async with aio_client.InferenceServerClient(server.address) as client:
            return await asyncio.gather(*(client.infer("simple", pair(), request_id=str(i)) for i in range(32)))

    answers = asyncio.run(ask())
    assert [answer.get_response()["id"] for answer in answers] == [str(i) for i in range(32)]
    for answer in answers:
        np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), FIRST + SECOND)


@isolated
def test_async_infer_of_the_threaded_client_runs_requests_at_once(server: Server) -> None:
    with http_client.InferenceServerClient(server.address, concurrency=4) as client:
        pending = [client.async_infer("simple", pair()) for _ in range(16)]
        for each in pending:
            np.testing.assert_array_equal(each.get_result().as_numpy("OUTPUT0"), FIRST + SECOND)


@isolated
def test_body_may_come_in_chunks(server: Server) -> None:
    with server.client() as client:
        client.send("POST", "/v2/models/simple/infer", None, {"Transfer-Encoding": "chunked"})
        body = json.dumps({"inputs": json_pair()}).encode()
        for start in range(0, len(body), 100):
            piece = body[start : start + 100]
            client._connection.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        client._connection.send(b"0\r\n\r\n")
        assert client.receive().status == 200
