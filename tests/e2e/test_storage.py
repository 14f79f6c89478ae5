"""Repositories in buckets, served by two nodes that share no folder for them."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.checked_load import CheckedLoad
from tests.e2e import ray_head
from tests.object_stores import Bucket, as_container, emulator, gs_bucket, s3_bucket
from tests.serving import Answer, Process, Server, free_port, tensor, wait_until

MODEL = """
import json
import os
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        node = os.path.basename(os.environ["EAGLERAY_MODEL_CACHE_DIR"])
        config.add_output({"name": f"COMPLETED_ON_{node}", "data_type": "TYPE_INT32", "dims": [1]})
        return config

    def initialize(self, args):
        self.told = [args["model_repository"], str(os.getpid())]
        self.completed = json.loads(args["model_config"])["output"][-1]["name"]

    def execute(self, requests):
        told = pb_utils.Tensor("TOLD", np.array([each.encode() for each in self.told], np.object_))
        pid = pb_utils.Tensor("PID", np.array([os.getpid()], np.int64))
        numbers = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        completed = pb_utils.Tensor(self.completed, np.array([1], np.int32))
        return [pb_utils.InferenceResponse([told, pid, completed, pb_utils.Tensor("Y", 2 * x)]) for x in numbers]
"""
CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output { name: "TOLD" data_type: TYPE_STRING dims: 2 }
output { name: "PID" data_type: TYPE_INT64 dims: 1 }
output { name: "Y" data_type: TYPE_INT32 dims: 1 }
"""
# Only the head has so many CPUs, and only the worker a GPU.
PARAMETERS = {
    "on_head": 'parameters { key: "eagleray.num_cpus" value { string_value: "1.5" } }',
    "on_worker": "",
}
KINDS = {"on_head": "KIND_CPU", "on_worker": "KIND_GPU"}
# Stores without a server in a Python package: each has one model more where its emulator is installed.
OTHERS = {"gs": gs_bucket, "as": as_container}
BESIDE_ON_WORKER = """
parameters { key: "eagleray.node_labels" value { string_value: "zone=worker" } }
parameters { key: "eagleray.num_cpus" value { string_value: "0.1" } }
"""


def outputs(answer: Answer) -> dict[str, Any]:
    return {each["name"]: each["data"] for each in answer.json["outputs"]}


@dataclass
class Stored:
    """The server, its buckets, and the two nodes' caches."""

    server: Server
    bucket: Bucket
    others: dict[str, Bucket]
    head_cache: Path
    worker_cache: Path

    def told(self, model: str) -> tuple[str, int]:
        """Return the folder and the process that a model has."""
        answer = self.server.infer(model, tensor("X", "INT32", [1], [0]))
        assert answer.status == 200, answer.body
        folder, pid = outputs(answer)["TOLD"]
        return folder, int(pid)

    def wait_for_another(self, model: str, pid: int) -> None:
        """Wait until another process than this one answers."""

        def replaced() -> bool:
            answer = self.server.infer(model, tensor("X", "INT32", [1], [0]))
            return answer.status == 200 and int(outputs(answer)["TOLD"][1]) != pid

        wait_until(replaced, "another replica", timeout_s=60)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    folder = Path(tempfile.mkdtemp(prefix="er-st-", dir="/tmp"))
    logs = tmp_path_factory.mktemp("storage")
    processes: list[Process] = []
    try:
        with ExitStack() as stack:
            bucket = stack.enter_context(s3_bucket(logs))
            others = {scheme: stack.enter_context(start(logs)) for scheme, start in OTHERS.items() if emulator(scheme)}
            for name, kind in KINDS.items():
                config = f"{CONFIG} instance_group {{ kind: {kind} }} {PARAMETERS[name]}"
                bucket.put({f"repository/{name}/config.pbtxt": config, f"repository/{name}/1/model.py": MODEL})
            for scheme, other in others.items():
                name = f"{scheme}_model"
                config = f"{CONFIG} instance_group {{ kind: KIND_CPU }} {BESIDE_ON_WORKER}"
                other.put({f"repository/{name}/config.pbtxt": config, f"repository/{name}/1/model.py": MODEL})
            shared = ray_head.closed_environment(folder)
            for each in (bucket, *others.values()):
                shared |= each.environment
            caches = {name: folder / name for name in ("head", "worker")}
            on_head, on_worker = (shared | {"EAGLERAY_MODEL_CACHE_DIR": str(cache)} for cache in caches.values())
            port = free_port()
            head = Process(ray_head.command(folder / "ray", port, free_port()), logs / "head", on_head, cwd=folder)
            processes.append(head)
            head.wait_for("Ray runtime started")
            address = f"127.0.0.1:{port}"
            worker = Process(
                ray_head.node_command(address, num_gpus=1, labels="zone=worker"), logs / "worker", on_worker, cwd=folder
            )
            processes.append(worker)
            worker.wait_for("Ray runtime started")
            flags = ("--ray-address", address, "--placement", "isolated", "--model-cache-dir", str(caches["head"]))
            flags += ("--model-control-mode", "poll", "--repository-poll-secs", "1")
            for other in others.values():
                flags += ("--model-repository", f"{other.uri}/repository")
            server = Server(f"{bucket.uri}/repository", logs / "log", *flags, env=on_head)
            processes.append(server)
            yield Stored(server.wait_ready(), bucket, others, caches["head"], caches["worker"])
            server.stop()
    finally:
        # A head that is told to end waits half a minute for its node to be drained.
        for process in reversed(processes):
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def test_each_node_fetches_its_models_itself(stored: Stored) -> None:
    for name, cache in (("on_head", stored.head_cache), ("on_worker", stored.worker_cache)):
        folder, _ = stored.told(name)
        assert folder.startswith(f"{cache}/models/") and folder.endswith(f"/{name}")
    models = {path.name for path in stored.worker_cache.glob("models/*/*") if path.is_dir()}
    assert models == {"on_worker", *(f"{scheme}_model" for scheme in stored.others)}


