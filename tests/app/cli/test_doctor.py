"""What `eagleray doctor` says of a machine."""

import json
from pathlib import Path

import pytest

from app.cli.doctor import ERROR, OK, WARNING, gpus, ray_token, shared_memory
from tests.serving import EAGLERAY, environment, run


def test_a_card_without_a_driver_is_named(tmp_path: Path) -> None:
    assert gpus(tmp_path).level == OK
    for number, (vendor, kind) in enumerate((("0x10de", "0x030200"), ("0x10de", "0x0c0330"), ("0x8086", "0x030000"))):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "vendor").write_text(f"{vendor}\n")
        (tmp_path / str(number) / "class").write_text(f"{kind}\n")
    found = gpus(tmp_path)
    if Path("/proc/driver/nvidia/version").exists():
        assert found == (OK, "gpu", "1 NVIDIA GPUs with a driver")
    else:
        assert found == (ERROR, "gpu", "1 NVIDIA GPUs without a driver: models would run on the CPU")


def test_small_shared_memory_is_named() -> None:
    assert shared_memory("/nowhere").level == ERROR
    small = shared_memory("/proc")  # a file system without room
    assert small.level == WARNING
    assert "--shm-size" in small.text


def test_a_ray_that_would_be_open_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert ray_token().level == OK
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert (ray_token().level, "disabled" in ray_token().text) == (ERROR, True)


def test_the_command_says_what_it_has_found_and_fails_for_errors() -> None:
    done = run(EAGLERAY, "doctor", "--json", env=environment(RAY_AUTH_MODE="disabled"))
    findings = json.loads(done.stdout)
    assert done.returncode == 1
    assert {finding["check"] for finding in findings} >= {"ray token", "onnxruntime", "gpu", "open files", "ports"}
    assert {"level": ERROR, "check": "ray token"}.items() <= findings[0].items()
    text = run(EAGLERAY, "doctor", env=environment(RAY_AUTH_MODE="disabled")).stdout
    assert text.startswith("error  ray token: RAY_AUTH_MODE=disabled: ")
