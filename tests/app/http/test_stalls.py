"""Whatever one client sends, no turn of the loop takes long: others are answered meanwhile."""

import asyncio
import socket
import threading
from collections.abc import Callable

import pytest
import uvloop

from app.http.context import HttpContext
from app.http.front import HttpFront
from app.http.limits import HttpLimits
from tests.app.grpc.stall import Stall
from tests.app.http.wire import EchoRoutes, hello

MAX_STALL_S = 0.02
ATTEMPTS = 3

CHUNKED = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
SHORT = b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: a\r\n\r\n"
ABUSE: dict[str, Callable[[], tuple[bytes, int]]] = {
    "small chunks": lambda: (CHUNKED + b"1\r\nx\r\n" * 60_000 + b"0\r\n\r\n", 1),
    "small chunks with long extensions": lambda: (
        CHUNKED + (b"1;" + b"y" * 40 + b"\r\nx\r\n") * 60_000 + b"0\r\n\r\n",
        1,
    ),
    "requests that are answered at once": lambda: (SHORT % b"echo" * 20_000, 20_000),
    "requests that are refused at once": lambda: (SHORT % b"nobody" * 20_000, 20_000),
}


def abuse(sent: bytes, count: int) -> float:
    """Have one client send bytes, wait for as many answers, and return the longest turn of the loop in seconds."""

    async def test() -> float:
        loop = asyncio.get_running_loop()
        front = HttpFront(HttpContext(hello, EchoRoutes(), HttpLimits(), loop))
        port = await front.listen("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", port), timeout=20.0) as client:
            sender = threading.Thread(target=client.sendall, args=(sent,))
            found = 0

            def read() -> None:
                nonlocal found
                rest = b""
                while found < count:
                    data = rest + client.recv(1 << 20)
                    found += data.count(b"HTTP/1.1 ")
                    rest = data[-8:] if not data.endswith(b"HTTP/1.1 ") else b""

            stall = Stall(loop)
            stall.begin()
            sender.start()
            await loop.run_in_executor(None, read)
            worst_s = stall.end()
            sender.join()
        await front.close(1)
        return worst_s

    return uvloop.run(test())


@pytest.mark.parametrize("make", ABUSE.values(), ids=ABUSE)
def test_no_turn_of_the_loop_is_long(make: Callable[[], tuple[bytes, int]]) -> None:
    sent, count = make()
    stalls: list[float] = []
    while len(stalls) < ATTEMPTS and (not stalls or stalls[-1] > MAX_STALL_S):
        stalls.append(abuse(sent, count))
    assert min(stalls) <= MAX_STALL_S, stalls