def test_a_configuration_is_completed_on_a_node_that_the_model_may_run_on(stored: Stored) -> None:
    for model, node in (("on_head", "head"), ("on_worker", "worker")):
        names = [output["name"] for output in stored.server.get(f"/v2/models/{model}").json["outputs"]]
        assert names[-1] == f"COMPLETED_ON_{node}"
        assert names[-1] in outputs(stored.server.infer(model, tensor("X", "INT32", [1], [0])))


def test_changes_of_a_polled_bucket_are_served(stored: Stored) -> None:
    before, _ = stored.told("on_head")
    stored.bucket.put({"repository/on_head/1/model.py": MODEL + "# changed"})
    wait_until(lambda: stored.told("on_head")[0] != before, "the changed model", timeout_s=90)
    after, _ = stored.told("on_head")
    assert (
        "# changed" in Path(after, "1/model.py").read_text()
        and "# changed" not in Path(before, "1/model.py").read_text()
    )


@pytest.mark.parametrize("scheme", OTHERS)
def test_so_it_is_with_other_stores(stored: Stored, scheme: str) -> None:
    """The node fetches the model, a change is served, and the replica is replaced while the store is down."""
    if scheme not in stored.others:
        pytest.skip(f"there is no emulator of {scheme}://")
    bucket, model = stored.others[scheme], f"{scheme}_model"
    before, _ = stored.told(model)
    assert before.startswith(f"{stored.worker_cache}/models/") and before.endswith(f"/{model}")
    bucket.put({f"repository/{model}/1/model.py": MODEL + "# changed"})
    wait_until(lambda: stored.told(model)[0] != before, "the changed model", timeout_s=90)
    after, pid = stored.told(model)
    assert "# changed" in Path(after, "1/model.py").read_text()
    bucket.stop()
    os.kill(pid, signal.SIGKILL)
    stored.wait_for_another(model, pid)
    # A replica that takes the place of one killed right after a change may begin with what was before it.
    wait_until(lambda: stored.told(model)[0] == after, "the changed model from the node's cache", timeout_s=60)


def test_replica_is_replaced_while_the_store_is_down(stored: Stored) -> None:
    """Runs last: it stops the store."""
    folder, pid = stored.told("on_worker")

    with CheckedLoad(int(stored.server.address.rpartition(":")[2]), "on_head", 200).running() as outcome:
        stored.bucket.stop()
        os.kill(pid, signal.SIGKILL)
        stored.wait_for_another("on_worker", pid)
    print(f"a store that is down: {outcome}")
    assert outcome.sent == len(outcome.answered), outcome
    assert stored.told("on_worker")[0] == folder
