"""What must hold after every hostile request: the processes live, and good requests over both protocols are answered."""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import grpc
import psutil
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.serving import Client, infer_path, tensor

PRIVATE = re.compile(
    rb"Traceback|File \"|\.py\b|0x[0-9a-f]{8}|/tmp/|/home/|/root/|/usr/|/dev/shm|site-packages|object at |"
    rb"\b[A-Z]\w*(?:Error|Exception)\b|eagleray_|RAY_"
)
"""Found in no answer: a path, a key, a class of ours or Python's, the text of an exception."""

MAX_ERROR_BYTES = 1024
MAX_WAIT_S = 0.05
INFER = "/inference.GRPCInferenceService/ModelInfer"
_VALUES = list(range(16))
_BODY = {"inputs": [tensor(name, "INT32", [1, 16], _VALUES) for name in ("INPUT0", "INPUT1")]}
_RAW = b"".join(value.to_bytes(4, "little") for value in _VALUES)
_MESSAGE = pb.ModelInferRequest(
    model_name="simple",
    inputs=[{"name": name, "datatype": "INT32", "shape": [1, 16]} for name in ("INPUT0", "INPUT1")],
    raw_input_contents=[_RAW, _RAW],
)
_KINDS = ("ray::ServeReplica", "ray::ServeController", "ray::ProxyActor")


def serving_processes(pid: int) -> list[psutil.Process]:
    """Return a server's first process and those below it that serve."""
    root = psutil.Process(pid)
    found = [root]
    for process in root.children(recursive=True):
        try:
            title = " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            continue
        if title.startswith(_KINDS) or "raylet" in title.split(" ")[0] or "gcs_server" in title.split(" ")[0]:
            found.append(process)
    return found


class Watch:
    """A server's processes, and a good client of each protocol with a connection that it keeps."""

    def __init__(self, address: str, grpc_address: str, pids: Iterable[int]) -> None:
        self.address = address
        self.grpc_address = grpc_address
        self.processes = [process for pid in pids for process in serving_processes(pid)]
        self._ingresses = [process for process in self.processes if ":Ingress" in "".join(process.cmdline())]
        assert self._ingresses
        self._client = Client(address, timeout_s=10.0)
        self.channel = grpc.insecure_channel(grpc_address)
        self._infer = self.channel.unary_unary(
            INFER,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )

    def close(self) -> None:
        self._client.__exit__()
        self.channel.close()

    def dead(self) -> list[int]:
        """Return the processes that are no longer there."""
        return [p.pid for p in self.processes if not p.is_running() or p.status() == psutil.STATUS_ZOMBIE]

    def good_grpc_client(self) -> AbstractContextManager["GoodClient"]:
        """Have a good client ask over gRPC all the while."""
        return self._good_client(lambda: self._infer(_MESSAGE, timeout=10.0))

    @contextmanager
    def good_http_client(self) -> Iterator["GoodClient"]:
        """Have a good client ask over HTTP, on one connection, all the while."""
        http = Client(self.address, timeout_s=10.0)
        with http, self._good_client(lambda: http.request("POST", infer_path("simple"), _BODY)) as client:
            yield client

    @contextmanager
    def _good_client(self, ask: Callable[[], object]) -> Iterator["GoodClient"]:
        """Run a good client; what it measured is complete at the end."""
        client = GoodClient(ask, self._ingresses)
        client.start()
        try:
            yield client
        finally:
            client.stop()

    def assert_well(self) -> None:
        """Fail unless all processes live and good requests are answered."""
        assert not self.dead(), f"processes that died: {self.dead()}"
        answer = self._client.request("POST", infer_path("simple"), _BODY)
        assert answer.status == 200, answer.body[:500]
        assert answer.json["outputs"][1]["data"] == [0] * 16
        response = self._infer(_MESSAGE, timeout=10.0)
        assert response.raw_output_contents[1] == bytes(64)


class GoodClient(threading.Thread):
    """Asks about every 5 ms, and measures how long the ingresses kept it waiting.

    Other programs of the machine do not count: a wait is at most the CPU time that the ingresses took meanwhile.
    """

    def __init__(self, ask: Callable[[], object], ingresses: Iterable[psutil.Process]) -> None:
        super().__init__(daemon=True)
        self._ask = ask
        self._clocks = [_cpu_clock(process.pid) for process in ingresses]
        self._stopped = threading.Event()
        self.waits_s: list[float] = []

    def run(self) -> None:
        while not self._stopped.wait(0.005):
            begun_s, cpu_s = time.perf_counter(), self._cpu_s()
            self._ask()
            self.waits_s.append(min(time.perf_counter() - begun_s, self._cpu_s() - cpu_s))

    def stop(self) -> None:
        self._stopped.set()
        self.join(20.0)

    def _cpu_s(self) -> float:
        return sum(time.clock_gettime(clock) for clock in self._clocks)


def _cpu_clock(pid: int) -> int:
    """Return the id of a process's CPU clock, as clock_getcpuclockid(3) makes it."""
    return ~pid << 3 | 2


def assert_did_not_wait(waits_s: Sequence[float]) -> None:
    """Fail unless good clients that ran beside hostile ones were answered in time."""
    if not waits_s:
        pytest.skip("the cases did not run")
    assert sorted(waits_s)[len(waits_s) * 99 // 100] <= MAX_WAIT_S
    assert max(waits_s) <= 4 * MAX_WAIT_S


def grpc_address(log: str) -> str:
    """Return the address that a server has printed."""
    found = re.search(r"gRPC\s+(\S+)", log)
    assert found, log
    return found[1]
