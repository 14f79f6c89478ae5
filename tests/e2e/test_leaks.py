"""A server under everything that clients do, for a while: nothing of it stays behind.

`SOAK_S` says for how long each placement is asked; memory, descriptors and threads of every process are compared after a
third of the time, when caches are full, and at the end.
"""

import itertools
import json
import os
import queue
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from tests.hostile.watch import grpc_address
from tests.repositories import write_small_models
from tests.serving import Client, Server, title_of, wait_until

SOAK_S = float(os.environ.get("SOAK_S", "0"))
pytestmark = pytest.mark.skipif(not SOAK_S, reason="takes minutes: make soak")

GROWTH_BYTES = 24 << 20
"""What a process may take more than it had after a third of the time, which is for caches and the allocator."""
ONES = np.ones((1, 16), np.int32)
ROWS = np.arange(16, dtype=np.int32).reshape(1, 16)


class Use(NamedTuple):
    """What a process has."""

    memory_bytes: int
    descriptors: int
    threads: int


def uses(server: Server) -> dict[str, Use]:
    """Return what each process of the server has, by its number and title."""
    found = {}
    for process in server.descendants():
        with suppress(psutil.Error):
            memory = process.memory_full_info()
            use = Use(memory.uss, process.num_fds(), process.num_threads())
            found[f"{process.pid} {title_of(process).partition('.')[0][:60]}"] = use
    return found


def listening_ports(server: Server, title: str) -> list[int]:
    """Return the ports that processes of a server with this title listen on."""
    processes = [each for each in server.descendants() if title_of(each) == title]
    found = [each for process in processes for each in process.net_connections("tcp")]
    return [each.laddr.port for each in found if each.status == psutil.CONN_LISTEN]


