"""The two servers, as programs: started in a session of their own, waited for, and stopped by process number."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from benchmarks.home import Home
from benchmarks.measure import MARK, Process, processes_of, read_process
from benchmarks.models import with_called

HERE = Path(__file__).parents[1]
"""The checkout that these benchmarks belong to."""

STOP_S = 40.0
KILL_S = 10.0


class PeerError(Exception):
    """A server could not be started; the message says why, and names its log file."""


class Peer:
    """A server that runs as long as the `with` block.

    Ports: HTTP at `port`, gRPC one above, metrics two above.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        port: int,
        log: Path,
        environment: dict[str, str],
        ready_within_s: float,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.port = port
        self.log = log
        self.environment = environment
        self.folder: Path | None = None
        """Where it is started; None for here."""
        self.ready_within_s = ready_within_s
        self.mark = uuid.uuid4().hex
        self.start_to_ready_s = 0.0
        self.root: subprocess.Popen[bytes] | None = None

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def grpc_url(self) -> str:
        return f"http://127.0.0.1:{self.port + 1}"

    def __enter__(self) -> "Peer":
        for port in range(self.port, self.port + 3):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    raise PeerError(
                        f"port {port} for {self.name} is in use: stop what listens there, or choose another"
                    )
        self.log.parent.mkdir(parents=True, exist_ok=True)
        started_s = time.monotonic()
        try:
            with self.log.open("w") as log:
                self.root = subprocess.Popen(
                    self.command,
                    cwd=self.folder,
                    env={**os.environ, **self.environment, MARK: self.mark},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise PeerError(f"{self.name} could not be started: {error}") from error
        try:
            self.wait_until_ready(started_s)
        except BaseException:
            self.stop()
            raise
        self.start_to_ready_s = time.monotonic() - started_s
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def has_ended(self) -> bool:
        """Whether the server's first process is gone."""
        return self.root is None or self.root.poll() is not None

    def restart(self) -> None:
        """Start anew."""
        self.stop()
        self.__enter__()

    def wait_until_ready(self, started_s: float) -> None:
        assert self.root is not None
        while time.monotonic() - started_s < self.ready_within_s:
            if self.root.poll() is not None:
                raise PeerError(f"{self.name} ended with status {self.root.returncode}; its log is {self.log}")
            try:
                with urllib.request.urlopen(f"{self.http_url}/v2/health/ready", timeout=2) as response:
                    if response.status == 200:
                        return
            except OSError:
                pass
            time.sleep(0.02)
        raise PeerError(f"{self.name} was not ready within {self.ready_within_s:.0f} s; its log is {self.log}")

    def stop(self) -> None:
        """Ask the server to stop, then whatever is left of it, then end that."""
        if self.root is None:
            return
        known = processes_of(self.mark)
        self.root.terminate()
        left = self.wait_for_end(known, STOP_S)
        for signal_number, patience_s in ((signal.SIGTERM, KILL_S), (signal.SIGKILL, KILL_S)):
            for process in left:
                send(process, signal_number)
            left = self.wait_for_end(left, patience_s)
        self.root.wait()
        self.root = None

    def wait_for_end(self, known: list[Process], patience_s: float) -> list[Process]:
        """Wait until the processes are gone, and return those that are not. Includes processes started meanwhile."""
        assert self.root is not None
        end_s = time.monotonic() + patience_s
        while True:
            self.root.poll()  # so that it does not stay as a zombie
            left = {process.pid: process for process in known if is_alive(process)}
            if not left:
                left = {process.pid: process for process in processes_of(self.mark)}
            if not left or time.monotonic() > end_s:
                return list(left.values())
            time.sleep(0.1)


def is_alive(process: Process) -> bool:
    now = read_process(process.pid)
    return now is not None and now.start_ticks == process.start_ticks


def send(process: Process, signal_number: signal.Signals) -> None:
    if is_alive(process):
        try:
            os.kill(process.pid, signal_number)
        except ProcessLookupError:
            pass


def triton(home: Home, models: Sequence[str], port: int, repository: Path | None = None) -> Peer:
    """Triton with the named models, of the benchmarks' repository or another.

    Its package runs Python models and ensembles only.
    """
    server = home.triton_server
    command = [
        str(server / "bin/tritonserver"),
        f"--model-repository={repository or home.models}",
        f"--backend-directory={server / 'backends'}",
        f"--cache-directory={server / 'caches'}",
        *(f"--{kind}-address=127.0.0.1" for kind in ("http", "grpc", "metrics")),
        f"--http-port={port}",
        f"--grpc-port={port + 1}",
        f"--metrics-port={port + 2}",
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in with_called(models)),
    ]
    environment = {
        "PATH": f"{home.triton_bin}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(home.triton_site_packages),
    }
    return Peer("triton", command, port, home.logs / "triton.log", environment, ready_within_s=60)


def program() -> list[str]:
    """Return the command `eagleray` of this Python, or what it does where the package lies elsewhere (PYTHONPATH)."""
    script = Path(sys.executable).with_name("eagleray")
    return [str(script)] if script.exists() else [sys.executable, "-c", "import eagleray; eagleray.main()"]


def eagleray(
    home: Home, repository: Path, placement: str, models: Sequence[str], port: int, template: str | None
) -> Peer:
    """Eagleray with the named models, or with all of the repository when none is named.

    `template` is a command to measure in its place; {repository}, {placement}, {http_port}, {grpc_port} and
    {metrics_port} stand for what they say.
    """
    ports = {"http_port": port, "grpc_port": port + 1, "metrics_port": port + 2}
    if template is not None:
        command = shlex.split(template.format(repository=repository, placement=placement, **ports))
    else:
        command = [*program(), "serve", "--model-repository", str(repository)]
        command += ["--placement", placement, "--http-port", str(port), "--metrics-port", str(port + 2)]
        command += ["--grpc-port", str(port + 1)]
        command += ["--allow-client-shm", "true"]
    if models:
        command += ["--model-control-mode", "explicit"]
        for model in with_called(models):
            command += ["--load-model", model]
    log = home.logs / f"eagleray-{placement}.log"
    return Peer(f"eagleray, {placement}", command, port, log, {}, ready_within_s=180)


def run_from(folder: Path, peer: Peer) -> None:
    """Have the server be the Eagleray that lies in a folder, with the packages of this Python environment."""
    found = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    peer.folder = Path("/")  # Ray's workers look first into the folder in which it is started
    peer.environment = {"PYTHONPATH": os.pathsep.join(found)}
