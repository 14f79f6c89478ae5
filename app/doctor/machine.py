"""Checks of the machine that this process runs on."""

import contextlib
import os
import resource
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from app.cli.ray_token import has_rays_token
from app.doctor.finding import ERROR, OK, WARNING, Finding
from app.doctor.versions import version_of
from deployments.control_groups import PROCESS, control_groups
from deployments.ray_folder import ray_folder
from deployments.replica.cuda_driver import NoGpuError, find_gpu

_MIN_SHM_BYTES = 1 << 30
_MIN_RAY_BYTES = 64 << 20
_MIN_OPEN_FILES = 8192
_OPEN_FILES = 65536
_FILES_OF_RAY = 128
"""With fewer its processes end as they start."""
_HARD_LIMITS = "LimitNOFILE= of systemd, --ulimit nofile= of a container, /etc/security/limits.conf"
_LOOPBACK_S = 5.0
_MAX_TEMPORARY_BYTES = 75
"""What `multiprocessing` adds takes 32 bytes of a socket's path, which has 107 at most (unix(7))."""
_MIN_THREADS = 2048
"""Ray, the controllers and an ingress have some 400 on two cores, and each process of models some 30."""
_NVIDIA, _DISPLAY = "0x10de", "0x03"


def ray_token() -> Finding:
    """Whether the Ray that `eagleray serve` starts would be closed to others."""
    mode = os.environ.get("RAY_AUTH_MODE", "token").lower()
    if mode != "token":
        return Finding(ERROR, "ray token", f"RAY_AUTH_MODE={mode}: whoever reaches Ray's ports can run code")
    return Finding(OK, "ray token", "the local Ray of `eagleray serve` is closed by a token")


def ray_here() -> Finding:
    """Whether the Ray that this process belongs to is closed to others."""
    if _asks_for_token(os.environ):
        return Finding(OK, "ray token", "this server's Ray is closed by a token")
    return Finding(ERROR, "ray token", "this server's Ray asks for no token: whoever reaches its ports can run code")


def _asks_for_token(environment: Mapping[str, str]) -> bool:
    mode = environment.get("RAY_AUTH_MODE", "").lower()
    # `ray start` takes the user's token where nothing else is said.
    return mode == "token" or (not mode and has_rays_token())


def open_rays() -> Iterator[Finding]:
    """Clusters of this user, started here, that anybody can reach, or that want no token."""
    import psutil

    for process in psutil.process_iter(["name", "pid"]):
        with contextlib.suppress(psutil.Error, OSError):
            if process.info["name"] != "gcs_server":
                continue
            addresses = {each.laddr.ip for each in process.net_connections("inet") if each.status == "LISTEN"}
            if not _asks_for_token(process.environ()):
                reach = "every machine" if addresses & {"::", "0.0.0.0"} else "this machine"
                text = f"process {process.pid} asks for no token: whoever reaches it from {reach} can run code"
                yield Finding(ERROR, "open ray", text)


def onnxruntimes() -> Finding:
    """Whether two ONNX Runtimes overwrite each other's files."""
    installed = [name for name in ("onnxruntime", "onnxruntime-gpu") if version_of(name)]
    if len(installed) == 2:
        text = "onnxruntime and onnxruntime-gpu are both installed and overwrite each other: uninstall both, then one"
        return Finding(ERROR, "onnxruntime", text)
    if not installed:
        return Finding(ERROR, "onnxruntime", "ONNX Runtime is not installed")
    return Finding(OK, "onnxruntime", f"{installed[0]} {version_of(installed[0])}")


def gpus(devices: Path = Path("/sys/bus/pci/devices")) -> Finding:
    """Whether CUDA can use the NVIDIA cards that are here; a container may show them and not have it."""
    cards = 0
    for device in devices.glob("*"):
        with contextlib.suppress(OSError):
            vendor = (device / "vendor").read_text().strip()
            cards += vendor == _NVIDIA and (device / "class").read_text().startswith(_DISPLAY)
    try:
        find_gpu()
    except NoGpuError as error:
        if not cards:
            return Finding(OK, "gpu", "no NVIDIA GPU")
        text = f"{cards} NVIDIA GPUs, but {error}: models would run on the CPU; a container needs `--gpus all`"
        return Finding(ERROR, "gpu", text)
    return Finding(OK, "gpu", f"{cards or 'some'} NVIDIA GPUs with a driver")


