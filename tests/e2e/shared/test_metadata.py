"""Health, metadata, configuration and the routes around them, as curl sees them."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest
import tritonclient.http as http_client
import tritonclient.http.aio as aio_client

from tests.e2e.shared.conftest import isolated
from tests.repositories import needs_torch
from tests.serving import Answer, Client, Server, title_of, wait_until

_LOOK_S = 2.0


def expect(answer: Answer, status: int, error: str) -> None:
    assert (answer.status, answer.error) == (status, error)
    assert answer.headers["content-type"] == "application/json"


def test_server_is_live(server: Server) -> None:
    for path in ("/v2/health/live", "/-/healthz"):
        answer = server.get(path)
        assert (answer.status, answer.body) == (200, b"")


def test_server_with_broken_models_is_not_ready(server: Server) -> None:
    answer = server.get("/v2/health/ready")
    assert (answer.status, answer.body) == (400, b"")


def test_server_metadata_names_server_and_extensions(server: Server) -> None:
    metadata = server.get("/v2").json
    assert metadata["name"] == "triton"
    assert metadata["version"]
    offered = {
        "binary_tensor_data",
        "classification",
        "model_configuration",
        "model_repository",
        "sequence",
        "statistics",
    }
    assert offered <= set(metadata["extensions"])


def test_model_metadata_has_batch_dimension_and_all_versions(server: Server) -> None:
    assert server.get("/v2/models/digits").json == {
        "name": "digits",
        "versions": ["1", "2"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "IMAGE", "datatype": "FP32", "shape": [-1, 64]}],
        "outputs": [{"name": "SCORES", "datatype": "FP32", "shape": [-1, 10]}],
    }


def test_model_metadata_of_one_version_names_that_version(server: Server) -> None:
    assert server.get("/v2/models/digits/versions/1").json["versions"] == ["1"]


@pytest.mark.parametrize(
    ("model", "platform"),
    [
        ("digits_preprocess", "python"),
        ("digits_pipeline", "ensemble"),
        pytest.param("digits_torch", "pytorch_libtorch", marks=needs_torch),
    ],
)
def test_model_metadata_names_platform(server: Server, model: str, platform: str) -> None:
    assert server.get(f"/v2/models/{model}").json["platform"] == platform


def test_configuration_is_completed_from_the_model(server: Server) -> None:
    config = server.get("/v2/models/digits_postprocess/config").json
    assert config["name"] == "digits_postprocess"
    assert config["backend"] == "python"
    assert config["max_batch_size"] == 64
    assert config["default_model_filename"] == "model.py"
    assert [tensor["name"] for tensor in config["input"]] == ["SCORES"]
    assert [(tensor["name"], tensor["data_type"]) for tensor in config["output"]] == [
        ("LABEL", "TYPE_STRING"),
        ("CONFIDENCE", "TYPE_FP32"),
    ]
    assert "dynamic_batching" in config
    assert config["instance_group"][0]["count"] == 1
    assert config["version_policy"] == {"latest": {"num_versions": 1}}


@pytest.mark.parametrize("path", ["", "/versions/1", "/versions/2"])
def test_ready_model_answers_200_without_body(server: Server, path: str) -> None:
    answer = server.get(f"/v2/models/digits{path}/ready")
    assert (answer.status, answer.body) == (200, b"")


UNKNOWN = [
    ("nobody", "", "Request for unknown model: 'nobody' is not found"),
    ("digits", "/versions/3", "Request for unknown model: 'digits' version 3 is not found"),
    ("broken_import", "", "Request for unknown model: 'broken_import' has no available versions"),
]


@pytest.mark.parametrize("what", ["", "/config", "/infer"], ids=["metadata", "config", "infer"])
@pytest.mark.parametrize(("model", "version", "text"), UNKNOWN, ids=["model", "version", "broken"])
def test_unknown_model_or_version_is_404(server: Server, what: str, model: str, version: str, text: str) -> None:
    path = f"/v2/models/{model}{version}{what}"
    expect(server.post(path, {}) if what == "/infer" else server.get(path), 404, text)


@pytest.mark.parametrize("path", ["nobody", "digits/versions/3", "broken_import", "broken_import/versions/1"])
def test_a_model_or_version_that_is_unknown_or_broken_is_not_ready(server: Server, path: str) -> None:
    expect(server.get(f"/v2/models/{path}/ready"), 400, "Model version not ready")


def test_version_that_is_known_and_broken_is_503(server: Server) -> None:
    text = "Request for unknown model: 'broken_import' version 1 is not at ready state"
    expect(server.get("/v2/models/broken_import/versions/1"), 503, text)
    expect(server.infer("broken_import", version="1"), 503, text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("nobody/stats", "requested model 'nobody' is not available"),
        ("broken_import/stats", "requested model 'broken_import' is not available"),
        ("digits/versions/3/stats", "requested model version is not available for model 'digits'"),
    ],
)
def test_statistics_of_unknown_model_are_400(server: Server, path: str, text: str) -> None:
    expect(server.get(f"/v2/models/{path}"), 400, text)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2"),
        ("POST", "/v2/health/live"),
        ("PUT", "/v2/health/ready"),
        ("DELETE", "/v2/models/digits"),
        ("POST", "/v2/models/digits/config"),
        ("POST", "/v2/models/digits/ready"),
        ("POST", "/v2/models/stats"),
        ("GET", "/v2/models/digits/infer"),
        ("GET", "/v2/models/digits/versions/1/infer"),
        ("GET", "/v2/repository/index"),
        ("GET", "/v2/repository/models/digits/load"),
    ],
)
@isolated
def test_wrong_method_is_405(server: Server, method: str, path: str) -> None:
    with server.client() as client:
        expect(client.request(method, path), 405, "Method Not Allowed")


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v2/",
        "/v2/health",
        "/v2/health/live/",
        "/v2/models",
        "/v2/models/digits/",
        "/v2/models/digits/nothing",
        "/v2/models/digits/versions/one",
        "/v2/models/digits/versions/-1",
        "/v2/models/digits/versions/1/nothing",
        "/V2",
        "//v2",
    ],
)
@isolated
def test_unknown_path_is_404(server: Server, path: str) -> None:
    expect(server.get(path), 404, "Not Found")


@isolated
def test_query_strings_are_ignored(server: Server) -> None:
    assert server.get("/v2/models/digits?x=1").json["name"] == "digits"


@isolated
def test_metrics_port_answers_every_path_and_only_get(server: Server) -> None:
    with Client(server.metrics_address) as client:
        anywhere = client.get("/anything/else")
        assert (anywhere.status, anywhere.body) == (200, b"")
        assert client.request("POST", "/metrics").status == 405


def _described(client: Any) -> list[Any]:
    return [
        client.is_server_live(),
        client.is_server_ready(),
        client.is_model_ready("digits"),
        client.is_model_ready("digits", "2"),
        client.is_model_ready("nobody"),
        client.get_server_metadata(),
        client.get_model_metadata("digits"),
        client.get_model_config("digits"),
        client.get_inference_statistics("digits"),
        client.get_model_repository_index(),
    ]


def _check(described: list[Any]) -> None:
    *health, metadata, model, config, statistics, index = described
    assert health == [True, False, True, True, False]
    assert metadata["name"] == "triton"
    assert model["name"] == config["name"] == "digits"
    assert [row["version"] for row in statistics["model_stats"]] == ["1", "2"]
    assert {"name": "digits", "version": "1", "state": "READY"} in index


def test_tritonclient_describes_the_server(server: Server) -> None:
    with http_client.InferenceServerClient(server.address) as client:
        _check(_described(client))


@isolated
def test_asynchronous_tritonclient_describes_the_server(server: Server) -> None:
    async def described() -> list[Any]:
        async with aio_client.InferenceServerClient(server.address) as client:
            return [await each for each in _described(client)]

    _check(asyncio.run(described()))


def main_thread_waits(server: Server) -> dict[int, int]:
    """Return how often the main thread of each replica, ingress and controller of ours has begun to wait."""
    ours = [process.pid for process in server.descendants() if title_of(process).startswith("ray::ServeReplica")]
    waits = re.compile(r"(?m)^voluntary_ctxt_switches:\s*(\d+)")
    return {pid: int(waits.findall(Path(f"/proc/{pid}/task/{pid}/status").read_text())[0]) for pid in ours}


def test_main_threads_hardly_wake_when_there_is_nothing_to_do(server: Server) -> None:
    before, begin = main_thread_waits(server), time.monotonic()
    wait_until(lambda: time.monotonic() - begin > _LOOK_S, "the end of a look")
    after = main_thread_waits(server)
    elapsed_s = time.monotonic() - begin
    rates = {pid: (waits - before[pid]) / elapsed_s for pid, waits in after.items() if pid in before}
    assert rates
    assert all(rate <= 40 for rate in rates.values()), f"waits a second of main threads: {rates}"
