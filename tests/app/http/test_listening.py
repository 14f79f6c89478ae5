"""The front on real sockets: TLS, and the Unix socket."""

import asyncio
import contextlib
import os
import socket
import ssl
import stat
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from app.edge.server_tls import HTTP_1, ServerTls
from app.http.context import HttpContext
from app.http.front import HttpFront
from app.http.limits import HttpLimits
from app.http.unix_socket import UnixSocket
from tests.app.http.wire import EchoRoutes, hello, infer
from tests.certificates import Authority

ASK = infer(b"hello", extra=b"Connection: close\r\n")


def run(test: Callable[[], Awaitable[None]], on: Callable[[Any], Any]) -> None:
    on(test())


on_both_loops = pytest.mark.parametrize("on", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def front(tls: ServerTls | None = None, limits: HttpLimits | None = None) -> HttpFront:
    return HttpFront(HttpContext(hello, EchoRoutes(), limits or HttpLimits(), asyncio.get_running_loop()), tls)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(ASK)
    answer = await reader.read()
    writer.close()
    return answer


def client_context(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.certificate))


@on_both_loops
def test_serves_over_tls(tmp_path: Path, on: Callable[[Any], Any]) -> None:
    async def test() -> None:
        authority = Authority(tmp_path)
        pair = authority.issue("server")
        serving = front(ServerTls(str(pair.certificate), str(pair.key), HTTP_1))
        port = await serving.listen("127.0.0.1", 0)
        answer = await ask(*await asyncio.open_connection("localhost", port, ssl=client_context(authority)))
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"hello")
        old = client_context(authority)
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, OSError)):
            await asyncio.open_connection("localhost", port, ssl=old)
        reader, writer = await asyncio.open_connection("localhost", port)
        writer.write(ASK)
        assert b"HTTP" not in await reader.read()  # plain HTTP gets no answer
        writer.close()
        await serving.close(1)

    with pytest.warns(DeprecationWarning):
        run(test, on)


@on_both_loops
@pytest.mark.parametrize("kind", ["TCP", "Unix"])
def test_a_connection_that_waits_to_be_accepted_when_the_server_stops_is_answered(
    tmp_path: Path, kind: str, on: Callable[[Any], Any]
) -> None:
    """The kernel has told its client that it is open, and would reset it."""

    async def test() -> None:
        serving = front()
        address: Any = ("127.0.0.1", await serving.listen("127.0.0.1", 0))
        if kind == "Unix":
            address = str(tmp_path / "socket")
            await serving.listen_unix(address)
        with socket.socket(socket.AF_UNIX if kind == "Unix" else socket.AF_INET) as client:
            client.settimeout(5.0)
            client.connect(address)  # in one turn with what follows
            client.sendall(infer(b"hello"))
            await serving.close(1)
            answer = client.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"hello")

    run(test, on)


async def cut_off(version: str, unix: str = "") -> bytes:
    """Return what a client reads behind the one event of a stream that the end of the server cuts off."""
    routes = EchoRoutes()
    routes.target.hold = True
    serving = HttpFront(HttpContext(hello, routes, HttpLimits(), asyncio.get_running_loop()), None)
    if unix:
        await serving.listen_unix(unix)
        reader, writer = await asyncio.open_unix_connection(unix)
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", await serving.listen("127.0.0.1", 0))
    head = f"POST /v2/models/echo/generate_stream HTTP/{version}\r\nHost: a\r\nContent-Length: 2\r\n\r\n"
    writer.write(head.encode() + b"{}")
    async with asyncio.timeout(10):
        while not routes.target.sinks:
            await asyncio.sleep(0)
        routes.target.sinks[0].on_response(None, (b"{}",), False)
        assert (await reader.readuntil(b"data: {}\n\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        await serving.close(0)
        try:
            return await reader.read()
        finally:
            writer.close()


@on_both_loops
def test_a_stream_that_is_cut_off_ends_with_a_reset(on: Callable[[Any], Any]) -> None:
    """To a client of HTTP/1.0, nginx by its default, the end of the connection would complete it."""

    async def test() -> None:
        with pytest.raises(ConnectionResetError):
            await cut_off("1.0")

    run(test, on)


@on_both_loops
def test_a_stream_that_is_cut_off_over_a_unix_socket_has_no_last_chunk(
    tmp_path: Path, on: Callable[[Any], Any]
) -> None:
    async def test() -> None:
        assert await cut_off("1.1", str(tmp_path / "socket")) == b"\r\n"

    run(test, on)


@on_both_loops
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_client_that_comes_when_the_server_has_looked_for_the_last_time_is_left_to_another(
    monkeypatch: pytest.MonkeyPatch, on: Callable[[Any], Any]
) -> None:
    accept = socket.socket.accept

    async def test() -> None:
        serving, other = front(), front()
        address = ("127.0.0.1", await serving.listen("127.0.0.1", 0))
        with socket.socket() as client:
            client.setblocking(False)

            def accept_or_come(sock: socket.socket) -> Any:
                try:
                    return accept(sock)
                except BlockingIOError:
                    client.connect_ex(address)
                    raise

            with monkeypatch.context() as patch:
                patch.setattr(socket.socket, "accept", accept_or_come)
                await serving.close(1)
            await other.listen(*address)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(10):
                await loop.sock_sendall(client, infer(b"hello"))
                assert (await loop.sock_recv(client, 1 << 16)).startswith(b"HTTP/1.1 200 OK\r\n")
        await other.close(1)

    run(test, on)


@on_both_loops
def test_a_connection_that_is_being_accepted_when_the_server_stops_is_answered(on: Callable[[Any], Any]) -> None:
    async def test() -> None:
        serving = front()
        port = await serving.listen("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", port), 5.0) as client:
            client.sendall(infer(b"hello"))
            await asyncio.sleep(0)  # it is accepted in this turn, and made in the next
            await serving.close(5)
            answer = client.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"hello")

    run(test, on)


