"""What `eagleray doctor` says of a machine."""

import contextlib
import errno
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest

from app.cli.doctor import ports
from app.doctor.finding import ERROR, OK, WARNING
from app.doctor.machine import (
    gpus,
    loopback,
    onnxruntimes,
    open_files,
    open_rays,
    ray_files,
    ray_here,
    ray_room,
    ray_token,
    shared_memory,
    temporary_files,
    threads,
)
from app.doctor.versions import compare
from tests.deployments.container import UNIFIED, process_in
from tests.gpus import build_driver, forget_driver, use_driver
from tests.serving import EAGLERAY, environment, run


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("cuda"))


NOT_USED = "1 NVIDIA GPUs, but {}: models would run on the CPU; a container needs `--gpus all`"


@pytest.mark.parametrize(
    ("library", "visible", "level", "without_card", "with_card"),
    [
        ("libno-such-driver.so", "0", ERROR, "no NVIDIA GPU", NOT_USED.format("there is no driver")),
        ("", "9", ERROR, "no NVIDIA GPU", NOT_USED.format("the driver finds no GPU")),
        ("", "0", OK, "some NVIDIA GPUs with a driver", "1 NVIDIA GPUs with a driver"),
        ("", "", OK, "some NVIDIA GPUs with a driver", "1 NVIDIA GPUs with a driver"),
    ],
    ids=["no driver", "no GPU for the driver", "a GPU", "a hidden GPU"],
)
def test_a_card_without_a_driver_is_named(
    library: str,
    visible: str,
    level: str,
    without_card: str,
    with_card: str,
    driver: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = library or shutil.copy(driver, tmp_path)  # it looks once at what is visible
    use_driver(str(loaded), visible, monkeypatch)
    devices = tmp_path / "devices"
    try:
        assert gpus(devices) == (OK, "gpu", without_card)
        for number, (vendor, kind) in enumerate(
            (("0x10de", "0x030200"), ("0x10de", "0x0c0330"), ("0x8086", "0x030000"))
        ):
            (devices / str(number)).mkdir(parents=True)
            (devices / str(number) / "vendor").write_text(f"{vendor}\n")
            (devices / str(number) / "class").write_text(f"{kind}\n")
        assert gpus(devices) == (level, "gpu", with_card)
    finally:
        forget_driver()


def test_small_shared_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shared_memory("/nowhere").level == ERROR
    monkeypatch.setattr(os, "access", lambda folder, mode: False)
    assert shared_memory("/proc") == (
        ERROR,
        "shared memory",
        "/proc cannot be written, but processes of a node share it",
    )
    monkeypatch.setattr(os, "access", lambda folder, mode: True)
    small = shared_memory("/proc")  # a file system without room
    assert small.level == WARNING
    assert "--shm-size" in small.text


def test_a_machine_without_a_network_of_its_own_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loopback().level == OK

    def unreachable(address: object, timeout_s: float) -> None:
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

    monkeypatch.setattr(socket, "create_connection", unreachable)
    text = "nothing can be reached at 127.0.0.1, where Ray's processes meet: Network is unreachable"
    assert loopback() == (ERROR, "loopback", text)


def test_a_container_that_may_have_few_threads_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    limit = {"user": resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit["user"], limit["user"]))
    process = process_in(tmp_path, "0::/\n", UNIFIED, {"cgroup/pids.max": "100\n"})
    assert (threads(process).level, "may start 100" in threads(process).text) == (WARNING, True)
    (tmp_path / "cgroup/pids.max").write_text("max\n")
    assert threads(process).level == OK
    limit["user"] = 500
    assert (threads(process).level, "may start 500" in threads(process).text) == (WARNING, True)


def test_a_ray_that_would_be_open_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert ray_token().level == OK
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert (ray_token().level, "disabled" in ray_token().text) == (ERROR, True)
    assert ray_here().level == ERROR
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert ray_here().level == OK


