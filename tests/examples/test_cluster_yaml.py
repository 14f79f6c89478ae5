"""cluster.yaml is a file that Ray's cluster launcher takes, and keeps the cluster closed."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

FILE = Path(__file__).parents[2] / "cluster.yaml"


@pytest.fixture
def cluster() -> dict[str, Any]:
    loaded = yaml.safe_load(FILE.read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_launcher_accepts_the_file(cluster: dict[str, Any]) -> None:
    validate_config(prepare_config(cluster))


def test_workers_of_both_kinds_can_start(cluster: dict[str, Any]) -> None:
    workers = {name: kind for name, kind in cluster["available_node_types"].items() if name != "head"}
    assert set(workers) == {"cpu_worker", "gpu_worker"}
    assert sum(kind["max_workers"] for kind in workers.values()) <= cluster["max_workers"]
    assert workers["gpu_worker"]["min_workers"] == 0, "a GPU machine that no model needs is dear"


def test_every_process_asks_for_the_token(cluster: dict[str, Any]) -> None:
    options = cluster["docker"]["run_options"]
    assert "--env RAY_AUTH_MODE=token" in options
    (path,) = [option.split("=", 1)[1] for option in options if "RAY_AUTH_TOKEN_PATH" in option]
    assert cluster["file_mounts"][path] == "~/.ray/auth_token"


def test_the_repository_that_its_steps_name_is_among_what_is_copied(cluster: dict[str, Any]) -> None:
    (path,) = re.findall(r"model_repository: \[(/\S+)\]", FILE.read_text())
    (copied,) = [there for there, here in cluster["file_mounts"].items() if here == "."]
    assert (FILE.parent / Path(path).relative_to(copied)).is_dir()


def test_every_machine_can_read_the_stores_that_its_comments_offer(cluster: dict[str, Any]) -> None:
    commands = [*cluster["setup_commands"], *cluster["available_node_types"]["gpu_worker"]["worker_setup_commands"]]
    extras = [re.findall(r"eagleray\[(\S+)\]", command)[0].split(",") for command in commands]
    assert len(extras) == 2 and all("storage" in each for each in extras)


def test_dashboard_listens_on_loopback_only(cluster: dict[str, Any]) -> None:
    (start,) = [command for command in cluster["head_start_ray_commands"] if "ray start" in command]
    assert "--dashboard-host=127.0.0.1" in start


def test_firewall_opens_only_the_three_ports_of_triton_and_not_to_everyone(cluster: dict[str, Any]) -> None:
    for rule in cluster["provider"]["security_group"]["IpPermissions"]:
        assert (rule["FromPort"], rule["ToPort"]) == (8000, 8002)
        assert "0.0.0.0/0" not in [network["CidrIp"] for network in rule["IpRanges"]]


def test_every_field_has_a_comment_above_it() -> None:
    lines = FILE.read_text().splitlines()
    fields = [number for number, line in enumerate(lines) if line and line[0].isalpha()]
    assert not [lines[number] for number in fields if not lines[number - 1].startswith("#")]
