"""Python models that answer with a number, which tells what was loaded, and clients that ask them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.repeating import asking
from tests.serving import Answer, Client, Server, tensor, wait_until

TAGGED = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TAG", np.array([TAG], np.int32))]) for _ in requests]
"""
TAGGED_CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "TAG" data_type: TYPE_INT32 dims: 1 }
"""
CALLING = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.ask(request) for request in requests]

    def ask(self, request):
        call = pb_utils.InferenceRequest(model_name="tagged", requested_output_names=["TAG"], inputs=request.inputs())
        answer = call.exec()
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        return pb_utils.InferenceResponse(answer.output_tensors())
"""
"""Asks `tagged`, of whatever version."""
STAGED = """
platform: "ensemble"
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "TAG" data_type: TYPE_INT32 dims: 1 }
ensemble_scheduling {
  step {
    model_name: "%s" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "TAG" value: "TAG" }
  }
  max_inflight_requests: 8
}
"""
WHEN_LOADED = "__import__('time').monotonic_ns() // 1000 % 2**31"


def write_tagged(root: Path, name: str, tag: str, version: int = 1, config: str = "") -> None:
    """Write a Python model that answers with a number, or that does not load when it is none."""
    folder = root / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(f"TAG = {tag}\n{TAGGED}")
    (root / name / "config.pbtxt").write_text(TAGGED_CONFIG + config)


def ask(client: Client, name: str, version: str = "") -> Answer:
    return client.infer(name, tensor("X", "INT32", [1], [0]), version=version)


def tag(answer: Answer) -> int:
    return int(answer.json["outputs"][0]["data"][0])


class Asking:
    """Clients that ask one model all the time, and what they were told."""

    def __init__(self, server: Server, name: str, count: int = 4) -> None:
        self.answers: list[Answer] = []
        self.seconds: list[float] = []
        self._server = server
        self._name = name
        self._count = count

    def _ask(self, client: Client) -> None:
        started = time.monotonic()
        self.answers.append(ask(client, self._name))
        self.seconds.append(time.monotonic() - started)

    @contextmanager
    def running(self) -> Iterator["Asking"]:
        with asking(self._server, self._ask, self._count):
            wait_until(lambda: len(self.answers) > 20, "answers before the change")
            yield self
            count = len(self.answers)
            wait_until(lambda: len(self.answers) > count + 20, "answers after the change")

    def assert_served(self) -> None:
        assert {answer.status for answer in self.answers} == {200}, [
            answer.body for answer in self.answers if answer.status != 200
        ][:3]
