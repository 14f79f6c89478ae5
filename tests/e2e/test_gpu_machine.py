"""A server on a machine with a GPU: what lands there, what it answers, and what it leaves when it goes."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http
from numpy.typing import NDArray

from tests.app.metrics.scraped import families
from tests.deployments.backends.onnx_models import write_model
from tests.gpus import on_a_gpu
from tests.hostile.watch import grpc_address
from tests.serving import EAGLERAY, Server, environment, run, title_of, wait_until

pytestmark = [
    pytest.mark.gpu,
    on_a_gpu,
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
]

MIB = 1 << 20
WIDE = 8192
WEIGHTS_MIB = WIDE * WIDE * 4 // MIB
TENSORS = """
max_batch_size: 64
dynamic_batching { }
input [ { name: "X" data_type: TYPE_FP32 dims: [ 64 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 16 ] } ]
"""
ON_GPU = "instance_group { kind: KIND_GPU }"
BOTH = "instance_group [ { kind: KIND_GPU }, { kind: KIND_CPU } ]"
TWO = "instance_group { kind: KIND_GPU count: 2 }"
LINEAR = {
    "onnx_auto": ("onnxruntime", ""),
    "onnx_two": ("onnxruntime", TWO),
    "onnx_both": ("onnxruntime", BOTH),
    "torch_auto": ("pytorch", ""),
    "torch_two": ("pytorch", TWO),
    "python_gpu": ("python", ON_GPU),
}
"""Models of one linear layer."""

PYTHON = """
import os
import numpy as np
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        assert args["model_instance_kind"] == "GPU"
        weights = np.load(os.path.join(args["model_repository"], args["model_version"], "weights.npy"))
        self.weights = torch.from_numpy(weights).to(f"cuda:{args['model_instance_device_id']}")

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            y = torch.from_numpy(x).cuda() @ self.weights
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", y)]))
        return answers