@pytest.fixture(params=["isolated", "packed", "embedded"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    root = write_small_models(tmp_path / "models")
    flags = ("--placement", request.param, "--num-cpus", "8", "--no-dashboard", "--model-control-mode", "explicit")
    flags += ("--allow-client-shm", "true")
    started = Server(root, tmp_path / "log", *flags, "--load-model", "*")
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


class Users:
    """Threads, each of which does one thing again and again until told to stop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop = threading.Event()
        self._failures: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.done: dict[str, int] = {}
        asking = (self.http, self.grpc, self.stream, self.sequence, self.memory, self.wrong, self.leave)
        whats = (*asking, self.control, self.scrape)
        self._threads = [threading.Thread(target=self._repeat, args=(what,)) for what in whats]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(300)
        assert not any(thread.is_alive() for thread in self._threads)
        failures = [self._failures.get() for _ in range(self._failures.qsize())]
        assert not failures, failures[:5]

    def _repeat(self, what: Callable[[int], None]) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            try:
                what(number)
            except Exception as error:
                self._failures.put(f"{what.__name__}: {error!r} {error}")
                if self._failures.qsize() > 20:
                    return
            self.done[what.__name__] = number + 1

    def http(self, number: int) -> None:
        """Ask with numbers as binary and as JSON, in a connection of its own at times, under ids that do not repeat."""
        with http_client.InferenceServerClient(self._server.address) as client:
            for each in range(50):
                inputs = [http_client.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
                inputs[0].set_data_from_numpy(ROWS, binary_data=bool(each % 2))
                inputs[1].set_data_from_numpy(ONES, binary_data=bool(each % 3))
                headers = {"traceparent": f"00-{random.getrandbits(128):032x}-{random.getrandbits(64):016x}-00"}
                answer = client.infer("simple", inputs, request_id=f"{number}-{each}", headers=headers)
                assert (answer.as_numpy("OUTPUT0") == ROWS + 1).all()
                text = http_client.InferInput("TEXT", [1, 1], "BYTES")
                text.set_data_from_numpy(np.array([[f"{number}".encode() * (each + 1)]], np.object_))
                client.infer("strings", [text])
            client.get_inference_statistics()
            client.get_model_metadata("simple")
        self._server.metrics_text()

    def scrape(self, number: int) -> None:
        """Ask Ray's agent as Prometheus does: until then it keeps some of what processes that have ended told it last."""
        told = []
        for port in listening_ports(self._server, "ray::DashboardAgent"):
            with suppress(OSError, HTTPException), Client(f"127.0.0.1:{port}", timeout_s=20) as client:
                told.append(client.get("/metrics").body)
        assert any(b"ray_node_cpu_count" in body for body in told), "no port of the agent's has metrics"
        self._stop.wait(15)

    def grpc(self, number: int) -> None:
        """Ask by gRPC, with a compressed request at times."""
        with grpc_client.InferenceServerClient(grpc_address(self._server.log())) as client:
            for each in range(50):
                inputs = [grpc_client.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
                inputs[0].set_data_from_numpy(ROWS)
                inputs[1].set_data_from_numpy(ONES)
                compression = "gzip" if not each % 10 else None
                answer = client.infer(
                    "simple", inputs, request_id=f"{number}-{each}", compression_algorithm=compression
                )
                assert (answer.as_numpy("OUTPUT0") == ROWS + 1).all()

    def stream(self, number: int) -> None:
        """Read the responses of decoupled models, and leave every other stream before its end."""
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with grpc_client.InferenceServerClient(grpc_address(self._server.log())) as client:
            client.start_stream(lambda result, error: answers.put(error or result))
            count = grpc_client.InferInput("COUNT", [1], "INT32")
            count.set_data_from_numpy(np.array([20], np.int32))
            client.async_stream_infer("countdown", [count])
            client.async_stream_infer("countdown_in_thread", [count])
            for _ in range(1 if number % 2 else 30):
                answer = answers.get(timeout=30)
                assert not isinstance(answer, InferenceServerException), answer
            client.stop_stream(cancel_requests=bool(number % 2))

    def sequence(self, number: int) -> None:
        """Add numbers in a sequence, of which every fiftieth has no end; at the end its id is added."""
        with http_client.InferenceServerClient(self._server.address) as client:
            total = 0
            for step in range(4):
                given = http_client.InferInput("INPUT", [1, 1], "INT32")
                given.set_data_from_numpy(np.array([[step]], np.int32))
                ends = step == 3 and bool(number % 50)
                total += step + (number + 1 if ends else 0)
                answer = client.infer(
                    "sequence_sums",
                    [given],
                    sequence_id=number + 1,
                    sequence_start=step == 0,
                    sequence_end=ends,
                )
                assert answer.as_numpy("OUTPUT").item() == total

    def memory(self, number: int) -> None:
        """Register shared memory, use it, and give it back."""
        name, size = f"soak_{os.getpid()}_{number}", ROWS.nbytes
        region = shm.create_shared_memory_region(name, f"/{name}", 4 * size)
        try:
            with http_client.InferenceServerClient(self._server.address) as client:
                shm.set_shared_memory_region(region, [ROWS, ONES])
                client.register_system_shared_memory(name, f"/{name}", 4 * size)
                inputs = [http_client.InferInput(each, [1, 16], "INT32") for each in ("INPUT0", "INPUT1")]
                outputs = [http_client.InferRequestedOutput(each) for each in ("OUTPUT0", "OUTPUT1")]
                for place, tensor in enumerate([*inputs, *outputs]):
                    tensor.set_shared_memory(name, size, offset=place * size)
                client.infer("simple", inputs, outputs=outputs)
                client.unregister_system_shared_memory(name)
            assert (shm.get_contents_as_numpy(region, np.int32, [1, 16], 2 * size) == ROWS + 1).all()
        finally:
            shm.destroy_shared_memory_region(region)

    def wrong(self, number: int) -> None:
        """Send what is refused, each time with other names and other bytes."""
        with self._server.client() as client:
            assert client.infer(f"nobody_{number}", {}).status in (400, 404)
            assert client.get(f"/v2/models/simple/versions/{number + 2}").status in (400, 404)
            given = {"name": f"X{number}", "datatype": "FP32", "shape": [1, number], "data": [number]}
            assert client.infer("simple", given).status == 400
        host, _, port = self._server.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=20) as raw:
            raw.sendall(random.choice([b"GET /", b"POST /v2/models/simple/infer HTTP/1.1\r\n", b""]))
            raw.sendall(random.randbytes(200) + b"\r\n\r\n")
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                pass

    def leave(self, number: int) -> None:
        """Leave in the head, in the body, in the queue and in the run."""
        host, _, port = self._server.address.rpartition(":")
        given = {"name": "SECONDS", "datatype": "FP32", "shape": [1], "data": [0.1]}
        body = json.dumps({"inputs": [given], "id": str(number)}).encode()
        head = b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
        for sent in (head[: number % len(head)], head + body[: number % len(body)], head + body, head + body):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(sent)
        self._stop.wait(0.2)

    def control(self, number: int) -> None:
        """Unload and load models again, one of them with files and a configuration of its own."""
        name = ("floats", "flags", "lone")[number % 3]
        with Client(self._server.address, timeout_s=300) as client:
            for what in ("unload", "load"):
                assert client.request("POST", f"/v2/repository/models/{name}/{what}").status == 200
        self._stop.wait(1.0)


@pytest.mark.timeout(SOAK_S + 400)
def test_nothing_stays_behind(server: Server) -> None:
    users = Users(server)
    users.start()
    try:
        since_s = time.monotonic()
        wait_until(lambda: time.monotonic() - since_s > SOAK_S / 3, "a third of the time", SOAK_S)
        before = uses(server)
        wait_until(lambda: time.monotonic() - since_s > SOAK_S, "the rest of it", SOAK_S)
        after = uses(server)
    finally:
        users.stop()
    print(f"{users.done}")
    ingresses, left = ({name for name in each if name.endswith(":Ingress")} for each in (before, after))
    assert ingresses and ingresses == left, "an ingress has died"
    grown = []
    for name in sorted(before.keys() & after.keys()):
        was, now = before[name], after[name]
        line = f"{name}: {was.memory_bytes >> 10} to {now.memory_bytes >> 10} KiB, descriptors {was.descriptors} to "
        line += f"{now.descriptors}, threads {was.threads} to {now.threads}"
        print(line)
        if (
            now.memory_bytes - was.memory_bytes > GROWTH_BYTES
            or now.descriptors - was.descriptors > 64
            or now.threads - was.threads > 16
        ):
            grown.append(line)
    assert not grown
