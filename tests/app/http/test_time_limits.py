"""What ends a connection when nothing happens, with the clock in the test's hand."""

import asyncio
import socket
from typing import Any

import pytest
import uvloop

from app.http.connection import HttpConnection
from app.http.context import HttpContext
from app.http.front import HttpFront
from app.http.limits import HttpLimits
from tests.app.http.wire import EchoRoutes, Transport, Wire, hello, infer

LIMITS = HttpLimits(write_timeout_s=60, idle_timeout_s=600, linger_timeout_s=10, max_connections=2)


def on_loop(test: Any) -> Any:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


def test_a_client_that_takes_nothing_of_its_answer_is_given_up() -> None:
    async def run() -> None:
        wire = Wire(LIMITS)
        now_s = wire.loop.time()
        wire.transport.unsent_bytes = 1 << 20
        await wire.send(infer(bytes(2 << 20)))
        wire.connection.sweep(now_s)
        wire.connection.sweep(now_s + 60)
        assert not wire.transport.closed
        wire.connection.sweep(now_s + 61)
        assert wire.transport.aborted

    asyncio.run(run())


@on_loop
async def test_a_client_that_takes_64_kib_in_time_is_not_given_up() -> None:
    wire = Wire(LIMITS)
    now_s = wire.loop.time()
    await wire.send(infer(bytes(2 << 20)))
    for left in range(20, 0, -1):
        wire.transport.unsent_bytes = left << 16
        wire.connection.sweep(now_s)
        now_s += 59
    wire.transport.unsent_bytes = 1
    wire.connection.sweep(now_s)
    assert not wire.transport.closed
    wire.transport.unsent_bytes = 0
    for later_s in (61, 122, 183):
        wire.connection.sweep(now_s + later_s)
        assert not wire.transport.closed


@on_loop
async def test_a_client_that_takes_one_byte_at_a_time_is_given_up() -> None:
    wire = Wire(LIMITS)
    now_s = wire.loop.time()
    await wire.send(infer(bytes(2 << 20)))
    for taken in range(62):
        wire.transport.unsent_bytes = (1 << 20) - taken
        wire.connection.sweep(now_s + taken)
    assert wire.transport.aborted


@on_loop
async def test_a_last_answer_is_read_to_its_end_whatever_was_sent_behind_the_request() -> None:
    wire = Wire(LIMITS)
    now_s = wire.loop.time()
    wire.target.hold = True
    await wire.send(infer(bytes(2 << 20), extra=b"Connection: close\r\n") + infer())
    wire.target.release()
    for later_s in range(5):
        wire.transport.unsent_bytes = (5 - later_s) << 16
        wire.connection.sweep(now_s + 30 * later_s)
        assert not wire.transport.aborted
    wire.transport.unsent_bytes = 0
    wire.connection.sweep(now_s + 150)
    assert wire.transport.aborted


@on_loop
async def test_a_connection_without_a_request_is_closed_when_its_time_is_over() -> None:
    wire = Wire(LIMITS)
    now_s = wire.loop.time()
    await wire.send(infer())
    wire.connection.sweep(now_s)
    wire.connection.sweep(now_s + 599)
    await wire.send(infer())
    wire.connection.sweep(now_s + 600)
    wire.connection.sweep(now_s + 1199)
    assert not wire.transport.closed
    wire.connection.sweep(now_s + 1201)
    assert wire.transport.closed


@on_loop
async def test_after_a_standstill_what_a_client_has_sent_meanwhile_is_read_first() -> None:
    wire = Wire(HttpLimits(body_timeout_s=60))
    connections, now_s = wire.context.connections, wire.loop.time()
    request = infer(bytes(1000))
    connections.sweep(now_s)
    await wire.send(request[:-10])
    connections.sweep(now_s + 90)
    assert b" 200 " in await wire.send(request[-10:])
    await wire.send(request[:-10])
    for later_s in range(91, 200):
        connections.sweep(now_s + later_s)
    assert b" 408 " in wire.transport.written


@on_loop
async def test_a_request_that_was_on_its_way_when_the_server_began_to_stop_is_answered() -> None:
    """A proxy that keeps connections sends the next request whenever it has one, and sends a POST only once."""
    wire = Wire(LIMITS)
    await wire.send(infer())
    wire.connection.shut()
    answer = await wire.send(infer(b"late"))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"late")
    assert b"Connection: close\r\n" in answer
    assert wire.transport.closed


