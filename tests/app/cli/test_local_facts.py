"""What a Ray would be made of that is started on this machine, whose GPUs `tests/nvml.c` names."""

import json
import sys
from pathlib import Path

import pytest

from tests.gpus import build_nvml
from tests.serving import EAGLERAY, environment, run

ASKS = """
import json, os, sys
from app.cli.local_facts import local_facts

for given, visible in json.loads(sys.argv[1]):
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
    (node,) = local_facts(4, *given).nodes
    print(node.num_gpus, node.accelerator_type, node.gpu_memory_bytes, *map("=".join, node.labels))
print("ray" in sys.modules)
"""
NO_GPU = "0  0"
A100 = f"A100 {40 << 30} ray.io/accelerator-type=A100"
FACTS = [
    ([None], None, f"2 {A100}"),
    ([None], "1", f"1 {A100}"),
    ([None], "", NO_GPU),
    ([3], "1", f"3 {A100}"),
    ([0], None, NO_GPU),
    ([None, 7], None, "2 A100 7 ray.io/accelerator-type=A100"),
]
"""For how many GPUs are asked for, and CUDA_VISIBLE_DEVICES."""
WITHOUT_NVML = [([None], None, NO_GPU), ([2], None, "2  0")]


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_nvml(tmp_path_factory.mktemp("nvml")).parent


def test_gpus_are_those_that_ray_would_find(nvml: Path, tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").touch()  # no library, as where there is none
    for folder, facts, asks_ray in ((nvml, FACTS, True), (tmp_path, WITHOUT_NVML, False)):
        asked = json.dumps([row[:2] for row in facts])
        done = run(sys.executable, "-c", ASKS, asked, env=environment(LD_LIBRARY_PATH=str(folder)))
        assert done.stdout.splitlines() == [*(row[2] for row in facts), str(asks_ray)], done.stderr


def test_plan_and_validate_are_for_the_gpus_of_the_machine(nvml: Path, tmp_path: Path) -> None:
    (tmp_path / "second/1").mkdir(parents=True)
    (tmp_path / "second/1/model.py").write_text("class TritonPythonModel:\n    pass\n")
    (tmp_path / "second/config.pbtxt").write_text('backend: "python"\ninstance_group { kind: KIND_GPU gpus: [ 1 ] }\n')
    env = environment(LD_LIBRARY_PATH=str(nvml))
    planned = run(EAGLERAY, "plan", "--json", str(tmp_path), env=env)
    assert planned.returncode == 0, planned.stdout + planned.stderr
    (deployment,) = json.loads(planned.stdout)["deployments"]
    assert deployment["gpu"] == 1
    assert deployment["num_gpus"] == pytest.approx(512 / (0.8 * 40 * 1024), abs=0.005)
    for flags, code in (((), 0), (("--num-gpus", "1"), 2)):
        checked = run(EAGLERAY, "validate", str(tmp_path), *flags, env=env)
        assert checked.returncode == code, checked.stdout + checked.stderr
