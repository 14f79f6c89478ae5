"""A port belongs to one server from the moment on when it is looked at."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli.ports import PortTaken, require_free, require_unheard, reserve
from app.edge.listening_socket import listening_socket

HOST = "127.0.0.1"


@pytest.fixture
def port() -> Iterator[int]:
    """A free port."""
    with socket.create_server((HOST, 0)) as found:
        number = found.getsockname()[1]
    yield number


def test_two_servers_that_start_at_once_do_not_get_one_port(port: int) -> None:
    kept = reserve(HOST, port, "HTTP")
    assert kept is not None
    with kept:
        for take in (reserve, require_free):
            for host in (HOST, "0.0.0.0"):
                with pytest.raises(PortTaken, match=rf"port {port} \(HTTP\) is taken by another process"):
                    take(host, port, "HTTP")


def test_ingresses_listen_on_a_port_that_is_kept_for_them(port: int) -> None:
    kept = reserve(HOST, port, "HTTP")
    assert kept is not None
    with kept, listening_socket(HOST, port) as first, listening_socket(HOST, port) as second:
        first.listen()
        second.listen()
        first.close()
        with socket.create_connection((HOST, port), timeout=5) as client:
            second.settimeout(5)
            accepted, address = second.accept()
            accepted.close()
            assert address == client.getsockname()
        with pytest.raises(PortTaken):
            require_free(HOST, port, "HTTP")


def test_one_server_starts_where_another_has_just_ended(port: int) -> None:
    with listening_socket(HOST, port) as server:
        server.listen()
        with socket.create_connection((HOST, port), timeout=5) as client:
            accepted, _ = server.accept()
            accepted.close()  # the first to close waits (TIME_WAIT)
            assert client.recv(1) == b""
    kept = reserve(HOST, port, "HTTP")
    assert kept is not None
    with kept, listening_socket(HOST, port):
        for take in (reserve, require_free):
            with pytest.raises(PortTaken, match=rf"port {port} \(HTTP\) is taken"):
                take(HOST, port, "HTTP")


def test_a_free_port_need_not_be_kept() -> None:
    assert reserve(HOST, 0, "HTTP") is None


def test_a_unix_socket_stays_with_the_server_that_listens_on_it(tmp_path: Path) -> None:
    path = str(tmp_path / "http")
    require_unheard(path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(0)
        for _ in range(3):  # the last finds the queue full
            with pytest.raises(PortTaken, match="is taken: another server listens there"):
                require_unheard(path)
    require_unheard(path)
