"""Two Eagleray on one machine: no application is built that processes with another one would run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.serving import ROOT

BUILD = "from eagleray import build; build({'model_repository': ['/tmp']}); print('built')"
PACKAGES = ("eagleray", "app", "deployments", "protocol", "repository_loader")


def built_in(folder: Path, **variables: str) -> tuple[str, str]:
    """Build the application in a process that Ray starts in a folder; returns what was printed, and the last error."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("EAGLERAY_")}
    command = [sys.executable, "-c", BUILD]
    done = subprocess.run(
        command, cwd=folder, env=env | variables, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.strip(), (done.stderr.strip().splitlines() or [""])[-1]


def test_a_cluster_that_was_started_beside_another_eagleray_is_refused(tmp_path: Path) -> None:
    (tmp_path / "eagleray").mkdir()
    (tmp_path / "eagleray/__init__.py").write_text("raise RuntimeError('not for Eagleray')")
    # This process finds the installed one all the same.
    said, error = built_in(tmp_path, PYTHONSAFEPATH="1")
    assert said == ""
    assert error.startswith(
        f"RuntimeError: Ray's workers would run the Eagleray in {tmp_path / 'eagleray'}, which stands"
    )


def test_a_cluster_that_was_started_in_a_copy_of_eagleray_is_refused_when_another_is_installed(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    said, error = built_in(tmp_path)
    assert said == ""
    assert error.startswith(f"RuntimeError: Ray's workers would run the Eagleray in {tmp_path}, where the cluster was")
    assert f"in place of the one in {ROOT / 'eagleray'}, which is installed" in error


def test_one_eagleray_is_no_reason(tmp_path: Path) -> None:
    assert built_in(tmp_path) == ("built", "")
    assert built_in(ROOT) == ("built", "")
