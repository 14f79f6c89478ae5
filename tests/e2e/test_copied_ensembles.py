"""Ensembles whose steps run in other processes: the ingresses host them too, and nobody sees a difference."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving import Answer, Server, tensor, title_of, wait_until

CONFIG = """
backend: "python" max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
"""
MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", CHANGE)])
            for x in (pb_utils.get_input_tensor_by_name(each, "X").as_numpy() for each in requests)
        ]
"""
ENSEMBLE = """
platform: "ensemble" max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling {
  step { model_name: "FIRST" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "Y" value: "between" } }
  step { model_name: "add_one" model_version: -1
    input_map { key: "X" value: "between" } output_map { key: "Y" value: "Y" } }
}
"""
FLAGS = ("--placement", "isolated", "--model-control-mode", "explicit", "--load-model", "*", "--num-cpus", "4")
CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.ask(pb_utils.get_input_tensor_by_name(each, "X").as_numpy()) for each in requests]

    def ask(self, x):
        call = pb_utils.InferenceRequest(
            model_name="pipeline", requested_output_names=["Y"], inputs=[pb_utils.Tensor("X", x)]
        )
        answer = call.exec()
        if answer.has_error():
            raise pb_utils.TritonModelException(answer.error().message())
        return pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(answer, "Y")])
"""
ASKED = 24
"""Each on a connection of its own, so that both ingresses are asked."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("copied")
    for name, change in (("add_one", "x + 1"), ("double", "x * 2"), ("negate", "-x")):
        write(root, name, CONFIG, MODEL.replace("CHANGE", change))
    write(root, "pipeline", ENSEMBLE.replace("FIRST", "double"))
    write(root, "caller", CONFIG, CALLER)
    log = tmp_path_factory.mktemp("copied-log") / "log"
    started = Server(root, log, *FLAGS, "--no-dashboard", "--ingresses-per-node", "2")
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


def write(root: Path, name: str, config: str, code: str = "") -> None:
    (root / name / "1").mkdir(parents=True, exist_ok=True)
    (root / name / "config.pbtxt").write_text(config)
    if code:
        (root / name / "1/model.py").write_text(code)


def ask(server: Server, x: float = 3.0) -> list[Answer]:
    return [server.infer("pipeline", tensor("X", "FP32", [1, 1], [x])) for _ in range(ASKED)]


def answers(server: Server) -> set[Any]:
    return {answer.json["outputs"][0]["data"][0] if answer.status == 200 else answer.error for answer in ask(server)}


def replica_pids(server: Server, name: str) -> list[int]:
    title = f"ray::ServeReplica:{name}:"
    return [each.pid for each in server.descendants() if title_of(each).startswith(title)]


def counted(server: Server) -> tuple[int, int]:
    return server.statistics("pipeline")["inference_count"], server.statistics("add_one")["inference_count"]


def test_requests_are_counted_once(server: Server) -> None:
    before = counted(server)
    assert answers(server) == {7.0}
    assert counted(server) == (before[0] + ASKED, before[1] + ASKED)
    text = server.metrics_text()
    assert f'nv_inference_count{{model="pipeline",version="1"}} {before[0] + ASKED}' in text
    assert 'eagleray_responses_total{model="pipeline",version="1",protocol="http",code="200"}' in text
    assert 'eagleray_responses_total{model="add_one"' not in text  # no client has asked it
    ready = 'eagleray_replicas{model="pipeline",version="1",state="ready"} '
    wait_until(lambda: f"{ready}1\n" in server.metrics_text(), "the one replica in the metrics")


def test_a_model_reaches_its_replica(server: Server) -> None:
    before = counted(server)
    answer = server.infer("caller", tensor("X", "FP32", [1, 1], [3.0]))
    assert answer.json["outputs"][0]["data"] == [7.0]
    assert counted(server) == (before[0] + 1, before[1] + 1)


def test_no_request_waits_for_its_replica(server: Server) -> None:
    """The ingresses go on by themselves, and the replica is there again for others."""
    (old,) = replica_pids(server, "pipeline")
    os.kill(old, signal.SIGKILL)
    assert answers(server) == {7.0}
    assert replica_pids(server, "pipeline") in ([], [old])  # there was none meanwhile
    wait_until(lambda: replica_pids(server, "pipeline") not in ([], [old]), "another replica")


def test_a_reload_holds_in_every_ingress_when_it_is_answered(server: Server) -> None:
    for first, answered in (("negate", -2.0), ("double", 7.0)) * 3:
        write(server.repository, "pipeline", ENSEMBLE.replace("FIRST", first))
        assert server.post("/v2/repository/models/pipeline/load").status == 200
        assert answers(server) == {answered}


def test_a_step_that_changes_changes_what_the_ensemble_takes(server: Server) -> None:
    write(server.repository, "negate", CONFIG.replace("dims: 1", "dims: 2"))
    assert server.post("/v2/repository/models/negate/load").status == 200
    write(server.repository, "pipeline", ENSEMBLE.replace("FIRST", "negate"))
    refused = server.post("/v2/repository/models/pipeline/load")
    assert refused.status == 400
    assert answers(server) == {7.0}
    write(server.repository, "pipeline", ENSEMBLE.replace("FIRST", "double"))
    write(server.repository, "negate", CONFIG)
    for name in ("negate", "pipeline"):
        assert server.post(f"/v2/repository/models/{name}/load").status == 200
    assert answers(server) == {7.0}


def test_one_that_is_unloaded_is_gone_everywhere(server: Server) -> None:
    assert server.post("/v2/repository/models/pipeline/unload").status == 200
    assert {answer.status for answer in ask(server)} == {404}
    assert server.post("/v2/repository/models/pipeline/load").status == 200
    assert answers(server) == {7.0}


def test_one_whose_step_is_unloaded_is_not_ready(server: Server) -> None:
    assert server.post("/v2/repository/models/double/unload").status == 200
    assert all(answer.status in (400, 404, 503) for answer in ask(server))
    for name in ("double", "pipeline"):
        assert server.post(f"/v2/repository/models/{name}/load").status == 200
    assert answers(server) == {7.0}
