"""Starts `eagleray serve` as a user does, in a process of its own, and sees that it leaves none behind."""

import contextlib
import http.client
import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

ROOT = Path(__file__).parents[1]
EAGLERAY = str(Path(sys.executable).parent / "eagleray")
CONTROLLER = "ray::ServeReplica:eagleray:RepositoryController"
READY_LINE = "Ctrl-C drains and stops."
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
GONE_TIMEOUT_S = 10.0
_TEST_PORTS = range(20000, 32000)
"""Between those of Ray's workers and those that the kernel chooses for itself."""
_PORTS = itertools.cycle(random.SystemRandom().sample(_TEST_PORTS, len(_TEST_PORTS)))
QUIET_IMPORT_S = 1.2
"""How long `import ray.serve` takes on a quiet machine."""

T = TypeVar("T")


def title_of(process: psutil.Process) -> str:
    """Return a process's command line, as Ray's workers rewrite theirs; "" when it has ended."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""


def name_of(process: psutil.Process) -> str:
    """Return a process's name; "" when it has ended, as workers do while Serve starts."""
    try:
        return process.name()
    except psutil.Error:
        return ""


def node_folders(processes: Iterable[psutil.Process]) -> set[Path]:
    """Return the folders in shared memory that processes use."""
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found |= {Path(each.path).parent for each in process.open_files() if "/eagleray-nodes-" in each.path}
    return found


def wait_until(condition: Callable[[], T], what: str, timeout_s: float = 30.0, poll_s: float = 0.1) -> T:
    """Ask until the answer is true, and return it; the one place where a test sleeps.

    The time is a quiet machine's: one that is slower has more, which it is asked about only once the time is over.
    """
    since_s, slowness = time.monotonic(), 0.0
    while not (found := condition()):
        if time.monotonic() - since_s > timeout_s * max(slowness, 1.0):
            if slowness:
                raise AssertionError(f"{what}: not within {timeout_s:g} s, nor {slowness:.1f} times that")
            slowness = slower()
        time.sleep(poll_s)
    return found


def free_port() -> int:
    """Return a port that nothing listens on; not the same one twice, and none that the kernel gives to connections."""
    while True:
        port = next(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a user who has set nothing of Eagleray's or Ray's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "EAGLERAY_"))}
    return kept | {"RAY_USAGE_STATS_ENABLED": "0", "COLUMNS": "200"} | more


def slower() -> float:
    """Return how many times slower than a quiet machine of two cores this one is now; at least 1.

    What starts processes takes as long as the machine lets it: measured by what every process of Ray's does first.
    """
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import ray.serve"], check=True)
    import_s = time.monotonic() - started
    return max(1.0, import_s / QUIET_IMPORT_S, os.getloadavg()[0] / (os.cpu_count() or 1))


