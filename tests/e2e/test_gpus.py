"""What is planned for GPUs is what Ray deploys; the GPUs are logical ones, so that no hardware is needed."""

import base64
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.app.metrics.scraped import families
from tests.e2e import device_clients
from tests.gpus import build_driver, build_nvml
from tests.hostile.watch import grpc_address
from tests.serving import EAGLERAY, Server, environment, run, wait_until

MODEL = """
import json, os
import numpy as np
import ray
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        told = {
            "instance": args["model_instance_name"],
            "kind": args["model_instance_kind"],
            "cards": [int(card) for card in visible.split(",") if card],
        }
        # A process of the instance's own has no Ray in it.
        if ray.is_initialized():
            told["resources"] = ray.get_runtime_context().get_assigned_resources()
            assert told["cards"] == ray.get_gpu_ids()
        folder = os.path.join(args["model_repository"], "told")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"{os.getpid()}-{args['model_instance_name']}.json")
        with open(path + ".partial", "w") as file:
            json.dump(told, file)
        os.rename(path + ".partial", path)

    def execute(self, requests):
        cards = len([card for card in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if card])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([cards], np.int32))]) for _ in requests]
"""

CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""

GROUPS = {
    "auto": "",
    "every_gpu": "instance_group { kind: KIND_GPU }",
    "first": "instance_group { kind: KIND_GPU gpus: [ 0 ] }",
    "second": "instance_group { kind: KIND_GPU gpus: [ 1 ] count: 2 }",
    "each_by_name": "instance_group [ { kind: KIND_GPU gpus: [ 0 ] }, { kind: KIND_GPU gpus: [ 1 ] } ]",
    "cpu": "instance_group { kind: KIND_CPU count: 2 }",
    "chooses": "instance_group { kind: KIND_MODEL }",
    "both": "instance_group [ { kind: KIND_GPU gpus: [ 1 ] }, { kind: KIND_CPU } ]",
    "half": 'instance_group { gpus: [ 0 ] } parameters { key: "eagleray.num_gpus" value { string_value: "0.25" } }',
}
SEVERAL = ("second", "cpu")
"""Their instances have processes of their own, which are told their cards and do not know Ray."""


ECHO = """
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
"""
PLACED = 'parameters {{ key: "eagleray.placement" value {{ string_value: "{}" }} }}'
ECHOES = {
    **{f"echo_{placement}": PLACED.format(placement) for placement in ("isolated", "packed", "embedded")},
    "echo_sequence": "sequence_batching { } " + PLACED.format("isolated"),
}

DOUBLES = """
import ctypes
import numpy as np
import triton_python_backend_utils as pb_utils

pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", self.answer(r.inputs()[0]))]) for r in requests]

    def answer(self, tensor):
        if tensor.is_cpu():
            return -2 * tensor.as_numpy()
        assert tensor.__dlpack_device__() == (2, 0) and tensor.triton_dtype() == 11
        capsule = tensor.to_dlpack()
        address = ctypes.c_uint64.from_address(pointer(capsule, b"dltensor")).value
        return 2 * np.array((ctypes.c_float * 16).from_address(address)).reshape(tensor.shape())
"""
"""Twice what is on the GPU, and minus that of what is in host memory."""

ON_GPU = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'
DOUBLING = {
    "alone": "instance_group { kind: KIND_GPU gpus: [ 1 ] } " + ON_GPU,
    "processes": "instance_group { kind: KIND_GPU gpus: [ 0 ] count: 2 } " + ON_GPU,
}

FAILS_ON_GPUS = """
class TritonPythonModel:
    def initialize(self, args):
        if args["model_instance_kind"] == "GPU":
            raise RuntimeError("this card is too old")

    def execute(self, requests):
        return []
"""


@pytest.fixture(scope="module")
def gpu_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("gpus")
    for name, groups in GROUPS.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "1/model.py").write_text(MODEL)
        (root / name / "config.pbtxt").write_text(CONFIG + groups)
    for name, more in ECHOES.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(ECHO + more)
    for name, more in DOUBLING.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "1/model.py").write_text(DOUBLES)
        (root / name / "config.pbtxt").write_text(ECHO.replace("identity", "python") + more)
    (root / "fails_on_gpus/1").mkdir(parents=True)
    (root / "fails_on_gpus/1/model.py").write_text(FAILS_ON_GPUS)
    (root / "fails_on_gpus/config.pbtxt").write_text(CONFIG + GROUPS["both"])
    return root