def test_two_onnxruntimes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert onnxruntimes().level == OK
    for name in ("onnxruntime", "onnxruntime_gpu"):
        (tmp_path / f"{name}-1.0.dist-info").mkdir()
        (tmp_path / f"{name}-1.0.dist-info/METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = onnxruntimes()
    assert (found.level, "are both installed" in found.text) == (ERROR, True)
    monkeypatch.setattr(sys, "path", [])
    assert onnxruntimes() == (ERROR, "onnxruntime", "ONNX Runtime is not installed")


def test_a_ray_of_this_user_that_wants_no_token_is_named(tmp_path: Path) -> None:
    shutil.copy(shutil.which("sleep") or "", tmp_path / "gcs_server")
    with (
        subprocess.Popen([tmp_path / "gcs_server", "60"], env={"RAY_AUTH_MODE": "disabled"}) as alone,
        subprocess.Popen([tmp_path / "gcs_server", "60"], env={"RAY_AUTH_MODE": "token"}) as closed,
    ):
        found = [(each.level, each.text) for each in open_rays() if str(alone.pid) in each.text]
        others = [each for each in open_rays() if str(closed.pid) in each.text]
        alone.kill()
        closed.kill()
    assert others == []
    (only,) = found
    assert only[0] == ERROR
    assert "asks for no token: whoever reaches it from this machine can run code" in only[1]


def test_a_ray_that_every_machine_reaches_is_named(tmp_path: Path) -> None:
    program = shutil.copy(Path(sys.executable).resolve(), tmp_path / "gcs_server")
    listen = "import socket; held = socket.create_server(('0.0.0.0', 0)); print('listens', flush=True); input()"
    env = {"RAY_AUTH_MODE": "disabled", "PYTHONHOME": sys.base_prefix}
    with subprocess.Popen([program, "-c", listen], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as wide:
        assert wide.stdout is not None and wide.stdout.readline() == b"listens\n"
        (found,) = [each for each in open_rays() if str(wide.pid) in each.text]
        wide.kill()
    text = f"process {wide.pid} asks for no token: whoever reaches it from every machine can run code"
    assert found == (ERROR, "open ray", text)


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:1"])
def test_a_cluster_that_cannot_be_joined_is_named(url: str) -> None:
    env = environment(EAGLERAY_CLIENT_URL=url) if url else None
    done = run(EAGLERAY, "doctor", "--ray-address", "nowhere", env=env)
    (line,) = [line for line in done.stdout.splitlines() if "  nodes: " in line]
    assert line.startswith("error  nodes: no Ray cluster can be joined at nowhere: ")
    assert (done.returncode, done.stderr) == (1, "")


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as holder:
        with contextlib.suppress(OSError):  # it may be taken already, which is as good
            holder.bind(("127.0.0.1", 8002))
            holder.listen()
        levels = {each.text.split()[0]: each.level for each in ports() if "8002" in each.text}
    assert set(levels.values()) == {WARNING}


UNLIMITED = resource.RLIM_INFINITY
HARD = "LimitNOFILE= of systemd, --ulimit nofile= of a container, /etc/security/limits.conf"


@pytest.mark.parametrize(
    ("soft", "hard", "level", "text"),
    [
        (1024, 1 << 20, WARNING, "a process may open 1024; raise it with `ulimit -n 65536`"),
        (1024, 10_000, WARNING, "a process may open 1024; raise it with `ulimit -n 10000`"),
        (1024, UNLIMITED, WARNING, "a process may open 1024; raise it with `ulimit -n 65536`"),
        (256, 256, WARNING, f"a process may open 256, and no more than 256; raise the hard limit ({HARD})"),
        (64, 64, ERROR, f"a process may open 64, and no more than 64; raise the hard limit ({HARD})"),
        (8192, 8192, OK, "a process may open 8192"),
        (UNLIMITED, UNLIMITED, OK, "a process may open any number"),
    ],
)
def test_advice_on_open_files_is_of_use(
    soft: int, hard: int, level: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (soft, hard))
    assert open_files() == (level, "open files", text)


def test_a_folder_for_temporary_files_that_is_of_no_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert temporary_files() == (OK, "temporary files", f"{tempfile.gettempdir()} can be written")
    monkeypatch.setattr(tempfile, "tempdir", "/" + 75 * "x")
    assert (temporary_files().level, "is too long a path" in temporary_files().text) == (WARNING, True)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/nowhere"])
    text = "no folder for them can be written; set TMPDIR to one that can"
    assert temporary_files() == (ERROR, "temporary files", text)


@pytest.mark.parametrize(
    ("mode", "level"), [(0o700, OK), (0o750, WARNING), (0o755, WARNING)], ids=["its user's", "its group's", "anybody's"]
)
def test_a_folder_in_which_ray_has_other_users_write_is_named(
    mode: int, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "parents", property(lambda path: [path.parent]))  # those of pytest's are closed
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    tmp_path.chmod(mode)
    (tmp_path / "ray").mkdir()
    assert (ray_files().level, str(tmp_path / "ray") in ray_files().text) == (level, True)


def test_a_folder_of_ray_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def usage(folder: Path, free: int) -> object:
        asked.append(folder)
        return shutil._ntuple_diskusage(1 << 40, 0, free)

    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "to be made"))
    folder = tmp_path / "to be made/ray"
    monkeypatch.setattr(shutil, "disk_usage", partial(usage, free=64 << 20))
    assert ray_room() == (OK, "ray room", f"64 MiB are free for Ray's logs and sockets in {folder}")
    monkeypatch.setattr(shutil, "disk_usage", partial(usage, free=1 << 20))
    found = ray_room()
    assert (found.level, "1 MiB are free" in found.text, "set RAY_TMPDIR" in found.text) == (WARNING, True, True)
    assert asked == [tmp_path, tmp_path]


def test_nodes_that_differ_are_named_by_package() -> None:
    one = {"python": "3.11.7", "ray": "2.60.0", "torch": "2.4"}
    assert [each.level for each in compare({"a": one, "b": one})] == [OK]
    found = list(compare({"a": one, "b": {"python": "3.12.1", "ray": "2.60.0"}}))
    assert found == [
        (ERROR, "nodes", "python differs: 3.11.7 on a, 3.12.1 on b"),
        (ERROR, "nodes", "torch differs: 2.4 on a, none on b"),
    ]


def test_the_command_says_what_it_has_found_and_fails_for_errors() -> None:
    done = run(EAGLERAY, "doctor", "--json", env=environment(RAY_AUTH_MODE="disabled"))
    findings = json.loads(done.stdout)
    assert done.returncode == 1
    assert {finding["check"] for finding in findings} >= {"ray token", "onnxruntime", "gpu", "open files", "ports"}
    assert {"level": ERROR, "check": "ray token"}.items() <= findings[0].items()
    few = run(
        "sh", "-c", f"ulimit -Sn 1000 && exec {EAGLERAY} doctor", env=environment(RAY_AUTH_MODE="disabled")
    ).stdout
    assert few.startswith("error  ray token: RAY_AUTH_MODE=disabled: ")
    assert "warning  open files: a process may open 1000; raise it with `ulimit -n" in few