"""

EMBEDS = """
backend: "pytorch"
max_batch_size: 8
input [ { name: "INPUT__0" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1, 4 ] } ]
"""
"""An index that is out of range is an assertion that fails on the GPU, after which CUDA answers nothing else."""

HEAVY = f"""
backend: "onnxruntime"
max_batch_size: 1024
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ {WIDE} ] }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ {WIDE} ] }} ]
"""
GROWS = """
backend: "pytorch"
input [ { name: "INPUT__0" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


def write_models(root: Path) -> NDArray[np.float32]:
    """Write the models, and return the weights of those of one layer."""
    import torch

    class Linear(torch.nn.Module):
        def __init__(self, weights: NDArray[np.float32]) -> None:
            super().__init__()
            self.weights = torch.nn.Parameter(torch.from_numpy(weights))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weights

    class Grows(torch.nn.Module):
        """Fills as many GiB as it is told."""

        def forward(self, gib: torch.Tensor) -> torch.Tensor:
            return torch.ones([int(gib[0].item()), 1 << 28], device=gib.device).sum().reshape(1)

    weights = np.random.default_rng(0).standard_normal((64, 16), np.float32)
    for name, (backend, groups) in LINEAR.items():
        version = root / name / "1"
        version.mkdir(parents=True)
        text = f'backend: "{backend}" {TENSORS} {groups}'
        if backend == "onnxruntime":
            write_model(version / "model.onnx", ["MatMul X,W Y"], ["X:FLOAT:n,64"], ["Y:FLOAT:n,16"], {"W": weights})
        elif backend == "pytorch":
            torch.jit.script(Linear(weights)).save(str(version / "model.pt"))
            text = text.replace('"X"', '"INPUT__0"').replace('"Y"', '"OUTPUT__0"')
        else:
            np.save(version / "weights.npy", weights)
            (version / "model.py").write_text(PYTHON)
        (root / name / "config.pbtxt").write_text(text)
    for name, module, text in (("embeds", torch.nn.Embedding(16, 4), EMBEDS), ("grows", Grows(), GROWS)):
        (root / name / "1").mkdir(parents=True)
        torch.jit.script(module).save(str(root / name / "1/model.pt"))
        (root / name / "config.pbtxt").write_text(text)
    (root / "heavy/1").mkdir(parents=True)
    shape = f"FLOAT:n,{WIDE}"
    write_model(
        root / "heavy/1/model.onnx",
        ["MatMul X,W Y"],
        [f"X:{shape}"],
        [f"Y:{shape}"],
        {"W": np.eye(WIDE, dtype=np.float32)},
    )
    (root / "heavy/config.pbtxt").write_text(HEAVY)
    return weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> NDArray[np.float32]:
    return write_models(tmp_path_factory.getbasetemp() / "gpu-models")


@pytest.fixture(scope="module")
def users_before(weights: object) -> set[int]:
    return users()


@pytest.fixture(scope="module")
def served(weights: object, users_before: set[int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The models on this machine as it is: nothing says what there is."""
    flags = ("--allow-client-shm", "true", "--model-control-mode", "explicit", "--load-model", "*", "--no-dashboard")
    log = tmp_path_factory.mktemp("gpu-log") / "log"
    server = Server(tmp_path_factory.getbasetemp() / "gpu-models", log, *flags, env=environment())
    try:
        yield server.wait_ready()
        server.stop()
    finally:
        server.kill()


def used_mib() -> int:
    return int(nvidia_smi("--query-gpu=memory.used"))


def users() -> set[int]:
    """Return the processes that use the card, but this one, which is a client with memory there."""
    return {int(pid) for pid in nvidia_smi("--query-compute-apps=pid").split()} - {os.getpid()}


def nvidia_smi(query: str) -> str:
    command = ("nvidia-smi", query, "--format=csv,noheader,nounits", "--id=0")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def names_of(model: str) -> tuple[str, str]:
    """Return the names of a model's input and output."""
    return ("INPUT__0", "OUTPUT__0") if model.startswith("torch") else ("X", "Y")


def infer(server: Server, model: str, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    given = {"name": names_of(model)[0], "datatype": "FP32", "shape": list(rows.shape), "data": rows.tolist()}
    answer = server.infer(model, given)
    assert answer.status == 200, answer.body
    (output,) = answer.json["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def embed(server: Server, index: int) -> Any:
    return server.infer("embeds", {"name": "INPUT__0", "datatype": "INT64", "shape": [1, 1], "data": [index]})


def grow(server: Server, gib: int) -> Any:
    return server.infer("grows", {"name": "INPUT__0", "datatype": "INT64", "shape": [1], "data": [gib]})


def replicas_of(server: Server, model: str) -> list[psutil.Process]:
    """Return the processes of Serve's replicas whose deployment has the model's name in it."""
    return [
        each for each in server.descendants() if (title := title_of(each)).startswith("ray::") and f":{model}" in title
    ]


def test_all_land_where_the_plan_says(served: Server) -> None:
    done = run(EAGLERAY, "plan", "--json", str(served.repository))
    assert done.returncode == 0, done.stdout + done.stderr
    planned = {
        (model["name"], spec["kind"]): deployment["num_gpus"]
        for deployment in json.loads(done.stdout)["deployments"]
        for model in deployment["models"]
        for spec in model["specs"]
    }
    on_gpu = {name for name, kind in planned if kind == "GPU"}
    assert on_gpu == {*LINEAR, "embeds", "grows", "heavy"}
    assert {name for name, kind in planned if kind == "CPU"} == {"onnx_both"}
    assert all((0 < share < 1) == (kind == "GPU") for (_, kind), share in planned.items())
    assert sum(planned.values()) < 1
    replicas = served.get("/v2/console/plan").json["replicas"]
    with_cards = {key.partition("#")[0] for key, _, _, cards in replicas if cards == ["0"]}
    assert with_cards == on_gpu


@pytest.mark.parametrize("model", LINEAR)
def test_answers_are_those_of_the_cpu(model: str, served: Server, weights: NDArray[np.float32]) -> None:
    for count in (1, 3, 64):
        rows = np.random.default_rng(count).standard_normal((count, 64), np.float32)
        np.testing.assert_allclose(infer(served, model, rows), rows @ weights, rtol=0.02, atol=0.02)


def test_only_replicas_with_a_share_of_the_gpu_use_it(served: Server) -> None:
    titles = {pid: title_of(psutil.Process(pid)) for pid in users() if psutil.pid_exists(pid)}
    wrong = [title for title in titles.values() if "Ingress" in title or "Controller" in title]
    assert titles and not wrong


def test_metrics_tell_of_the_card(served: Server) -> None:
    uuid = nvidia_smi("--query-gpu=uuid")
    total_mib = int(nvidia_smi("--query-gpu=memory.total"))

    def told() -> dict[str, float]:
        found = families(served.metrics_text())
        return {
            name: row.value
            for name in found
            if name.startswith(("nv_gpu_", "nv_energy_"))
            for row in found[name].samples
            if row.labels["gpu_uuid"] == uuid
        }

    wait_until(lambda: told().get("nv_gpu_memory_used_bytes", 0) > 0, "metrics of the card")
    card = told()
    assert card["nv_gpu_memory_total_bytes"] == pytest.approx(total_mib * MIB, rel=0.02)
    assert card["nv_gpu_memory_used_bytes"] == pytest.approx(used_mib() * MIB, rel=0.1)
    assert 0 <= card["nv_gpu_utilization"] <= 1 and card["nv_gpu_power_usage"] > 0
    wait_until(lambda: told()["nv_energy_consumption"] > card["nv_energy_consumption"] > 0, "energy that grows")
    rows = families(served.metrics_text())["nv_inference_request_success"].samples
    assert {row.labels.get("gpu_uuid") for row in rows if row.labels["model"] == "onnx_auto"} == {uuid}


@contextmanager
def region(client: Any, regions: Any, name: str, size_bytes: int) -> Iterator[Any]:
    """A client's region in the memory of the GPU, as `tritonclient` makes it."""
    handle = regions.create_shared_memory_region(name, size_bytes, 0)
    try:
        client.register_cuda_shared_memory(name, regions.get_raw_handle(handle), 0, size_bytes)
        yield handle
    finally:
        client.unregister_cuda_shared_memory(name)
        regions.destroy_shared_memory_region(handle)


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
@pytest.mark.parametrize("model", ["onnx_auto", "torch_auto", "python_gpu"])
def test_tensors_in_cuda_shared_memory(model: str, module: Any, served: Server, weights: NDArray[np.float32]) -> None:
    regions = pytest.importorskip("tritonclient.utils.cuda_shared_memory")
    address = served.address if module is tritonclient.http else grpc_address(served.log())
    input_name, output_name = names_of(model)
    given = module.InferInput(input_name, [8, 64], "FP32")
    given.set_shared_memory("rows", 8 * 64 * 4)
    wanted = module.InferRequestedOutput(output_name)
    wanted.set_shared_memory("answers", 8 * 16 * 4, 256)
    with (
        module.InferenceServerClient(address) as client,
        region(client, regions, "rows", 8 * 64 * 4) as source,
        region(client, regions, "answers", 256 + 8 * 16 * 4) as target,
    ):
        for seed in range(10):
            rows = np.random.default_rng(seed).standard_normal((8, 64), np.float32)
            regions.set_shared_memory_region(source, [rows])
            client.infer(model, [given], outputs=[wanted])
            answer = regions.get_contents_as_numpy(target, np.float32, [64 + 8 * 16])[64:].reshape(8, 16)
            np.testing.assert_allclose(answer, rows @ weights, rtol=0.02, atol=0.02)


def test_memory_comes_back_when_a_model_is_unloaded(served: Server) -> None:
    infer(served, "heavy", np.ones((1, WIDE), np.float32))
    loaded_mib = used_mib()
    assert served.post("/v2/repository/models/heavy/unload").status == 200
    wait_until(lambda: used_mib() <= loaded_mib - WEIGHTS_MIB, "the memory of the weights", 60)
    assert served.post("/v2/repository/models/heavy/load").status == 200
    np.testing.assert_array_equal(infer(served, "heavy", np.ones((2, WIDE), np.float32)), np.ones((2, WIDE)))
    assert used_mib() == pytest.approx(loaded_mib, abs=512)


def test_out_of_memory_fails_its_request_alone(served: Server) -> None:
    assert grow(served, 1).status == 200
    (before,) = replicas_of(served, "grows")
    answer = grow(served, 1000)
    assert answer.status == 500 and "memory" in answer.error
    assert grow(served, 1).status == 200
    assert replicas_of(served, "grows") == [before]


def test_a_gpu_that_has_failed_a_process_is_answered_again_by_the_next(
    served: Server, weights: NDArray[np.float32]
) -> None:
    assert embed(served, 3).status == 200
    answer = embed(served, 1_000_000)
    assert answer.status == 500 and "device-side assert" in answer.error
    rows = np.ones((1, 64), np.float32)

    def again() -> bool:
        np.testing.assert_allclose(infer(served, "torch_auto", rows), rows @ weights, rtol=0.02, atol=0.02)
        answer = embed(served, 3)
        assert answer.status in (200, 500, 503), answer.body
        return answer.status == 200

    wait_until(again, "an answer after the fault", 60)


def test_a_killed_replica_leaves_no_memory_behind(served: Server, weights: NDArray[np.float32]) -> None:
    rows = np.ones((1, 64), np.float32)
    infer(served, "onnx_auto", rows)
    before_mib = used_mib()
    (killed,) = replicas_of(served, "onnx_auto")
    killed.kill()
    np.testing.assert_allclose(infer(served, "onnx_auto", rows), rows @ weights, rtol=0.02, atol=0.02)
    wait_until(lambda: killed not in replicas_of(served, "onnx_auto"), "the end of the process")
    wait_until(lambda: used_mib() == pytest.approx(before_mib, abs=256), "the memory of one process")


def test_nothing_is_left_on_the_card(served: Server, users_before: set[int]) -> None:
    """Memory of a process goes with it."""
    replicas = users() - users_before
    assert replicas
    served.stop()
    wait_until(lambda: not users() & replicas, "the memory of all models", 30)