@pytest.fixture(scope="module")
def planned(gpu_repository: Path, libraries: Path) -> dict[str, list[dict[str, Any]]]:
    """The deployments that `eagleray plan` prints, by model, for the GPUs that there are."""
    env = environment(LD_LIBRARY_PATH=str(libraries))
    done = run(EAGLERAY, "plan", "--json", "--num-cpus", "4", str(gpu_repository), env=env)
    assert done.returncode == 0, done.stdout
    found = defaultdict(list)
    for deployment in json.loads(done.stdout)["deployments"]:
        (model,) = deployment["models"]
        found[model["name"]].append(deployment)
    return found


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a library that names two GPUs as NVML does, and one that opens their memory as CUDA's driver does."""
    folder = tmp_path_factory.mktemp("libraries")
    build_nvml(folder)
    build_driver(folder)
    return folder


@pytest.fixture(scope="module")
def served(
    gpu_repository: Path, planned: object, libraries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("gpus-log") / "log"
    flags = ("--placement", "auto", "--num-cpus", "4", "--no-dashboard")
    flags += ("--ingresses-per-node", "2", "--allow-client-shm", "true")
    server = Server(gpu_repository, log, *flags, env=environment(LD_LIBRARY_PATH=str(libraries)))
    try:
        yield server.wait_ready()
        server.stop()
    finally:
        server.kill()


@pytest.fixture(scope="module")
def told(served: Server) -> dict[str, list[dict[str, Any]]]:
    """What each instance found when it was initialised, by model."""
    return {
        name: [json.loads(path.read_text()) for path in sorted((served.repository / name / "told").glob("*.json"))]
        for name in GROUPS
    }


@pytest.mark.parametrize("name", GROUPS)
def test_replicas_have_the_resources_that_were_planned(
    name: str, told: dict[str, list[dict[str, Any]]], planned: dict[str, list[dict[str, Any]]]
) -> None:
    wanted = [
        (spec["kind"], deployment["num_cpus"], deployment["num_gpus"])
        for deployment in planned[name]
        for spec in deployment["models"][0]["specs"]
        for _ in range(deployment["replica_count"])
    ]
    if name in SEVERAL:
        assert [each["kind"] for each in told[name]] == [kind for kind, _, _ in wanted]
        return
    found = [
        (each["kind"], each["resources"].get("CPU", 0.0), each["resources"].get("GPU", 0.0)) for each in told[name]
    ]
    assert sorted(found) == sorted(wanted)


def test_listed_gpus_are_different_cards(told: dict[str, list[dict[str, Any]]]) -> None:
    def cards(name: str) -> set[int]:
        return {card for each in told[name] for card in each["cards"]}

    assert cards("auto") == cards("every_gpu") == cards("each_by_name") == {0, 1}
    assert len(cards("first")) == len(cards("second")) == 1
    assert cards("first") != cards("second") == cards("both")
    assert cards("first") == cards("half")
    assert cards("cpu") == set()
    assert all(len(each["cards"]) == 1 for name in ("auto", "each_by_name") for each in told[name])


def test_the_console_is_told_which_cards_each_replica_has(
    served: Server, told: dict[str, list[dict[str, Any]]]
) -> None:
    for name in GROUPS:
        cards = {str(card) for each in told[name] for card in each["cards"]}
        wait_until(lambda name=name, cards=cards: cards_of(served, name) == cards, f"the cards of {name}")


def test_every_kind_of_group_serves(served: Server) -> None:
    index = {row["name"]: row["state"] for row in served.post("/v2/repository/index").json}
    assert index == dict.fromkeys([*GROUPS, *ECHOES, *DOUBLING, "fails_on_gpus"], "READY")
    given = {"name": "X", "datatype": "INT32", "shape": [1], "data": [0]}
    on_gpus = {name: served.infer(name, given).json["outputs"][0]["data"] for name in GROUPS}
    assert on_gpus == {name: [int(name != "cpu")] for name in GROUPS}


def test_metrics_of_what_runs_on_a_gpu_name_it(served: Server, told: dict[str, list[dict[str, Any]]]) -> None:
    given = {"name": "X", "datatype": "INT32", "shape": [1], "data": [0]}
    assert [served.infer(name, given).status for name in ("first", "second", "cpu", "chooses")] == [200] * 4
    text = served.metrics_text()

    def gpus(name: str, family: str = "nv_inference_request_success") -> dict[str, float]:
        rows = [row for row in families(text)[family].samples if row.labels.get("model") == name]
        assert len({tuple(row.labels.items()) for row in rows}) == len(rows) > 0
        return {row.labels.get("gpu_uuid", ""): row.value for row in rows if row.labels.get("reason", "") != "OTHER"}

    for name in ("first", "second"):
        (card,) = {card for each in told[name] for card in each["cards"]}
        assert gpus(name).keys() == {f"GPU-{card}"} and gpus(name)[f"GPU-{card}"] >= 1
        assert gpus(name, "nv_inference_pending_request_count") == {"": 0}
        assert gpus(name, "nv_model_load_duration_secs").keys() == {""}
        assert gpus(name, "nv_inference_request_failure").keys() == {f"GPU-{card}", ""}
    assert gpus("each_by_name").keys() == gpus("auto").keys() == {"GPU-0", "GPU-1"}
    assert gpus("cpu").keys() == gpus("chooses").keys() == {""}
    (row,) = served.get("/v2/models/each_by_name/stats").json["model_stats"]
    assert row["inference_stats"]["success"]["count"] == sum(gpus("each_by_name").values())


def test_a_version_that_serves_from_its_cpu_group_says_why_its_gpu_group_does_not(served: Server) -> None:
    def row() -> dict[str, str]:
        (found,) = [row for row in served.post("/v2/repository/index").json if row["name"] == "fails_on_gpus"]
        return dict(found)

    wait_until(lambda: "reason" in row(), "a reason in the index", 60.0)
    assert row()["state"] == "READY"
    assert row()["reason"].startswith("its instances on GPU 1 failed to load: ")
    assert "this card is too old" in row()["reason"]
    assert served.get("/v2/models/fails_on_gpus/ready").status == 200


@pytest.mark.parametrize("protocol", device_clients.MODULES)
@pytest.mark.parametrize("model", ECHOES)
def test_tensors_may_lie_in_the_memory_of_a_gpu(model: str, protocol: str, served: Server) -> None:
    module = device_clients.MODULES[protocol]
    address = served.address if protocol == "http" else grpc_address(served.log())
    more = {"sequence_id": 7, "sequence_start": True, "sequence_end": True} if model == "echo_sequence" else {}
    numbers = np.arange(16, dtype=np.float32).reshape(1, 16)
    with device_clients.allocated(512) as memory, module.InferenceServerClient(address) as client:

        def infer(given: int | np.ndarray, wanted: int | None) -> Any:
            # Each connection goes to one of the two ingresses.
            with module.InferenceServerClient(address) as other:
                return device_clients.infer(module, other, model, given, wanted, **more)

        client.register_cuda_shared_memory("gpu", memory.handle, 1, 256)
        try:
            with pytest.raises(module.InferenceServerException, match="'gpu' already in manager"):
                client.register_cuda_shared_memory("gpu", memory.handle, 1, 256)
            memory.write(64, numbers)
            for _ in range(4):
                infer(64, 128)
            np.testing.assert_array_equal(memory.read(128, 16), numbers[0])
            np.testing.assert_array_equal(infer(64, None).as_numpy("OUTPUT0"), numbers)
            infer(numbers * 2, 192)
            np.testing.assert_array_equal(memory.read(192, 16), numbers[0] * 2)
            with pytest.raises(module.InferenceServerException, match=r"Invalid offset \+ byte size"):
                infer(200, None)
            with pytest.raises(module.InferenceServerException, match=r"Invalid offset \+ byte size"):
                infer(numbers, 256 - 32)
        finally:
            client.unregister_cuda_shared_memory("gpu")
        for _ in range(4):
            with pytest.raises(module.InferenceServerException, match="Unable to find shared memory region: 'gpu'"):
                infer(64, None)


@pytest.mark.parametrize("protocol", device_clients.MODULES)
@pytest.mark.parametrize("model", DOUBLING)
def test_a_python_model_may_take_its_inputs_from_the_memory_of_its_gpu(
    model: str, protocol: str, served: Server
) -> None:
    module = device_clients.MODULES[protocol]
    address = served.address if protocol == "http" else grpc_address(served.log())
    wait_until(lambda: len(cards_of(served, model)) == 1, "its card is known")
    (own,) = cards_of(served, model)
    numbers = np.arange(16, dtype=np.float32).reshape(1, 16)
    with device_clients.allocated(512) as memory, module.InferenceServerClient(address) as client:
        memory.write(64, numbers)
        for device_id in range(2):
            sign = 1 if str(device_id) == own else -1
            client.register_cuda_shared_memory("gpu", memory.handle, device_id, 256)
            try:
                for _ in range(4):
                    with module.InferenceServerClient(address) as other:  # to either ingress
                        answer = device_clients.infer(module, other, model, 64, None)
                    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), 2 * sign * numbers)
                device_clients.infer(module, client, model, 64, 128)
                np.testing.assert_array_equal(memory.read(128, 16), 2 * sign * numbers[0])
                answer = device_clients.infer(module, client, model, numbers, None)
                np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), -2 * numbers)
                with pytest.raises(module.InferenceServerException, match=r"Invalid offset \+ byte size"):
                    device_clients.infer(module, client, model, 200, None)
            finally:
                client.unregister_cuda_shared_memory("gpu")
            with pytest.raises(module.InferenceServerException, match="Unable to find shared memory region: 'gpu'"):
                device_clients.infer(module, client, model, 64, None)


