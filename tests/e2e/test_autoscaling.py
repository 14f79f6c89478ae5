"""Models that scale with their load, on a server of their own."""

import queue
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from tests.app.metrics.scraped import samples
from tests.hostile.watch import grpc_address
from tests.repeating import asking
from tests.serving import Client, Server, slower, tensor, wait_until

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
STREAM_MODEL = """
import os, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request,)).start()

    def answer(self, request):
        sender = request.get_response_sender()
        gate = str(pb_utils.get_input_tensor_by_name(request, "GATE").as_numpy().reshape(-1)[0])
        answer = pb_utils.Tensor("PID", np.array([os.getpid()], np.int32))
        sender.send(pb_utils.InferenceResponse([answer]))
        while os.path.exists("GATES/" + gate):
            time.sleep(0.02)
        sender.send(pb_utils.InferenceResponse([answer]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
STREAM_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input { name: "GATE" data_type: TYPE_INT32 dims: 1 }
output { name: "PID" data_type: TYPE_INT32 dims: 1 }
"""
RULES = {
    "busy": {"max_replicas": 2, "target_ongoing_requests": 4, "downscale_delay_s": 4},
    "sleeps": {"min_replicas": 0, "max_replicas": 1, "downscale_delay_s": 2},
    "stream": {"max_replicas": 2, "target_ongoing_requests": 2, "downscale_delay_s": 2},
}
X = tensor("X", "INT32", [1], [0])
SCALE_UP_FLOOR_S = 6.0
SHORT, LONG = 1, 2
"""What streams wait for, between their two responses."""
HELD_S = 18.0
"""Longer than a replica has that Serve ends for other reasons."""


@pytest.fixture(scope="module")
def scaling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("scaling")
    for name, rules in RULES.items():
        (root / name / "1").mkdir(parents=True)
        code, config = (STREAM_MODEL, STREAM_CONFIG) if name == "stream" else (MODEL, CONFIG)
        (root / name / "1/model.py").write_text(code.replace("GATES", str(root.parent)))
        prefix = "" if name == "sleeps" else "eagleray."
        parameters = "".join(
            f'parameters {{ key: "{prefix}autoscaling.{key}" value {{ string_value: "{value}" }} }}\n'
            for key, value in rules.items()
        )
        (root / name / "config.pbtxt").write_text(config + parameters)
    (root / "pipe/1").mkdir(parents=True)
    (root / "pipe/config.pbtxt").write_text(CONFIG.replace('backend: "python"', PIPE))
    log = tmp_path_factory.mktemp("scaling-log") / "log"
    server = Server(root, log, "--num-cpus", "6", "--no-dashboard")
    try:
        yield server.wait_ready()
        server.stop()
    finally:
        server.kill()


def decisions(server: Server, model: str) -> dict[str, float]:
    """Return how many times more replicas were wanted (`up`), and fewer (`down`)."""
    told = samples(server.metrics_text(), application=model)
    return {dict(key)["direction"]: value for (name, key), value in told.items() if "decisions" in name}


class Stream:
    """One request on a connection of its own, of which the first response has come."""

    def __init__(self, server: Server, gate: int) -> None:
        self._client = grpc_client.InferenceServerClient(grpc_address(server.log()))
        self._answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client.start_stream(lambda result, error: self._answers.put((result, error)))
        wanted = grpc_client.InferInput("GATE", [1], "INT32")
        wanted.set_data_from_numpy(np.array([gate], np.int32))
        self._client.async_stream_infer("stream", [wanted])
        self.pid = self._take()

    def _take(self) -> int:
        result, error = self._answers.get(timeout=60)
        assert error is None, error
        return int(result.as_numpy("PID")[0])

    def end(self) -> int:
        """Return which process has sent the last response."""
        pid = self._take()
        self._client.stop_stream()
        self._client.close()
        return pid


def test_second_replica_serves_soon_after_the_load_rises_and_goes_after_it_has_fallen(scaling: Server) -> None:
    pids: dict[int, float] = {}
    failures: list[bytes] = []

    def ask(client: Client) -> None:
        answer = client.infer("busy", X)
        if answer.status == 200:
            pids.setdefault(answer.json["outputs"][0]["data"][0], time.monotonic())
        else:
            failures.append(answer.body)

    assert scaling.replica_count("busy") == 1
    started = time.monotonic()
    with asking(scaling, ask, count=8):
        wait_until(lambda: len(pids) == 2, "answers of a second replica", timeout_s=60)
    took_s = max(pids.values()) - started
    print(f"from one to two replicas: {took_s:.1f} s")
    assert not failures
    assert took_s <= SCALE_UP_FLOOR_S * slower()
    wait_until(lambda: scaling.replica_count("busy") == 1, "one replica again", timeout_s=30)
    told = samples(scaling.metrics_text(), application="busy")
    decided = decisions(scaling, "busy")
    assert decided["up"] >= 1 and decided["down"] >= 1
    assert [value for (name, _), value in told.items() if "wanted_replicas" in name] == [1]
    assert scaling.infer("busy", X).status == 200


def test_first_request_waits_for_a_replica_where_there_is_none(scaling: Server) -> None:
    wait_until(lambda: scaling.replica_count("sleeps") == 0, "no replica", timeout_s=60)
    assert scaling.get("/v2/health/ready").status == 200
    assert scaling.get("/v2/models/sleeps/ready").status == 200
    started = time.monotonic()
    answer = scaling.infer("sleeps", X)
    print(f"from no replica to the first answer: {time.monotonic() - started:.1f} s")
    assert answer.status == 200, answer.body
    wait_until(lambda: scaling.replica_count("sleeps") == 0, "no replica again", timeout_s=60)


def test_so_does_the_first_request_to_an_ensemble_of_it(scaling: Server) -> None:
    wait_until(lambda: scaling.replica_count("sleeps") == 0, "no replica", timeout_s=60)
    answer = scaling.infer("pipe", X)
    assert answer.status == 200, answer.body


def test_a_stream_longer_than_an_end_may_take_is_answered_by_the_replica_that_goes(scaling: Server) -> None:
    gates = scaling.repository.parent
    (gates / str(SHORT)).touch()
    (gates / str(LONG)).touch()
    streams = [Stream(scaling, SHORT) for _ in range(4)]
    first = streams[0].pid

    def second_answers() -> bool:
        streams.append(Stream(scaling, SHORT))
        return streams[-1].pid != first

    wait_until(second_answers, "a stream of a second replica", 30, poll_s=0.5)
    long = Stream(scaling, LONG)
    assert long.pid != first, "it has less to do"
    (gates / str(SHORT)).unlink()
    for stream in streams:
        assert stream.end() == stream.pid
    wait_until(lambda: decisions(scaling, "stream")["down"], "one replica is enough", 30)
    time.sleep(HELD_S)
    (gates / str(LONG)).unlink()
    assert long.end() == long.pid
    wait_until(lambda: scaling.replica_count("stream") == 1, "the second replica has ended", 30)