@on_loop
async def test_a_connection_on_which_nothing_comes_is_closed_a_second_after_the_server_began_to_stop() -> None:
    wire = Wire(LIMITS)
    now_s = wire.loop.time()
    await wire.send(infer())
    wire.connection.shut()
    wire.connection.sweep(now_s + 0.9)
    assert not wire.transport.closed
    wire.connection.sweep(now_s + 1.1)
    assert wire.transport.closed


@on_loop
async def test_a_request_under_way_may_take_longer() -> None:
    wire = Wire(LIMITS)
    wire.target.hold = True
    await wire.send(infer())
    for later_s in (0, 10_000, 20_000):
        wire.connection.sweep(wire.loop.time() + later_s)
    assert not wire.transport.closed


class Crowd:
    """Connections of one port."""

    def __init__(self, limits: HttpLimits = LIMITS) -> None:
        self.routes = EchoRoutes()
        self.context = HttpContext(hello, self.routes, limits, asyncio.get_running_loop())

    def connect(self, sent: bytes = b"") -> tuple[HttpConnection, Transport]:
        connection, transport = HttpConnection(self.context), Transport()
        connection.connection_made(transport)
        if sent:
            self.send(connection, sent)
        return connection, transport

    def send(self, connection: HttpConnection, data: bytes) -> None:
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))


@on_loop
async def test_the_connection_that_was_idle_for_longest_gives_way_to_a_new_one() -> None:
    crowd = Crowd()
    first, first_transport = crowd.connect(infer())
    second, second_transport = crowd.connect(infer())
    now_s = crowd.context.loop.time()
    crowd.context.connections.sweep(now_s)
    crowd.send(first, infer())  # so that the second one has been idle for longer
    crowd.context.connections.sweep(now_s + 1)
    _, third_transport = crowd.connect(infer())
    assert (first_transport.closed, second_transport.closed) == (False, True)
    assert b"200 OK" in third_transport.written
    second.connection_lost(None)
    assert len(crowd.context.connections) == 2


@on_loop
async def test_a_client_that_has_vanished_before_its_request_gives_way_too() -> None:
    crowd = Crowd()
    crowd.connect()
    crowd.connect()
    crowd.context.connections.sweep(crowd.context.loop.time())
    assert b"200 OK" in crowd.connect(infer())[1].written


@on_loop
async def test_none_gives_way_that_is_in_use() -> None:
    crowd = Crowd()
    connections = [crowd.connect()[0] for _ in range(2)]
    crowd.context.connections.sweep(crowd.context.loop.time())  # they are idle, and then no more
    crowd.routes.target.hold = True
    for connection, sent in zip(connections, (infer(), infer()[:-1]), strict=True):
        crowd.send(connection, sent)
    _, refused = crowd.connect(infer())
    assert refused.written.startswith(b"HTTP/1.1 503 ") and refused.closed


@on_loop
async def test_who_goes_on_sending_what_was_refused_is_left_after_10_s() -> None:
    wire = Wire(LIMITS)
    now_s = wire.loop.time()
    await wire.send(infer())
    refused = infer(bytes(1 << 20)).replace(b"Content-Length: ", b"Content-Length: 99")
    assert (await wire.send(refused, bytes(1 << 16))).startswith(b"HTTP/1.1 400 ")
    wire.connection.sweep(now_s + 9)
    assert not wire.transport.aborted
    wire.connection.sweep(now_s + 11)
    assert wire.transport.aborted


@pytest.mark.parametrize("on", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_the_kernel_finds_out_which_clients_have_vanished(on: Any) -> None:
    async def run() -> None:
        context = HttpContext(hello, EchoRoutes(), HttpLimits(), asyncio.get_running_loop())
        front = HttpFront(context)
        port = await front.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(infer())
        await reader.readuntil(b"{}")
        (connection,) = context.connections
        accepted = connection._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert [
            accepted.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPCNT, socket.TCP_KEEPINTVL)
        ] == [60, 4, 15]
        writer.close()
        await front.close(1)

    on(run())