def run(*command: str, timeout_s: float = 60.0, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in the root of the project; a slow machine has more time (`wait_until`)."""
    env, pipe = env or environment(), subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            try:
                output = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                output = process.communicate(timeout=timeout_s * (slower() - 1))
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, *output)


class Process:
    """A command that runs on, its output in a file."""

    def __init__(
        self, command: Sequence[str], log_path: Path, env: dict[str, str] | None = None, cwd: Path = ROOT
    ) -> None:
        self.log_path = log_path
        with log_path.open("wb") as log:
            self._popen = subprocess.Popen(
                command, cwd=cwd, env=env or environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._process = psutil.Process(self._popen.pid)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def log(self) -> str:
        return self.log_path.read_text("utf-8", "replace")

    def wait_for(self, pattern: str, timeout_s: float = START_TIMEOUT_S) -> re.Match[str]:
        """Wait until the output matches; fails at once when the process ends."""

        def look() -> re.Match[str] | None:
            ended = self._popen.poll()
            found = re.search(pattern, self.log())
            assert found or ended is None, f"ended with {ended} before {pattern!r} was printed:\n{self.log()}"
            return found

        try:
            return wait_until(look, f"{pattern!r} in the output", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def is_running(self) -> bool:
        return self._popen.poll() is None

    def descendants(self) -> list[psutil.Process]:
        return self._process.children(recursive=True) if self._process.is_running() else []

    def exit_code(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for the end; then no process that it started may be left."""
        started: set[psutil.Process] = set()

        def ended() -> bool:
            started.update(self.descendants())
            return self._popen.poll() is not None

        try:
            wait_until(ended, f"the end of process {self.pid}", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None
        self.assert_none_left(started)
        return self._popen.returncode

    @staticmethod
    def assert_none_left(started: set[psutil.Process]) -> None:
        _, left = psutil.wait_procs(list(started), timeout=GONE_TIMEOUT_S)
        if left:
            _, left = psutil.wait_procs(left, timeout=GONE_TIMEOUT_S * (slower() - 1))
        names = [f"{process.pid} {title_of(process)[:100]}" for process in left if process.is_running()]
        assert not names, f"processes that were left behind: {names}"

    def send_signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Stop as a user does; asserts exit code 0 and that nothing is left."""
        started = set(self.descendants())
        self._popen.send_signal(number)
        assert self.exit_code() == 0, self.log()
        self.assert_none_left(started)

    def kill(self) -> None:
        """End what is left after a failure; nothing when all has ended."""
        for process in [*self.descendants(), self._process]:
            if process.is_running():
                process.kill()
        self._popen.wait(10)


@dataclass(frozen=True)
class Answer:
    """One HTTP response."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The sentence of an error body, which has nothing else in it."""
        (sentence,) = self.json.values()
        assert isinstance(sentence, str) and list(self.json) == ["error"]
        return sentence


class Client:
    """One keep-alive connection of plain HTTP, as curl's."""

    def __init__(self, address: str, timeout_s: float = 60.0) -> None:
        host, _, port = address.rpartition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=timeout_s)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    @property
    def local_port(self) -> int:
        """Tells one socket from the next."""
        if self._connection.sock is None:
            self._connection.connect()
        return int(self._connection.sock.getsockname()[1])

    def hang_up(self) -> None:
        """End the connection although a thread may be waiting for its answer."""
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        self.send(method, path, body, headers)
        return self.receive()

    def send(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> None:
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        self._connection.request(method, path, content, headers or {})

    def receive(self) -> Answer:
        response = self._connection.getresponse()
        return Answer(response.status, response.read(), {k.lower(): v for k, v in response.getheaders()})

    def get(self, path: str) -> Answer:
        return self.request("GET", path)

    def infer(self, model: str, *inputs: dict[str, Any], version: str = "", **more: Any) -> Answer:
        return self.request("POST", infer_path(model, version), {"inputs": list(inputs), **more})


def infer_path(model: str, version: str = "") -> str:
    return f"/v2/models/{model}" + (f"/versions/{version}" if version else "") + "/infer"


def tensor(name: str, datatype: str, shape: Sequence[int], data: Any) -> dict[str, Any]:
    """Return one input of a JSON request."""
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": data}


class Endpoint:
    """What listens for HTTP, asked once on each connection where no client is taken."""

    address: str
    timeout_s = 60.0

    def client(self) -> Client:
        return Client(self.address, self.timeout_s)

    def get(self, path: str) -> Answer:
        with self.client() as client:
            return client.get(path)

    def post(self, path: str, body: Any = None) -> Answer:
        with self.client() as client:
            return client.request("POST", path, body)

    def infer(self, model: str, *inputs: dict[str, Any], version: str = "", **more: Any) -> Answer:
        with self.client() as client:
            return client.infer(model, *inputs, version=version, **more)

    def statistics(self, model: str, version: int = 1) -> dict[str, Any]:
        answer = self.get(f"/v2/models/{model}/versions/{version}/stats")
        assert answer.status == 200, answer.body
        (row,) = answer.json["model_stats"]
        return dict(row)


class Server(Process, Endpoint):
    """`eagleray serve` on ports from the OS."""

    def __init__(
        self,
        repository: Path | str,
        log_path: Path,
        *flags: str,
        env: dict[str, str] | None = None,
        cwd: Path = ROOT,
        within: Sequence[str] = (),
    ) -> None:
        ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
        command = [*within, EAGLERAY, "serve", "--model-repository", str(repository), *ports, *flags]
        super().__init__(command, log_path, env, cwd)
        self.repository = Path(repository)
        self.address = ""
        self.metrics_address = ""

    def wait_ready(self) -> "Server":
        """Wait for the last line of the start, and read the addresses."""
        self.wait_for(re.escape(READY_LINE))
        self.address = self.wait_for(r"HTTP\s+http://(\S+)")[1]
        self.metrics_address = self.wait_for(r"metrics\s+http://(\S+)/metrics")[1]
        return self

    def metrics_text(self) -> str:
        with Client(self.metrics_address) as client:
            return client.get("/metrics").body.decode()

    def replica_pids(self) -> set[int]:
        """Return the processes of Serve's replicas and controller."""
        found = set()
        for process in self.descendants():
            if title_of(process).startswith(("ray::ServeReplica", "ray::ServeController")):
                found.add(process.pid)
        return found

    def replica_count(self, model: str) -> int:
        """Return how many replicas of its own a model has."""
        return sum(title_of(each).startswith(f"ray::ServeReplica:{model}:") for each in self.descendants())

    def states(self, model: str) -> dict[str, tuple[str, str]]:
        """Return state and reason of each version in the index; a model that was never loaded has none."""
        rows = [row for row in self.post("/v2/repository/index").json if row["name"] == model]
        assert rows, f"{model} is not in the index"
        return {row["version"]: (row["state"], row.get("reason", "")) for row in rows if "version" in row}

    def kill_controller(self) -> None:
        """Kill the controller of the repository, which Serve then starts again."""
        for process in self.descendants():
            if title_of(process).startswith(CONTROLLER):
                process.kill()
