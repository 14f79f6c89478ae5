"""Clients that send faster than they are answered, or read slower, on real sockets."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from app.http.context import HttpContext
from app.http.front import HttpFront
from app.http.limits import HttpLimits
from tests.app.http.wire import EchoRoutes, Wire, hello, infer

on_both_loops = pytest.mark.parametrize("on", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
MIB = 1 << 20


class Port:
    """A front on a port, and a client's socket with small buffers."""

    def __init__(self, limits: HttpLimits | None = None) -> None:
        self.routes = EchoRoutes()
        self.loop = asyncio.get_running_loop()
        self.context = HttpContext(hello, self.routes, limits or HttpLimits(), self.loop)
        self.front = HttpFront(self.context)
        self.client = socket.socket()

    async def __aenter__(self) -> "Port":
        port = await self.front.listen("127.0.0.1", 0)
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self.client.setblocking(False)
        await self.loop.sock_connect(self.client, ("127.0.0.1", port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.client.close()
        await self.front.close(1)

    async def read(self, until: Callable[[bytes], bool]) -> bytes:
        """Read until that is true of what has come, or to the end."""
        received = bytearray()
        async with asyncio.timeout(20):
            while not until(received) and (data := await self.loop.sock_recv(self.client, 1 << 16)):
                received += data
        return bytes(received)


def run(on: Callable[[Any], Any], test: Callable[[], Any]) -> None:
    on(test())


@on_both_loops
def test_what_is_pipelined_behind_a_large_answer_is_answered(on: Callable[[Any], Any]) -> None:
    async def test() -> None:
        async with Port() as port:
            small = infer(b"small", extra=b"X: " + b"y" * 500 + b"\r\n")
            count = 1000  # some 600 KiB
            data = infer(bytes(8 * MIB)) + small * count + infer(b"last")
            sending = asyncio.create_task(port.loop.sock_sendall(port.client, data))
            async with asyncio.timeout(20):
                while not port.routes.target.bodies:
                    await asyncio.sleep(0)
            answers = await port.read(lambda received: received.endswith(b"last"))
            await sending
            assert answers.count(b"200 OK") == count + 2

    run(on, test)


@on_both_loops
def test_what_is_pipelined_behind_a_slow_request_is_answered(on: Callable[[Any], Any]) -> None:
    async def test() -> None:
        async with Port() as port:
            port.routes.target.hold = True
            count = 3000  # some 300 KiB
            data = infer(b"slow") + infer(b"small") * count + infer(b"last")
            sending = asyncio.create_task(port.loop.sock_sendall(port.client, data))
            (connection,) = [c async for c in _first(port)]
            async with asyncio.timeout(20):
                while not connection._reading_paused:
                    await asyncio.sleep(0)
            port.routes.target.hold = False
            port.routes.target.release()
            answers = await port.read(lambda received: received.endswith(b"last"))
            await sending
            assert answers.count(b"200 OK") == count + 2

    run(on, test)


async def _first(port: Port) -> Any:
    async with asyncio.timeout(20):
        while not len(port.context.connections):
            await asyncio.sleep(0)
    for connection in port.context.connections:
        yield connection


@on_both_loops
@pytest.mark.parametrize("way", ["length", "chunked"])
def test_the_refusal_of_too_large_a_body_reaches_a_client_that_goes_on_sending(
    on: Callable[[Any], Any], way: str
) -> None:
    async def test() -> None:
        async with Port(HttpLimits(max_body_bytes=2 * MIB)) as port:
            size = 6 * MIB
            path = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\n"
            framing = b"Content-Length: %d\r\n\r\n" % size
            if way == "chunked":
                framing = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % size
            async with asyncio.timeout(20):
                await port.loop.sock_sendall(port.client, path + framing + bytes(size))
            answer = await port.read(lambda received: False)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"exceeds the maximum allowed input size" in answer
            assert b"Connection: close" in answer

    run(on, test)


@on_both_loops
def test_a_client_that_never_stops_sending_is_cut_off(on: Callable[[Any], Any]) -> None:
    async def test() -> None:
        async with Port(HttpLimits(max_body_bytes=MIB)) as port:
            head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n"
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                async with asyncio.timeout(20):
                    await port.loop.sock_sendall(port.client, head + bytes(64 * MIB))

    run(on, test)


@on_both_loops
def test_a_slow_reader_gets_its_whole_answer_when_the_server_stops(on: Callable[[Any], Any]) -> None:
    async def test() -> None:
        async with Port() as port:
            body = bytes(24 * MIB)
            await port.loop.sock_sendall(port.client, infer(body))
            async with asyncio.timeout(20):
                while not port.routes.target.bodies:
                    await asyncio.sleep(0)
            closing = asyncio.create_task(port.front.close(20))
            await asyncio.sleep(0)
            answer = await port.read(lambda received: False)
            assert len(answer.partition(b"\r\n\r\n")[2]) == len(body)
            await closing

    run(on, test)


@on_both_loops
def test_a_reader_that_reads_nothing_holds_a_stop_up_no_longer_than_it_may(on: Callable[[Any], Any]) -> None:
    async def test() -> None:
        async with Port() as port:
            await port.loop.sock_sendall(port.client, infer(bytes(24 * MIB)))
            async with asyncio.timeout(20):
                while not port.routes.target.bodies:
                    await asyncio.sleep(0)
            before_s = port.loop.time()
            await port.front.close(0.3)
            assert port.loop.time() - before_s < 2
            with pytest.raises(ConnectionResetError):
                await port.read(lambda received: len(received) >= 24 * MIB)

    run(on, test)


@on_both_loops
def test_a_body_that_is_arriving_is_answered_before_the_end(on: Callable[[Any], Any]) -> None:
    async def test() -> None:
        async with Port() as port:
            request = infer(bytes(MIB))
            await port.loop.sock_sendall(port.client, request[: MIB // 2])
            async with asyncio.timeout(20):
                while not port.context.bodies.used_bytes:
                    await asyncio.sleep(0)
            closing = asyncio.create_task(port.front.close(20))
            async with asyncio.timeout(20):
                while not port.context.connections.stopping:
                    await asyncio.sleep(0)
            await port.loop.sock_sendall(port.client, request[MIB // 2 :])
            answer = await port.read(lambda received: False)
            assert answer.startswith(b"HTTP/1.1 200 OK")
            assert b"Connection: close" in answer
            await closing

    run(on, test)


TOTAL = HttpLimits(max_body_bytes=MIB, max_total_body_bytes=2 * MIB)
HEAD = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\n"


def wires(count: int) -> list[Wire]:
    """Connections of one port."""
    made = [Wire(TOTAL) for _ in range(count)]
    for wire in made[1:]:
        wire.share(made[0])
    return made


@pytest.mark.parametrize("way", ["length", "chunked"])
def test_bodies_under_way_are_bounded_in_total(way: str) -> None:
    framing = b"Content-Length: %d\r\n\r\n" % MIB if way == "length" else b"Transfer-Encoding: chunked\r\n\r\n"
    chunk = bytes(MIB) if way == "length" else b"%x\r\n" % MIB + bytes(MIB) + b"\r\n"
    half = chunk[: MIB - 1024]

    async def test() -> None:
        first, second, third = wires(3)
        for wire in (first, second):
            assert await wire.send(HEAD + framing, half) == b""
        # One that says its length is refused for it; the other when so much has come.
        answer = await third.send(HEAD + framing, *([half] if way == "chunked" else []))
        assert answer.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 1\r\n" in answer, answer
        assert b"too many bytes of request bodies are under way" in answer
        end = b"0\r\n\r\n" if way == "chunked" else b""
        for wire in (first, second):
            assert b"200 OK" in await wire.send(chunk[MIB - 1024 :] + end)
        assert first.context.bodies.used_bytes == 0
        assert b"200 OK" in await first.send(infer(bytes(MIB)))

    asyncio.run(test())


def test_what_a_client_that_left_had_sent_counts_no_longer() -> None:
    async def test() -> None:
        (wire,) = wires(1)
        await wire.send(HEAD + b"Content-Length: %d\r\n\r\n" % MIB, bytes(MIB // 2))
        assert wire.context.bodies.used_bytes == MIB // 2
        wire.connection.connection_lost(None)
        assert wire.context.bodies.used_bytes == 0

    asyncio.run(test())


def test_answers_that_wait_for_slow_readers_are_bounded_over_all_connections() -> None:
    """Of clients that read nothing the first one goes; one that reads is served, and so are the later ones.

    The kernel takes up to 4 MiB of each answer. `writelines` of asyncio's own transport pauses nobody in Python 3.13.0.
    """

    async def test() -> None:
        async with Port(HttpLimits(max_body_bytes=16 * MIB, max_total_body_bytes=34 * MIB)) as port:
            slow = [socket.socket() for _ in range(3)]
            address = port.client.getpeername()
            for client in slow:
                client.setblocking(False)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
                await port.loop.sock_connect(client, address)
                await port.loop.sock_sendall(client, infer(bytes(16 * MIB)))
            async with asyncio.timeout(20):
                while len(port.routes.target.bodies) < 3 or len(port.context.connections) > 3:
                    await asyncio.sleep(0)
                await port.loop.sock_sendall(port.client, infer(b"small"))
                assert (await port.read(lambda received: received.endswith(b"small"))).startswith(b"HTTP/1.1 200 OK")
                sizes = [0] * 3
                for number, client in enumerate(slow):
                    with pytest.raises(ConnectionResetError) if number == 0 else contextlib.nullcontext():
                        while sizes[number] < 16 * MIB and (data := await port.loop.sock_recv(client, 1 << 16)):
                            sizes[number] += len(data)
            assert sizes[0] < 16 * MIB <= min(sizes[1:])
            for client in slow:
                client.close()

    uvloop.run(test())


def test_streams_that_wait_for_slow_readers_are_bounded_over_all_connections() -> None:
    async def test() -> None:
        streams = wires(3)
        target = streams[0].target
        target.hold = True
        event = b'{"model_name":"echo","outputs":[{"name":"out","data":["%b"]}]}' % bytes([ord("x")] * (MIB // 8))
        for wire in streams:
            await wire.send(HEAD.replace(b"infer", b"generate_stream") + b"Content-Length: 2\r\n\r\n{}")
            wire.transport.unsent_bytes = MIB // 8
            wire.connection.pause_writing()
            for _ in range(7):
                wire.transport.unsent_bytes += MIB // 8
                target.sinks[-1].on_response(None, (event,), False)
            await wire.send()
        assert [wire.transport.aborted for wire in streams] == [True, False, False]

    asyncio.run(test())
