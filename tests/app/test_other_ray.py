"""With another Ray than the one that is needed, one sentence says so before anything of it is imported."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from app.other_ray import RAY, other_ray
from tests.serving import ROOT

STARTS = {
    "eagleray serve": ("from eagleray import main; main()", ["serve", "--model-repository", "/tmp"]),
    "serve deploy": ("from eagleray import build; build({'model_repository': ['/tmp']})", []),
}


def test_the_ray_that_is_needed_is_the_one_that_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"ray[serve]=={RAY}.*" in project["dependencies"]
    assert other_ray() == ""


@pytest.mark.parametrize("found", ("2.59.1", "2.61.0", "3.0.0.dev0"))
@pytest.mark.parametrize(("code", "arguments"), STARTS.values(), ids=STARTS)
def test_another_ray_is_named_in_one_sentence(code: str, arguments: list[str], found: str, tmp_path: Path) -> None:
    (tmp_path / f"ray-{found}.dist-info").mkdir()
    (tmp_path / f"ray-{found}.dist-info/METADATA").write_text(f"Metadata-Version: 2.1\nName: ray\nVersion: {found}\n")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/__init__.py").write_text("raise ImportError('not for Eagleray')")
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith(f"Eagleray needs Ray {RAY} (pip install 'ray[serve]=={RAY}.*'), and Ray {found} is installed")
    if arguments:
        assert "Traceback" not in done.stderr
