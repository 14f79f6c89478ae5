"""What listeners need and is not there is a fault of the command line, said before anything starts."""

import errno
import os
import re
import socket
from pathlib import Path
from unittest.mock import patch

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import serialization

from app.cli.main import main
from app.cli.ports import PortTaken, require_free
from app.edge.server_tls import HTTP_1, ServerTls
from app.http.unix_socket import UnixSocket
from tests.certificates import Authority


def serve(folder: Path, *flags: str) -> Result:
    with patch.dict(os.environ):  # in which it sets variables of Ray's
        return CliRunner().invoke(main, ["serve", "--model-repository", str(folder), *flags])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_certificate_that_is_not_there_is_refused_by_its_name(tmp_path: Path, protocol: str) -> None:
    there, none = str(Authority(tmp_path).issue("server").key), str(tmp_path / "none.pem")
    flags = {"server-cert": none, "server-key": there, "use-ssl": "true"}
    done = serve(tmp_path, *(f"--{protocol}-{name}={value}" for name, value in flags.items()))
    assert (done.exit_code, f"--{protocol}-use-ssl: [Errno 2] No such file or directory: '{none}'" in done.output) == (
        2,
        True,
    ), done.output


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    flags = {"server-cert": one.certificate, "server-key": other.key, "use-ssl": "true"}
    done = serve(tmp_path, *(f"--http-{name}={value}" for name, value in flags.items()))
    assert done.exit_code == 2
    expected = f"--http-use-ssl: {one.certificate} and {other.key} are not a certificate and its unencrypted key: "
    assert expected in done.output


def test_a_key_with_a_password_is_refused_and_nobody_asked_for_it(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("server")
    encrypted = serialization.load_pem_private_key(pair.key.read_bytes(), None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    pair.key.write_bytes(encrypted)
    with pytest.raises(OSError, match=r"are not a certificate and its unencrypted key"):
        ServerTls(str(pair.certificate), str(pair.key), HTTP_1)


def test_certificates_of_clients_that_are_none_are_named(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("server")
    (tmp_path / "roots").write_text("none")
    with pytest.raises(OSError, match=rf"^{re.escape(str(tmp_path))}/roots holds no certificates: "):
        ServerTls(str(pair.certificate), str(pair.key), HTTP_1, str(tmp_path / "roots"))


def test_a_unix_socket_that_cannot_be_is_refused(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "none" / "socket", f"No such file or directory: '{tmp_path / 'none'}'"),
        (tmp_path / ("x" * 100), "is too long for a Unix socket, which may have 99 here"),
        (tmp_path, "is there already, and is not a socket"),
    ):
        done = serve(tmp_path, f"--http-unix-socket={path}")
        assert (done.exit_code, reason in done.output) == (2, True), done.output


def test_a_unix_socket_where_this_user_may_write_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shut := tmp_path / "shut").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(shut))
    done = serve(tmp_path, f"--http-unix-socket={shut}/socket")
    assert (done.exit_code, f"Permission denied: '{shut}'" in done.output) == (2, True), done.output


def test_the_longest_path_that_is_taken_can_be_bound() -> None:
    path = f"/tmp/{'x' * 94}"
    UnixSocket(path).check()
    unix = UnixSocket(path)
    with unix.bind():
        unix.remove()


@pytest.mark.parametrize(
    ("host", "reason"),
    [("203.0.113.9", "Cannot assign requested address"), ("no.such.host.invalid", ""), ("::g", "")],
)
def test_an_address_that_is_none_of_this_machine_is_not_taken_by_somebody(host: str, reason: str) -> None:
    with pytest.raises(PortTaken, match=rf"port 8000 \(HTTP\) of {host} cannot be listened on: {reason}"):
        require_free(host, 8000, "HTTP")


def test_a_port_that_this_user_may_not_have_is_not_taken_by_somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(sock: socket.socket, address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(PortTaken, match="cannot be listened on: Permission denied"):
        require_free("127.0.0.1", 80, "HTTP")