def test_memory_that_its_client_has_taken_away_fails_its_request_alone(served: Server) -> None:
    numbers = np.arange(16, dtype=np.float32).reshape(1, 16)
    with tritonclient.http.InferenceServerClient(served.address) as client:
        card = int(*cards_of(served, "alone"))
        with device_clients.allocated(512) as memory:
            client.register_cuda_shared_memory("gpu", memory.handle, card, 256)
        try:
            with pytest.raises(tritonclient.http.InferenceServerException, match="cannot be opened in the process of"):
                device_clients.infer(tritonclient.http, client, "alone", 64, None)
        finally:
            client.unregister_cuda_shared_memory("gpu")
        answer = device_clients.infer(tritonclient.http, client, "alone", numbers, None)
        np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), -2 * numbers)


def cards_of(served: Server, model: str) -> set[str]:
    replicas = served.get("/v2/console/plan").json["replicas"]
    return {str(card) for key, _, _, cards in replicas if key.startswith(f"{model}#") for card in cards}


def test_regions_of_gpus_are_told_from_those_of_the_system(served: Server) -> None:
    with device_clients.allocated(512) as memory, tritonclient.http.InferenceServerClient(served.address) as client:
        client.register_cuda_shared_memory("gpu", memory.handle, 1, 512)
        try:
            assert client.get_cuda_shared_memory_status() == [{"name": "gpu", "device_id": 1, "byte_size": 512}]
            assert client.get_cuda_shared_memory_status("gpu") == [{"name": "gpu", "device_id": 1, "byte_size": 512}]
            with tritonclient.grpc.InferenceServerClient(grpc_address(served.log())) as other:
                (region,) = other.get_cuda_shared_memory_status().regions.values()
            assert (region.name, region.device_id, region.byte_size) == ("gpu", 1, 512)
            assert client.get_system_shared_memory_status() == []
            client.unregister_system_shared_memory()
            client.unregister_system_shared_memory("gpu")
            text = "The region named 'gpu' is registered as CUDA shared memory, not system shared memory"
            with pytest.raises(tritonclient.http.InferenceServerException, match=text):
                client.get_system_shared_memory_status("gpu")
        finally:
            client.unregister_cuda_shared_memory()
        assert client.get_cuda_shared_memory_status() == []


