"""What is planned for GPUs is what Ray deploys; the GPUs are logical ones, so that no hardware is needed."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.metrics.scraped import families
from tests.serving import EAGLERAY, ROOT, Server, environment, run, wait_until

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
    (root / "fails_on_gpus/1").mkdir(parents=True)
    (root / "fails_on_gpus/1/model.py").write_text(FAILS_ON_GPUS)
    (root / "fails_on_gpus/config.pbtxt").write_text(CONFIG + GROUPS["both"])
    return root


@pytest.fixture(scope="module")
def planned(gpu_repository: Path) -> dict[str, list[dict[str, Any]]]:
    """The deployments that `eagleray plan` prints, by model."""
    done = run(EAGLERAY, "plan", "--json", "--num-cpus", "4", "--num-gpus", "2", str(gpu_repository))
    assert done.returncode == 0, done.stdout
    found = defaultdict(list)
    for deployment in json.loads(done.stdout)["deployments"]:
        (model,) = deployment["models"]
        found[model["name"]].append(deployment)
    return found


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a library that names two GPUs as NVML does."""
    folder = tmp_path_factory.mktemp("nvml")
    built = run("cc", "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(ROOT / "tests/nvml.c"))
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def served(
    gpu_repository: Path, planned: object, nvml: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("gpus-log") / "log"
    flags = ("--placement", "auto", "--num-cpus", "4", "--num-gpus", "2", "--no-dashboard")
    server = Server(gpu_repository, log, *flags, env=environment(LD_LIBRARY_PATH=str(nvml)))
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
    def shown(name: str) -> set[str]:
        replicas = served.get("/v2/console/plan").json["replicas"]
        return {card for key, _, _, cards in replicas if key.startswith(f"{name}#") for card in cards}

    for name in GROUPS:
        cards = {str(card) for each in told[name] for card in each["cards"]}
        wait_until(lambda name=name, cards=cards: shown(name) == cards, f"the cards of {name}")


def test_every_kind_of_group_serves(served: Server) -> None:
    index = {row["name"]: row["state"] for row in served.post("/v2/repository/index").json}
    assert index == dict.fromkeys([*GROUPS, "fails_on_gpus"], "READY")
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