@on_both_loops
@pytest.mark.parametrize("still_s", [0.0, 1.5])
def test_a_client_that_shakes_hands_when_the_server_stops_is_answered(
    tmp_path: Path, still_s: float, on: Callable[[Any], Any]
) -> None:
    """Though the process stands still meanwhile."""

    def client(port: int, accepted: threading.Event) -> bytes:
        with socket.create_connection(("localhost", port), 5.0) as plain:
            accepted.set()
            time.sleep(0.3)  # as on a long way
            with client_context(authority).wrap_socket(plain, server_hostname="localhost") as sock:
                sock.sendall(ASK)
                return b"".join(iter(lambda: sock.recv(1 << 16), b""))

    authority = Authority(tmp_path)

    async def test() -> None:
        pair = authority.issue("server")
        serving = front(ServerTls(str(pair.certificate), str(pair.key), HTTP_1))
        port = await serving.listen("127.0.0.1", 0)
        accepted = threading.Event()
        answer = asyncio.create_task(asyncio.to_thread(client, port, accepted))
        await asyncio.to_thread(accepted.wait)
        await asyncio.sleep(0.1)
        asyncio.get_running_loop().call_later(0.1, time.sleep, still_s)
        await serving.close(5)
        assert (await answer).startswith(b"HTTP/1.1 200 OK\r\n")

    run(test, on)


@on_both_loops
def test_asks_clients_for_a_certificate(tmp_path: Path, on: Callable[[Any], Any]) -> None:
    async def test() -> None:
        authority, other = Authority(tmp_path), Authority(tmp_path, "other")
        pair, good, bad = authority.issue("server"), authority.issue("client"), other.issue("stranger")
        serving = front(ServerTls(str(pair.certificate), str(pair.key), HTTP_1, str(authority.certificate)))
        port = await serving.listen("127.0.0.1", 0)
        known, stranger = client_context(authority), client_context(authority)
        known.load_cert_chain(good.certificate, good.key)
        stranger.load_cert_chain(bad.certificate, bad.key)
        assert b"200 OK" in await ask(*await asyncio.open_connection("localhost", port, ssl=known))
        for context in (stranger, client_context(authority)):
            with pytest.raises((ssl.SSLError, OSError)):
                # In TLS 1.3 the refusal reaches the client when it reads.
                assert b"200 OK" not in await ask(*await asyncio.open_connection("localhost", port, ssl=context))
                raise OSError("closed without an answer")
        await serving.close(1)

    run(test, on)


@on_both_loops
def test_a_handshake_must_be_complete_in_time(tmp_path: Path, on: Callable[[Any], Any]) -> None:
    async def test() -> None:
        pair = Authority(tmp_path).issue("server")
        serving = front(ServerTls(str(pair.certificate), str(pair.key), HTTP_1), HttpLimits(header_timeout_s=0.2))
        reader, _ = await asyncio.open_connection("localhost", await serving.listen("127.0.0.1", 0))
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        await serving.close(1)

    run(test, on)


def test_a_renewed_certificate_is_taken_and_a_broken_one_is_not(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    tls = ServerTls(str(pair.certificate), str(pair.key), HTTP_1)
    assert not tls.reload_if_changed()
    authority.issue("server")
    assert tls.reload_if_changed()
    assert not tls.reload_if_changed()
    pair.key.write_text("nonsense")
    assert not tls.reload_if_changed()
    pair.key.unlink()
    assert not tls.reload_if_changed()


@on_both_loops
def test_serves_on_a_unix_socket_of_its_own(tmp_path: Path, on: Callable[[Any], Any]) -> None:
    async def test() -> None:
        path = tmp_path / "http.sock"
        serving = front()
        await serving.listen_unix(str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (await ask(*await asyncio.open_unix_connection(str(path)))).endswith(b"hello")
        await serving.close(1)
        assert not path.exists()
        assert list(tmp_path.iterdir()) == []

    run(test, on)


def test_takes_a_path_over_and_leaves_it_to_who_has_it(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    old, new = UnixSocket(path), UnixSocket(path)
    old_socket = old.bind()
    new_socket = new.bind()
    old.remove()
    assert os.path.exists(path)
    new.remove()
    assert not os.path.exists(path)
    old_socket.close()
    new_socket.close()


def test_never_replaces_what_is_no_socket(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(FileExistsError, match="is not a socket"):
        UnixSocket(str(path)).bind()
    assert path.read_text() == "data"


def test_does_not_listen_before_it_is_told_to(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    sock = UnixSocket(path).bind()
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect(path)
    sock.close()
