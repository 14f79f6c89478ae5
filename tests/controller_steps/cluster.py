"""The cluster on which a controller dies, and the models that it serves."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.checked_load import CheckedLoad
from tests.controller_steps.asking import Addresses
from tests.controller_steps.bystanders import Bystanders
from tests.controller_steps.operations import Walk
from tests.controller_steps.steps import Steps
from tests.serving import Endpoint, tensor, title_of

RATE = 20
CODE = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.02)  # so that some are always under way
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TAG", np.array([TAG], np.int32))]) for _ in requests]
"""
FAILING = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("this version is no good")
"""
CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "TAG" data_type: TYPE_INT32 dims: 1 }
"""
X = tensor("X", "INT32", [1], [0])


def parameter(name: str, value: object) -> str:
    return f'parameters {{ key: "eagleray.{name}" value {{ string_value: "{value}" }} }}\n'


def write(root: Path, name: str, tag: object, version: int = 1, config: str = "") -> None:
    """Write a version of a model that answers with a number, or does not load where it is none."""
    folder = root / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(f"TAG = {tag}\n{CODE}")
    (root / name / "config.pbtxt").write_text(CONFIG + config)


class Cluster(Endpoint):
    """A server, or nodes that are asked as one, and what a client sees of it."""

    timeout_s = 120.0

    def __init__(
        self,
        addresses: Addresses,
        root: Path,
        processes: Callable[[], list[psutil.Process]],
        steps: Steps,
        bystanders: Sequence[str],
    ) -> None:
        self.address = addresses.http
        self.root = root
        self.steps = steps
        self.walk = Walk(addresses, steps, Bystanders(self.client, processes, bystanders))
        self._processes = processes

    def control(self, name: str, verb: str, body: Any = None) -> None:
        answer = self.post(f"/v2/repository/models/{name}/{verb}", body)
        assert answer.status == 200, answer.body

    def ready(self, name: str) -> list[str]:
        """Return the versions that are READY; all others must have been unloaded."""
        rows = [row for row in self.post("/v2/repository/index").json if row["name"] == name and "version" in row]
        others = [row for row in rows if row["state"] != "READY"]
        unloaded = all((row["state"], row.get("reason")) == ("UNAVAILABLE", "unloaded") for row in others)
        return [row["version"] for row in rows if row["state"] == "READY"] if unloaded else ["others", str(others)]

    def replicas(self, application: str) -> int:
        title = f"ray::ServeReplica:{application}:"
        return sum(title_of(each).startswith(title) for each in self._processes())

    def answer(self, name: str) -> int:
        answer = self.infer(name, X)
        return int(answer.json["outputs"][0]["data"][0]) if answer.status == 200 else -answer.status


@contextmanager
def asked_beside(cluster: Cluster) -> Iterator[None]:
    """Ask a model that nobody changes, and say in the end what was done."""
    port = int(cluster.address.rpartition(":")[2])
    with CheckedLoad(port, "doubles", RATE, connections=4).running() as outcome:
        yield
    walked = cluster.walk.walked
    print(
        f"{walked.operations} operations, {walked.killed} deaths of the controller; {walked.asked} requests to the "
        f"models that changed, {len(walked.wrong)} faults; beside them {outcome}"
    )
    assert outcome.sent == len(outcome.answered), outcome
