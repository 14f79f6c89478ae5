"""Models that scale with their load, on a server of their own."""

import time
from collections.abc import Iterator

import pytest

from tests.app.metrics.scraped import samples
from tests.repeating import asking
from tests.serving import Client, Server, slower, tensor, title_of, wait_until

MODEL = """
import os, time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.05 * len(requests))
        answer = np.array([os.getpid()], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("PID", answer)]) for _ in requests]
"""
CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "PID" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
PIPE = """
platform: "ensemble"
ensemble_scheduling { step { model_name: "sleeps" model_version: -1
  input_map { key: "X" value: "X" } output_map { key: "PID" value: "PID" } } }
"""
RULES = {
    "busy": {"max_replicas": 2, "target_ongoing_requests": 4, "downscale_delay_s": 4},
    "sleeps": {"min_replicas": 0, "max_replicas": 1, "downscale_delay_s": 2},
}
X = tensor("X", "INT32", [1], [0])
SCALE_UP_FLOOR_S = 6.0


@pytest.fixture(scope="module")
def scaling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("scaling")
    for name, rules in RULES.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "1/model.py").write_text(MODEL)
        prefix = "" if name == "sleeps" else "eagleray."
        parameters = "".join(
            f'parameters {{ key: "{prefix}autoscaling.{key}" value {{ string_value: "{value}" }} }}\n'
            for key, value in rules.items()
        )
        (root / name / "config.pbtxt").write_text(CONFIG + parameters)
    (root / "pipe/1").mkdir(parents=True)
    (root / "pipe/config.pbtxt").write_text(CONFIG.replace('backend: "python"', PIPE))
    log = tmp_path_factory.mktemp("scaling-log") / "log"
    server = Server(root, log, "--num-cpus", "4", "--no-dashboard")
    try:
        yield server.wait_ready()
        server.stop()
    finally:
        server.kill()


def replicas(server: Server, model: str) -> int:
    return sum(title_of(process).startswith(f"ray::ServeReplica:{model}:") for process in server.descendants())


def test_second_replica_serves_soon_after_the_load_rises_and_goes_after_it_has_fallen(scaling: Server) -> None:
    pids: dict[int, float] = {}
    failures: list[bytes] = []

    def ask(client: Client) -> None:
        answer = client.infer("busy", X)
        if answer.status == 200:
            pids.setdefault(answer.json["outputs"][0]["data"][0], time.monotonic())
        else:
            failures.append(answer.body)

    assert replicas(scaling, "busy") == 1
    started = time.monotonic()
    with asking(scaling, ask, count=8):
        wait_until(lambda: len(pids) == 2, "answers of a second replica", timeout_s=60)
    took_s = max(pids.values()) - started
    print(f"from one to two replicas: {took_s:.1f} s")
    assert not failures
    assert took_s <= SCALE_UP_FLOOR_S * slower()
    wait_until(lambda: replicas(scaling, "busy") == 1, "one replica again", timeout_s=30)
    told = samples(scaling.metrics_text(), application="busy")
    decisions = {dict(key)["direction"]: value for (name, key), value in told.items() if "decisions" in name}
    assert decisions["up"] >= 1 and decisions["down"] >= 1
    assert [value for (name, _), value in told.items() if "wanted_replicas" in name] == [1]
    assert scaling.infer("busy", X).status == 200


def test_first_request_waits_for_a_replica_where_there_is_none(scaling: Server) -> None:
    wait_until(lambda: replicas(scaling, "sleeps") == 0, "no replica", timeout_s=60)
    assert scaling.get("/v2/health/ready").status == 200
    assert scaling.get("/v2/models/sleeps/ready").status == 200
    started = time.monotonic()
    answer = scaling.infer("sleeps", X)
    print(f"from no replica to the first answer: {time.monotonic() - started:.1f} s")
    assert answer.status == 200, answer.body
    wait_until(lambda: replicas(scaling, "sleeps") == 0, "no replica again", timeout_s=60)


def test_so_does_the_first_request_to_an_ensemble_of_it(scaling: Server) -> None:
    wait_until(lambda: replicas(scaling, "sleeps") == 0, "no replica", timeout_s=60)
    answer = scaling.infer("pipe", X)
    assert answer.status == 200, answer.body
