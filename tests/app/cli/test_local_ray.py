import errno
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from app.cli import local_ray
from app.cli.local_ray import LocalRay, RayOptions, StartFailed, _require_machine, cluster, explain, last_words
from tests.serving import EAGLERAY, environment, run


@pytest.mark.parametrize(
    ("error", "address", "text"),
    [
        (
            Exception("The current node timed out during startup. This could happen because\nof much."),
            "",
            "Ray did not start within 30 s: this machine is too busy, or short of memory, or lets few threads start; "
            "try again when it is quieter, or ask `eagleray doctor`",
        ),
        (ValueError("two\n  lines"), "", "Ray did not start: two lines"),
        (OSError(), "", "Ray did not start: OSError"),
        (ConnectionError("nobody"), "10.0.0.1:6379", "no Ray cluster could be joined at 10.0.0.1:6379: nobody"),
    ],
)
def test_failure_is_one_sentence(error: Exception, address: str, text: str) -> None:
    assert explain(error, address) == text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            ray.exceptions.OutOfMemoryError(
                "Task was killed due to the node running low on memory.\n"
                "Memory on the node (IP: 127.0.0.1, ID: 72) was 22.78GB used / 23.54GB limit (0.967793)\n"
                "Refer to the documentation on how to address the out of memory issue: https://docs.ray.io"
            ),
            "memory ran short (22.78GB used / 23.54GB limit), and Ray ended processes of this server; end other "
            "programs, or give it more",
        ),
        (ValueError("several\n  lines \n"), "ValueError: lines"),
        (ValueError(), "ValueError: no reason given"),
    ],
    ids=["memory", "lines", "nothing"],
)
def test_what_ends_a_start_while_models_load_is_one_sentence(error: Exception, text: str) -> None:
    assert last_words(error) == text


@pytest.mark.parametrize(
    ("folder", "error", "text"),
    [
        (
            "/scratch/" + 40 * "x",
            OSError("validate_socket_filename failed: AF_UNIX path length cannot exceed 107 bytes: /scratch/xxx"),
            "is too long for a Unix socket; set RAY_TMPDIR to a shorter one",
        ),
        (
            "/scratch/ü",
            UnicodeEncodeError("ascii", "/scratch/ü", 9, 10, "ordinal not in range(128)"),
            "must be ASCII; set RAY_TMPDIR to such a one",
        ),
    ],
    ids=["long", "letters"],
)
def test_a_folder_that_ray_cannot_take_is_named(
    folder: str, error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", folder)
    assert explain(error, "") == f"Ray did not start: the path of its folder, {folder}/ray, {text}"


@pytest.mark.parametrize(
    ("function", "refused", "text"),
    [
        ((os, "access"), lambda folder, mode: False, "shared memory: /dev/shm cannot be written"),
        ((resource, "getrlimit"), lambda limit: (64, 64), "open files: a process may open 64, and no more than 64"),
    ],
    ids=["shared memory", "files"],
)
def test_what_this_machine_lacks_is_said_before_ray_is_started(
    function: tuple[Any, str], refused: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*function, refused)
    with pytest.raises(StartFailed, match=text):
        LocalRay(RayOptions()).start()


@pytest.mark.parametrize("folder", ["", "missing"])
def test_a_folder_that_cannot_be_written_is_named_without_logs_in_it(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / folder))
    error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "missing"))
    text = (
        f"its folder, {tmp_path / folder / 'ray'}, cannot be written: Permission denied; set RAY_TMPDIR to one that can"
    )
    assert str(LocalRay(RayOptions()).failed(explain(error, ""))) == f"Ray did not start: {text}"


def test_an_error_of_ours_is_printed_whatever_has_become_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", lambda *error: None)  # Ray sets its own as it is imported
    with pytest.raises(StartFailed):
        LocalRay(RayOptions(address="127.0.0.1:1")).start()
    assert sys.excepthook is sys.__excepthook__


def test_no_dashboard_is_started_where_its_sockets_could_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    started: dict[str, Any] = {}

    def init(**options: Any) -> None:
        started.update(options)
        raise OSError

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(tempfile, "tempdir", "/" + 75 * "x")
    local = LocalRay(RayOptions())
    with pytest.raises(StartFailed):
        local.start()
    assert started["include_dashboard"] is False
    assert any(warning.startswith("temporary files: ") for warning in local.warnings)


def test_few_threads_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_NPROC: 300}
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (limits.get(limit, 1 << 20),) * 2)
    (warning,) = _require_machine()
    assert warning.startswith("threads: Ray and the models may start 300; raise it")


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("PYTHONOPTIMIZE", "2", "error: PYTHONOPTIMIZE=2 leaves out docstrings, "),
        ("PYTHONWARNINGS", "error", "error: PYTHONWARNINGS=error ends Ray's processes at their first warning"),
    ],
)
def test_a_python_that_ray_does_not_start_with_is_refused(variable: str, value: str, text: str, tmp_path: Path) -> None:
    ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    variables = environment(PYTHONDONTWRITEBYTECODE="1") | {variable: value}
    done = run(EAGLERAY, "serve", "--model-repository", str(tmp_path), *ports, env=variables)
    assert (done.returncode, done.stderr.startswith(text)) == (1, True), done.stderr


def test_a_current_folder_that_has_been_removed_is_named(tmp_path: Path) -> None:
    command = f"mkdir gone && cd gone && rmdir ../gone && exec {EAGLERAY} serve --model-repository /"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "the current folder has been removed; start in another one" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("free_bytes", "memory_bytes", "store_bytes"),
    [
        (64 << 20, 8 << 30, None),
        (150 << 20, 8 << 30, 75 << 20),
        (2 << 30, 8 << 30, 1 << 30),
        (8 << 30, 4 << 30, (4 << 30) * 3 // 10),
        (8 << 30, 64 << 20, 75 << 20),
        (12 * 10**9, 64 << 30, None),
    ],
    ids=["no room for any", "the least", "a container", "more than its memory", "little memory", "room for all"],
)
def test_rays_object_store_fits_into_shared_memory_and_leaves_memory(
    free_bytes: int, memory_bytes: int, store_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_ray, "free_memory_bytes", lambda: memory_bytes)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free_bytes))
    assert cluster(RayOptions())["object_store_memory"] == store_bytes


def test_ray_has_the_cores_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    assert cluster(RayOptions())["num_cpus"] == 1
    assert cluster(RayOptions(num_cpus=8))["num_cpus"] == 8
