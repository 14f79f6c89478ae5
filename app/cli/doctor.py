"""`eagleray doctor`: names what is unsafe or broken on this machine, and where nodes of a cluster differ."""

import contextlib
import json
import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import click

from app.cli.ray_token import rays_token_path

OK, WARNING, ERROR = "ok", "warning", "error"
_MIN_SHM_BYTES = 1 << 30
_MIN_OPEN_FILES = 8192
_PORTS = ((8000, "HTTP"), (8001, "gRPC"), (8002, "metrics"))
_PACKAGES = ("eagleray", "ray", "numpy", "onnxruntime", "onnxruntime-gpu", "torch")
_NVIDIA, _DISPLAY = "0x10de", "0x03"


class Finding(NamedTuple):
    """What one check has found, in a sentence."""

    level: str
    check: str
    text: str


def ray_token() -> Finding:
    """Whether the Ray that `eagleray serve` starts would be closed to others."""
    mode = os.environ.get("RAY_AUTH_MODE", "token").lower()
    if mode != "token":
        return Finding(ERROR, "ray token", f"RAY_AUTH_MODE={mode}: whoever reaches Ray's ports can run code")
    return Finding(OK, "ray token", "the local Ray of `eagleray serve` is closed by a token")


def open_rays() -> Iterator[Finding]:
    """Clusters of this user, started here, that anybody can reach, or that want no token."""
    import psutil

    for process in psutil.process_iter(["name", "pid"]):
        with contextlib.suppress(psutil.Error, OSError):
            if process.info["name"] != "gcs_server":
                continue
            addresses = {each.laddr.ip for each in process.net_connections("inet") if each.status == "LISTEN"}
            mode = process.environ().get("RAY_AUTH_MODE", "").lower()
            # `ray start` takes the user's token where nothing else is said.
            closed = mode == "token" or (not mode and rays_token_path().is_file())
            if not closed:
                reach = "every machine" if addresses & {"::", "0.0.0.0"} else "this machine"
                text = f"process {process.pid} asks for no token: whoever reaches it from {reach} can run code"
                yield Finding(ERROR, "open ray", text)


def onnxruntimes() -> Finding:
    """Whether two ONNX Runtimes overwrite each other's files."""
    installed = [name for name in ("onnxruntime", "onnxruntime-gpu") if _version(name)]
    if len(installed) == 2:
        text = "onnxruntime and onnxruntime-gpu are both installed and overwrite each other: uninstall both, then one"
        return Finding(ERROR, "onnxruntime", text)
    if not installed:
        return Finding(ERROR, "onnxruntime", "ONNX Runtime is not installed")
    return Finding(OK, "onnxruntime", f"{installed[0]} {_version(installed[0])}")


def gpus(devices: Path = Path("/sys/bus/pci/devices")) -> Finding:
    """Whether each NVIDIA card has a driver."""
    cards = 0
    for device in devices.glob("*"):
        with contextlib.suppress(OSError):
            vendor = (device / "vendor").read_text().strip()
            cards += vendor == _NVIDIA and (device / "class").read_text().startswith(_DISPLAY)
    if not cards:
        return Finding(OK, "gpu", "no NVIDIA GPU")
    if not Path("/proc/driver/nvidia/version").exists():
        return Finding(ERROR, "gpu", f"{cards} NVIDIA GPUs without a driver: models would run on the CPU")
    return Finding(OK, "gpu", f"{cards} NVIDIA GPUs with a driver")


def shared_memory(folder: str = "/dev/shm") -> Finding:
    """Whether there is room for what processes share."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return Finding(ERROR, "shared memory", f"{folder}: {error.strerror}")
    free = f"{usage.free >> 20} of {usage.total >> 20} MiB are free in {folder}"
    if usage.total < _MIN_SHM_BYTES or usage.free < _MIN_SHM_BYTES // 4:
        return Finding(WARNING, "shared memory", f"{free}; in a container, give it more (--shm-size=4g)")
    return Finding(OK, "shared memory", free)


def open_files() -> Finding:
    """Whether a process may open enough connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < _MIN_OPEN_FILES:
        return Finding(
            WARNING, "open files", f"a process may open {soft}; raise it with `ulimit -n {min(hard, 65536)}`"
        )
    return Finding(OK, "open files", f"a process may open {soft}")


def ports() -> Iterator[Finding]:
    """Whether the default ports are free."""
    from app.cli.ports import PortTaken, require_free

    for port, purpose in _PORTS:
        try:
            require_free("127.0.0.1", port, purpose)
        except PortTaken as taken:
            yield Finding(WARNING, "ports", str(taken))
        else:
            yield Finding(OK, "ports", f"{port} ({purpose}) is free")


def nodes(address: str) -> Iterator[Finding]:
    """Whether all nodes of a cluster have the same versions."""
    from app.cli.cluster_nodes import ask_each_node

    try:
        yield from compare(ask_each_node(address, versions))
    except click.ClickException as error:
        yield Finding(ERROR, "nodes", error.message)


def compare(told: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Name each package of which nodes have different versions; `told` are the versions by node."""
    same = True
    for package in ("python", *_PACKAGES):
        found = {node: each.get(package, "none") for node, each in told.items()}
        if len(set(found.values())) > 1:
            listed = ", ".join(f"{each} on {node}" for node, each in found.items())
            yield Finding(ERROR, "nodes", f"{package} differs: {listed}")
            same = False
    if same:
        yield Finding(OK, "nodes", f"{len(told)} nodes with the same versions")


def versions() -> dict[str, str]:
    """Return the versions of what matters in this process."""
    found = {package: _version(package) for package in _PACKAGES}
    return {"python": platform.python_version()} | {name: given for name, given in found.items() if given}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def examine(address: str = "") -> list[Finding]:
    """Run every check; those of a cluster only with its address."""
    checks: list[Callable[[], Any]] = [ray_token, open_rays, onnxruntimes, gpus, shared_memory, open_files, ports]
    if address:
        checks.append(lambda: nodes(address))
    findings: list[Finding] = []
    for check in checks:
        found = check()
        findings += [found] if isinstance(found, Finding) else found
    return findings


@click.command()
@click.option("--ray-address", default="", help="A running cluster whose nodes to compare ('auto' finds one).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(ray_address: str, as_json: bool) -> None:
    """Look for what is unsafe or broken on this machine; exit code 1 when there is such."""
    findings = examine(ray_address)
    if as_json:
        click.echo(json.dumps([finding._asdict() for finding in findings]))
    else:
        colours = {OK: "green", WARNING: "yellow", ERROR: "red"}
        for finding in findings:
            click.echo(f"{click.style(finding.level, colours[finding.level])}  {finding.check}: {finding.text}")
    sys.exit(any(finding.level == ERROR for finding in findings))
