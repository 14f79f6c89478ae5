"""How the commands ask a server: over which connections, and with which headers."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from app.cli.client import remote_server
from app.cli.client.remote_server import RemoteServer, quoted, server_options
from app.cli.main import main
from app.edge.server_tls import HTTP_1, ServerTls
from deployments.control import answer
from tests.certificates import Authority


class Counting:
    """What came: paths by connection, and the headers of the last request."""

    def __init__(self) -> None:
        self.connections: list[list[str]] = []
        self.headers: dict[str, str] = {}
        self.closes_after = 1 << 30
        self.hangs = threading.Event()
        self.goes_on = threading.Event()


@contextmanager
def counting() -> Iterator[tuple[str, Counting]]:
    seen = Counting()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            self.asked: list[str] = []
            seen.connections.append(self.asked)

        def do_GET(self) -> None:
            self.asked.append(f"{self.command} {self.path}")
            seen.headers = {name.lower(): value for name, value in self.headers.items()}
            if seen.hangs.is_set():
                seen.goes_on.wait(30)
            inputs = [{"name": "A", "datatype": "FP32", "shape": [1]}]
            body = json.dumps({"path": self.path, "inputs": inputs}).encode()
            self.send_response(302 if self.path == "/moved" else 200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Location", "https://elsewhere/")
            self.end_headers()
            self.wfile.write(body)
            # Without saying so, as a server does that closes what is idle.
            self.close_connection = len(self.asked) >= seen.closes_after

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            seen.goes_on.set()
            server.shutdown()
            thread.join()


def test_what_is_asked_again_and_again_goes_over_one_connection() -> None:
    with counting() as (url, seen):
        server = RemoteServer(url)
        assert [server.get(f"/{number}")["path"] for number in range(3)] == ["/0", "/1", "/2"]
        assert seen.connections == [["GET /0", "GET /1", "GET /2"]]
        server.close()


def test_a_connection_that_the_server_has_closed_is_made_anew() -> None:
    with counting() as (url, seen):
        seen.closes_after = 1
        server = RemoteServer(url)
        assert [server.get(f"/{number}")["path"] for number in range(3)] == ["/0", "/1", "/2"]
        assert seen.connections == [["GET /0"], ["GET /1"], ["GET /2"]]


def test_what_changes_something_is_never_sent_twice() -> None:
    with counting() as (url, seen):
        server = RemoteServer(url)
        server.get("/0")
        server.post("/load", {})
        assert seen.connections == [["GET /0"], ["POST /load"]]
        server.close()


def test_a_server_that_hangs_is_an_error_and_its_late_answer_nobodys() -> None:
    with counting() as (url, seen):
        server = RemoteServer(url)
        server.get("/0")
        seen.hangs.set()
        with pytest.raises(click.ClickException, match=r"no server can be reached at .*: timed out"):
            server.get("/late", timeout_s=0.05)
        seen.hangs.clear()
        seen.goes_on.set()
        assert server.get("/2")["path"] == "/2"
        server.close()


def test_a_load_may_take_as_long_as_the_server_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with counting() as (url, seen):
        server = RemoteServer(url)
        server.get("/0")
        seen.hangs.set()
        assert remote_server._CONTROL_TIMEOUT_S > answer.GIVE_UP_S
        monkeypatch.setattr(remote_server, "_CONTROL_TIMEOUT_S", 0.05)
        with pytest.raises(click.ClickException, match="timed out"):
            server.control("/load", {})
        seen.goes_on.set()
        server.close()


def test_an_answer_from_elsewhere_is_told() -> None:
    with counting() as (url, _), pytest.raises(click.ClickException, match=r"is at https://elsewhere/ \(302\)"):
        RemoteServer(url).get("/moved")


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://127.0.0.1:port"])
def test_a_url_that_is_none_is_one_sentence(url: str) -> None:
    with pytest.raises(click.ClickException, match="no server can be reached at"):
        RemoteServer(url).get("/")


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("")
    for name in ("absent.pem", "none.pem"):
        done = CliRunner().invoke(main, ["status", "--url", "https://127.0.0.1:1", "--ca-file", str(tmp_path / name)])
        assert (done.exit_code, f"Error: --ca-file {tmp_path / name}: " in done.output) == (2, True), done.output
        assert "None" not in done.output


def test_copies_are_not_begun_and_ended_in_one_command() -> None:
    with counting() as (url, seen):
        done = CliRunner().invoke(main, ["traffic", "m", "--shadow", "1=10", "--no-shadow", "--url", url])
    assert (done.exit_code, "--shadow does not go with --no-shadow" in done.output) == (2, True), done.output
    assert not seen.connections


COMMANDS = [
    "status",
    "load x",
    "reload x",
    "traffic x",
    "traffic x 1=1",
    "infer x",
    "logs x",
    "doctor",
    "repository list",
]


@contextmanager
def something_else(status: int, body: bytes) -> Iterator[str]:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("body", [b"{}", b"[]", b"null", b'"x"', b"", b"<html>"], ids=repr)
def test_a_server_of_something_else_is_one_sentence(body: bytes) -> None:
    with something_else(200, body) as url:
        for command in [*(f"{each} --url {url}" for each in COMMANDS), f"top --once {url}"]:
            done = CliRunner().invoke(main, command.split())
            # An empty index is one; the model is not in it.
            if body != b"[]" or command.startswith(("status", "traffic", "infer", "logs", "doctor", "top")):
                assert (done.exit_code, len(done.output.splitlines())) == (1, 1), (command, done.output)
                assert done.output.endswith("is it Eagleray's?\n"), (command, done.output)


def test_a_server_of_something_else_that_has_no_such_page_is_named() -> None:
    with something_else(404, b"<html>") as url:
        for command in [*(f"{each} --url {url}" for each in COMMANDS), f"top --once {url}"]:
            done = CliRunner().invoke(main, command.split())
            assert (done.exit_code, done.output) == (1, f"Error: {url} answers Not Found (404): is it Eagleray's?\n")


def test_who_has_no_key_is_told_how_to_give_one() -> None:
    with something_else(401, b'{"error": "this server expects an API key"}') as url:
        done = CliRunner().invoke(main, ["status", "--url", url])
    told = "this server expects an API key (401); --api-key or EAGLERAY_CLIENT_KEY gives one"
    assert (done.exit_code, done.output) == (1, f"Error: {told}\n")


@pytest.mark.parametrize(
    ("sentence", "hint"),
    [
        ("the API key is not good for 'manage'", "--api-key or EAGLERAY_CLIENT_KEY gives another"),
        ("This API is restricted, expecting header 'admin'", "--header NAME=VALUE or EAGLERAY_CLIENT_HEADERS gives it"),
    ],
)
def test_who_may_not_do_it_is_told_which_option_lets_it(sentence: str, hint: str) -> None:
    with something_else(403, json.dumps({"error": sentence}).encode()) as url:
        done = CliRunner().invoke(main, ["status", "--url", url])
    assert (done.exit_code, f"{sentence} (403); {hint}" in done.output) == (1, True), done.output


@contextmanager
def over_tls(folder: Path, connections: int) -> Iterator[int]:
    """What ends a connection that does not begin with a handshake."""
    pair = Authority(folder).issue("server")
    context = ServerTls(str(pair.certificate), str(pair.key), HTTP_1).context
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(connections):
                connection, _ = listener.accept()
                with connection, suppress(OSError), context.wrap_socket(connection, server_side=True):
                    pass

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def test_a_server_with_tls_that_is_asked_without_is_told(tmp_path: Path) -> None:
    with over_tls(tmp_path, 2) as port:
        done = CliRunner().invoke(main, ["status", "--url", f"http://127.0.0.1:{port}"])
    told = f"what listens at http://127.0.0.1:{port} speaks TLS: give an https:// URL"
    assert (done.exit_code, done.output) == (1, f"Error: {told}\n")


def test_a_certificate_that_nobody_knows_is_told_with_the_flag(tmp_path: Path) -> None:
    with over_tls(tmp_path, 1) as port:
        done = CliRunner().invoke(main, ["status", "--url", f"https://127.0.0.1:{port}"])
    assert (done.exit_code, "; --ca-file names the root of a certificate of your own\n" in done.output) == (1, True)


def test_a_server_without_tls_that_is_asked_with_it_is_told() -> None:
    with something_else(200, b"{}") as url:
        done = CliRunner().invoke(main, ["status", "--url", url.replace("http", "https")])
    assert (done.exit_code, "does not speak TLS: give an http:// URL\n" in done.output) == (1, True), done.output


@pytest.mark.parametrize("command", ["load", "unload"])
def test_who_may_not_load_is_told_which_mode_lets_it(command: str) -> None:
    triton = "explicit model load / unload is not allowed if polling is enabled"
    with something_else(503, f'{{"error": "{triton}"}}'.encode()) as url:
        done = CliRunner().invoke(main, [command, "m", "--url", url])
    told = f"{triton} (503); start the server with --model-control-mode explicit"
    assert (done.exit_code, done.output) == (1, f"Error: {told}\n")


@pytest.mark.parametrize("command", ["load", "unload"])
def test_who_waits_no_longer_is_told_that_the_server_goes_on(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RemoteServer, "control", interrupted)
    done = CliRunner().invoke(main, [command, "m"])
    assert (done.exit_code, f"the server still {command}s 'm'" in done.output) == (1, True), done.output


@pytest.mark.parametrize("command", ["top --once", "logs m"])
def test_who_reads_what_a_closed_console_would_show_is_told_so(command: str) -> None:
    with something_else(404, b'{"error": "Not Found"}') as url:
        done = CliRunner().invoke(main, [*command.split(), "--url", url])
    told = "Not Found (404); the server's console, which this reads, is closed (--console=false)"
    assert (done.exit_code, done.output) == (1, f"Error: {told}\n")


@pytest.mark.parametrize("given", [["--input", "1"], ["--input", "X=1"]])
def test_a_model_without_inputs_is_said_to_have_none(given: list[str]) -> None:
    with something_else(200, b'{"inputs": []}') as url:
        done = CliRunner().invoke(main, ["infer", "m", *given, "--url", url])
    assert (done.exit_code, "Error: model 'm' has no inputs\n" in done.output) == (2, True), done.output


def test_a_file_for_an_input_that_the_only_one_is_not_called_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "seven.png").write_bytes(b"")
    with something_else(200, b'{"inputs": [{"name": "IMAGE", "datatype": "BYTES", "shape": [1]}]}') as url:
        done = CliRunner().invoke(main, ["infer", "m", "--input", f"IMGE=@{tmp_path}/seven.png", "--url", url])
    assert (done.exit_code, "Error: model 'm' has no input 'IMGE'; it has IMAGE\n" in done.output) == (2, True)


@pytest.mark.parametrize(("variable", "coloured"), [("", True), ("1", False)])
def test_doctor_has_no_colours_where_the_environment_asks_for_none(variable: str, coloured: bool) -> None:
    with something_else(200, b'{"findings": [{"level": "ok", "check": "c", "text": "t"}]}') as url:
        done = CliRunner(env={"NO_COLOR": variable}).invoke(main, ["doctor", "--url", url], color=True)
    assert (done.exit_code, "\x1b[" in done.output) == (0, coloured), done.output


def test_where_no_server_runs_it_says_what_to_do() -> None:
    done = CliRunner().invoke(main, ["status", "--url", "http://127.0.0.1:1"])
    told = "nothing listens there; `eagleray serve` starts one, and --url says where another is"
    assert done.output == f"Error: no server can be reached at http://127.0.0.1:1: {told}\n"


def test_the_help_names_the_variables_and_the_default() -> None:
    text = " ".join(CliRunner().invoke(main, ["status", "--help"]).output.split())
    assert "[env var: EAGLERAY_CLIENT_URL; default: http://127.0.0.1:8000]" in text
    assert "[env var: EAGLERAY_CLIENT_KEY]" in text and "[env var: EAGLERAY_CLIENT_HEADERS]" in text


def test_the_help_says_what_a_key_is_good_for_unless_it_is_told() -> None:
    assert "[default: infer]" in " ".join(CliRunner().invoke(main, ["new-api-key", "--help"]).output.split())


def test_a_port_that_does_not_speak_http_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"\0\0\x18\4no status line\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(click.ClickException, match=f"what listens at http://{address} does not answer in HTTP/1.1"):
            RemoteServer(address).get("/")
        thread.join()


@click.command()
@server_options
def ask(server: RemoteServer, as_json: bool) -> None:
    server.get("/")
    server.close()


def test_headers_of_a_restricted_api_are_sent_with_every_request() -> None:
    with counting() as (url, seen):
        flags = ["--url", url, "--api-key", "k", "--header", "admin-key=a=b", "--header", "tenant=t"]
        assert CliRunner().invoke(ask, flags).exit_code == 0
        wanted = {"admin-key": "a=b", "tenant": "t", "authorization": "Bearer k"}
        assert seen.headers.items() >= wanted.items()
        env = {"EAGLERAY_CLIENT_HEADERS": "admin-key=from-there"}
        assert CliRunner().invoke(ask, ["--url", url], env=env).exit_code == 0
        assert seen.headers["admin-key"] == "from-there"
        done = CliRunner().invoke(ask, ["--url", url, "--header", "secret"])
        assert done.exit_code == 2 and "NAME=VALUE" in done.output and "secret" not in done.output


def test_no_secret_is_printed_that_cannot_be_sent() -> None:
    with counting() as (url, seen):
        assert CliRunner().invoke(ask, ["--url", url], env={"EAGLERAY_CLIENT_KEY": "secret\r\n"}).exit_code == 0
        assert seen.headers["authorization"] == "Bearer secret"
        for wrong in (
            ["--api-key", "sec ret"],
            ["--api-key", "sec\nret"],
            ["--api-key", "secr\xe9t"],
            ["--header", "tenant=sec\nret"],
            ["--header", "tenant=secret\u540d"],
        ):
            done = CliRunner().invoke(ask, ["--url", url, *wrong])
            assert (done.exit_code, f"Error: {wrong[0]}: " in done.output) == (2, True), done.output
            assert "sec" not in done.output


def test_a_configuration_may_begin_with_a_mark_of_its_encoding(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_bytes(b'\xef\xbb\xbf{"max_batch_size": 4}')
    sent: list[Any] = []

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Taking) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        done = CliRunner().invoke(main, ["load", "m", "--config", str(config), "--url", url])
        server.shutdown()
        thread.join()
    assert done.exit_code == 0, done.output
    assert sent[0] == {"parameters": {"config": '{"max_batch_size": 4}'}}


def test_what_is_no_text_is_one_sentence_or_bytes_in_a_path(tmp_path: Path) -> None:
    assert quoted("a/é\udcff") == "a%2F%C3%A9%FF"
    config = tmp_path / "config"
    config.write_bytes(b"\xff")
    done = CliRunner().invoke(main, ["load", "m", "--config", str(config)])
    assert done.exit_code == 2 and "--config: 'utf-8' codec can't decode byte 0xff" in done.output


@pytest.mark.parametrize("second", ["A=2", "2"])
def test_an_input_that_is_given_twice_is_refused(second: str) -> None:
    with counting() as (url, _):
        done = CliRunner().invoke(main, ["infer", "m", "--input", "A=1", "--input", second, "--url", url])
    assert (done.exit_code, "input 'A' is given twice" in done.output) == (2, True), done.output