def shared_memory(folder: str = "/dev/shm") -> Finding:
    """Whether there is room for what processes share."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return Finding(ERROR, "shared memory", f"{folder}: {error.strerror}")
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding(ERROR, "shared memory", f"{folder} cannot be written, but processes of a node share it")
    free = f"{usage.free >> 20} of {usage.total >> 20} MiB are free in {folder}"
    if usage.total < _MIN_SHM_BYTES or usage.free < _MIN_SHM_BYTES // 4:
        return Finding(WARNING, "shared memory", f"{free}; in a container, give it more (--shm-size=4g)")
    return Finding(OK, "shared memory", free)


def temporary_files() -> Finding:
    """Whether there is a folder for temporary files, and processes can meet at sockets in it."""
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError:
        return Finding(ERROR, "temporary files", "no folder for them can be written; set TMPDIR to one that can")
    if len(os.fsencode(folder)) > _MAX_TEMPORARY_BYTES:
        text = (
            f"{folder} is too long a path for the Unix sockets of Ray's dashboard, which is left out; set TMPDIR to a"
        )
        return Finding(WARNING, "temporary files", f"{text} shorter one")
    return Finding(OK, "temporary files", f"{folder} can be written")


def ray_files() -> Finding:
    """Whether other users can get at what Ray keeps: it lets all of them write to its folders, whatever the umask.

    Each worker and driver that joins does so anew, so only a folder above Ray's that they cannot enter keeps them out.
    """
    folder = ray_folder().expanduser()
    for parent in folder.parents:
        with contextlib.suppress(OSError):
            if not parent.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH):
                return Finding(OK, "ray files", f"{folder} is closed to other users")
    text = f"every user of this machine can read and replace Ray's logs and sockets in {folder}"
    return Finding(WARNING, "ray files", f"{text}; set RAY_TMPDIR to a folder that only you can open")


def ray_room() -> Finding:
    """Whether there is room for what Ray keeps: without any nothing ends, but logs stay empty."""
    folder = ray_folder().expanduser()
    try:
        free = shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.is_dir())).free
    except OSError as error:
        return Finding(WARNING, "ray room", f"{folder}: {error.strerror}")
    text = f"{free >> 20} MiB are free for Ray's logs and sockets in {folder}"
    if free < _MIN_RAY_BYTES:
        hint = "without room logs stay empty and Ray's dashboard does not start; set RAY_TMPDIR to a folder with more"
        return Finding(WARNING, "ray room", f"{text}; {hint}")
    return Finding(OK, "ray room", text)


def loopback() -> Finding:
    """Whether processes here reach each other by the network."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            socket.create_connection(listener.getsockname(), _LOOPBACK_S).close()
    except OSError as error:
        text = f"nothing can be reached at 127.0.0.1, where Ray's processes meet: {error.strerror or error}"
        return Finding(ERROR, "loopback", text)
    return Finding(OK, "loopback", "processes reach each other at 127.0.0.1")


def open_files() -> Finding:
    """Whether a process may open enough connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 0 or soft >= _MIN_OPEN_FILES:  # negative: as many as it likes
        return Finding(OK, "open files", f"a process may open {soft if soft >= 0 else 'any number'}")
    most = _OPEN_FILES if hard < 0 else min(hard, _OPEN_FILES)
    if most < _MIN_OPEN_FILES:
        level = ERROR if hard < _FILES_OF_RAY else WARNING
        text = f"a process may open {soft}, and no more than {hard}; raise the hard limit ({_HARD_LIMITS})"
        return Finding(level, "open files", text)
    return Finding(WARNING, "open files", f"a process may open {soft}; raise it with `ulimit -n {most}`")


def threads(process: Path = PROCESS) -> Finding:
    """Whether this user, and the container, may start enough threads; root may start as many as it likes."""
    limits = [] if os.getuid() == 0 else [resource.getrlimit(resource.RLIMIT_NPROC)[0]]
    for group in control_groups("pids", process):
        with contextlib.suppress(OSError, ValueError):  # the highest has no such file; "max" is no number
            limits.append(int((group / "pids.max").read_text()))
    fewest = min((limit for limit in limits if limit >= 0), default=_MIN_THREADS)
    if fewest < _MIN_THREADS:
        limit = "`ulimit -u`, or the container's limit of pids"
        return Finding(WARNING, "threads", f"Ray and the models may start {fewest}; raise it ({limit})")
    return Finding(OK, "threads", "there may be enough of them")


def findings_of(*checks: Callable[[], Finding | Iterable[Finding]]) -> list[Finding]:
    """Run checks, one after the other."""
    findings: list[Finding] = []
    for check in checks:
        found = check()
        findings += [found] if isinstance(found, Finding) else found
    return findings


CHECKS: Final = (
    open_rays,
    onnxruntimes,
    gpus,
    loopback,
    shared_memory,
    temporary_files,
    ray_files,
    ray_room,
    open_files,
    threads,
)
"""Those of every machine, whether a server runs there or not."""
