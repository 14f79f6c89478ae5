"""Profiles of a server under load, by py-spy: of its ingresses and of a model's replicas, all at the same time."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.body import grpc_body, http_body
from benchmarks.idle import name_of
from benchmarks.load import H2Load, load_on
from benchmarks.measure import processes_of
from benchmarks.models import Tensors
from benchmarks.peers import Peer
from benchmarks.rows import Work

PROFILE_S = 3
RATE = 200
SETTLE_S = 1.0
MARGIN_S = 4.0
"""py-spy takes so much at most to begin and to write."""


def profile(peer: Peer, work: Work, tensors: Tensors, bodies: Path, folder: Path, say: Callable[[str], None]) -> None:
    """Load a model, and write `<model>-<protocol>-<pid>-<role>.txt` for each process; what fails is said."""
    folder.mkdir(parents=True, exist_ok=True)
    http, grpc = http_body(work.model, bodies, tensors), grpc_body(work.model, bodies, tensors)
    load = load_on(peer, work, http, grpc)
    with load.start(SETTLE_S + PROFILE_S + MARGIN_S) as process:
        recordings: list[tuple[Path, subprocess.Popen[str]]] = []
        try:
            time.sleep(SETTLE_S)
            for pid, role in roles(peer, work.model).items():
                file = folder / f"{work.model}-{work.protocol}-{pid}-{role}.txt"
                recordings.append((file, record(pid, file)))
            for file, recording in recordings:
                output, _ = recording.communicate(timeout=PROFILE_S + 10)
                if recording.returncode or not file.exists():
                    say(f"{file.name}: py-spy ended with status {recording.returncode}: {output[-300:].strip()}")
        finally:
            for _, recording in recordings:
                if recording.poll() is None:
                    recording.kill()
            process.kill()
            process.communicate()
            if isinstance(load, H2Load):
                load.log.unlink(missing_ok=True)
    say(f"profiled {work.model}, {work.protocol}: {len(recordings)} processes")


def record(pid: int, file: Path) -> "subprocess.Popen[str]":
    command = [py_spy(), "record", "-d", str(PROFILE_S), "-r", str(RATE), "-f", "raw", "-o", str(file), "-p", str(pid)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def py_spy() -> str:
    return shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))


def roles(peer: Peer, model: str) -> dict[int, str]:
    """Return the ingresses and the model's replicas, by process number."""
    found = {}
    for process in processes_of(peer.mark):
        role = role_of(name_of(process.pid), model)
        if role is not None:
            found[process.pid] = role
    return found


def role_of(name: str, model: str) -> str | None:
    """Tell what one of Ray's workers is from its title, `ray::ServeReplica:<application>:<deployment>`."""
    _, _, rest = name.partition("ray::ServeReplica:")
    application, _, deployment = rest.partition(":")
    if "Ingress" in deployment:
        return "ingress"
    return "replica" if model in (application, deployment) else None
