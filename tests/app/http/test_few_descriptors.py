"""A process that may open hardly any files (`ulimit -n`) serves whom it has, and others when these have gone."""

import resource
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.app.http.wire import infer
from tests.serving import ROOT, wait_until

FRONT = """
import asyncio
import uvloop
from app.http.context import HttpContext
from app.http.front import HttpFront
from app.http.limits import HttpLimits
from tests.app.http.wire import EchoRoutes, hello

async def serve():
    front = HttpFront(HttpContext(hello, EchoRoutes(), HttpLimits(), asyncio.get_running_loop()), None)
    print(await front.listen("127.0.0.1", 0), flush=True)
    await asyncio.Event().wait()

uvloop.run(serve())  # as Ray's actors run
"""
ROOM = 20
RESERVED = 8
CLIENTS = 60


@pytest.fixture
def served() -> Iterator[tuple[psutil.Process, int]]:
    """A front in a process of its own that may accept 20 connections more; and its port."""
    command = [sys.executable, "-c", FRONT]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        try:
            assert child.stdout is not None
            port = int(child.stdout.readline())
            process = psutil.Process(child.pid)
            most = process.num_fds() + ROOM
            process.rlimit(resource.RLIMIT_NOFILE, (most, most))
            yield process, port
        finally:
            child.kill()


def ask(client: socket.socket) -> bytes:
    """Send a request and return what came of it, b"" when nothing did."""
    try:
        client.sendall(infer(b"hello"))
        return client.recv(65536)
    except OSError:
        return b""


def test_clients_beyond_the_descriptors_cost_nothing_but_their_own_answer(served: tuple[psutil.Process, int]) -> None:
    process, port = served
    clients = [socket.create_connection(("127.0.0.1", port), timeout=0.5) for _ in range(CLIENTS)]
    answered = [client for client in clients[:ROOM] if ask(client).startswith(b"HTTP/1.1 200")]
    assert len(answered) >= ROOM - RESERVED
    used_s = sum(process.cpu_times()[:2])
    assert not any(ask(client).startswith(b"HTTP/1.1 200") for client in clients[-5:])
    assert all(ask(client).startswith(b"HTTP/1.1 200") for client in answered)
    assert sum(process.cpu_times()[:2]) - used_s < 1.0
    for client in clients:
        client.close()

    def serves_again() -> bool:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as client:
            return ask(client).startswith(b"HTTP/1.1 200")

    wait_until(serves_again, "an answer once there is room")


def test_clients_that_ask_nothing_more_give_way_before_the_last_descriptor_is_taken(
    served: tuple[psutil.Process, int],
) -> None:
    _, port = served
    idle: list[socket.socket] = []

    def answered() -> bool:
        idle.append(socket.create_connection(("127.0.0.1", port), timeout=5))
        return ask(idle[-1]).startswith(b"HTTP/1.1 200")

    for _ in range(2 * ROOM):
        wait_until(answered, "an answer beside clients that are idle")
    for client in idle:
        client.close()