def test_what_is_no_memory_of_a_gpu_is_refused(served: Server) -> None:
    path = "/v2/cudasharedmemory/region/gpu/register"
    with device_clients.allocated(512) as memory:
        good = {"raw_handle": {"b64": memory.handle.decode()}, "device_id": 0, "byte_size": 512}
        bad_handle = {"b64": base64.b64encode(b"/nowhere".ljust(64, b"\0")).decode()}
        for wrong, text in (
            ({"device_id": 2}, "failed to register shared memory region: invalid args"),
            ({"device_id": 2**32}, "failed to register shared memory region: invalid args"),
            ({"raw_handle": bad_handle}, "failed to register shared memory region: invalid args"),
            ({"raw_handle": {"b64": "AAAA"}}, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"),
            ({"raw_handle": {"b64": "§"}}, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"),
            ({"raw_handle": 5}, "Unable to parse 'b64': attempt to access non-existing object member 'b64'"),
            ({"byte_size": 513}, "failed to register shared memory region 'gpu': invalid args"),
            ({"byte_size": 0}, "failed to register shared memory region 'gpu': invalid args"),
        ):
            answer = served.post(path, good | wrong)
            assert (answer.status, answer.error) == (400, text)
        answer = served.post(path, {"device_id": 0, "byte_size": 1})
        assert (answer.status, answer.error) == (400, "Shared memory register request has no 'raw_handle' field")
    assert served.get("/v2/cudasharedmemory/status").json == []
