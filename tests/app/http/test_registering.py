"""Registering a repository over HTTP: what reaches the controller, and what never does."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from click.testing import CliRunner

from app.cli.main import main
from app.edge.restricted_api import MODEL_REPOSITORY
from app.edge.scope import scope_of
from app.service.model_control import ExplicitControl, NoModelControl
from tests.app.http.served import Served

REGISTERED = {"/srv": {}, "s3://bucket/path": {"folder": "model"}}
LISTED = [{"repository": path, "names": names} for path, names in REGISTERED.items()]


class Controller(NoModelControl):
    """Registers everything."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def register_repository(self, repository: str, names: Mapping[str, str]) -> None:
        self.asked.append(("register", repository, dict(names)))

    async def unregister_repository(self, repository: str) -> None:
        self.asked.append(("unregister", repository))

    async def registered_repositories(self) -> Mapping[str, Mapping[str, str]]:
        return REGISTERED


def send(verb: str, body: object) -> tuple[int, list[tuple[Any, ...]]]:
    """Return the status, and what the controller was asked for."""
    controller = Controller()

    async def test() -> int:
        served = Served(control=ExplicitControl(controller))
        answer = await served.request("POST", f"/v2/repository/{verb}", json.dumps(body).encode())
        return answer.status

    return asyncio.run(test()), controller.asked


def test_what_is_given_reaches_the_controller() -> None:
    assert send("register", {"repository": "/srv"}) == (200, [("register", "/srv", {})])
    given = {"repository": "s3://bucket/path", "names": {"folder": "model"}}
    assert send("register", given) == (200, [("register", "s3://bucket/path", {"folder": "model"})])
    assert send("unregister", {"repository": "/srv"}) == (200, [("unregister", "/srv")])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"repository": 1},
        {"repository": ""},
        {"repository": "models"},
        {"repository": "../models"},
        {"repository": "/srv\0"},
        {"repository": "/srv", "names": []},
        {"repository": "/srv", "names": {"folder": 1}},
        {"repository": "/srv", "names": {"../folder": "model"}},
        {"repository": "/srv", "names": {"folder": "a/b"}},
        {"repository": "/srv", "names": {"folder": ""}},
    ],
    ids=json.dumps,
)
def test_what_makes_no_sense_does_not(body: object) -> None:
    status, asked = send("register", body)
    assert 400 <= status <= 500
    assert asked == []


def test_the_repositories_are_listed_for_those_who_manage() -> None:
    async def test() -> None:
        answer = await Served(control=ExplicitControl(Controller())).request("GET", "/v2/repository/registered")
        assert (answer.status, answer.json) == (200, LISTED)
        answer = await Served().request("GET", "/v2/repository/registered")
        assert (answer.status, answer.error) == (
            501,
            "repositories are not registered if model control mode is not EXPLICIT",
        )

    asyncio.run(test())
    assert scope_of(MODEL_REPOSITORY, "registered") == scope_of(MODEL_REPOSITORY, "register") == "manage"


@pytest.mark.parametrize("verb", ["register", "unregister"])
def test_only_a_server_in_explicit_mode_registers(verb: str) -> None:
    async def test() -> None:
        answer = await Served().request("POST", f"/v2/repository/{verb}", b'{"repository": "/srv"}')
        what = verb.replace("ster", "stration")
        error = f"repository {what} is not allowed if model control mode is not EXPLICIT"
        assert (answer.status, answer.error) == (501, error)

    asyncio.run(test())


@pytest.fixture
def told() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Yield the address of a server that takes everything, and what it was sent."""
    sent: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/v2/repository/registered"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(LISTED).encode())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sent.append((self.path, json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", sent
        server.shutdown()
        thread.join()


def test_the_command_sends_an_absolute_path_or_an_address(
    told: tuple[str, list[tuple[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, sent = told
    monkeypatch.chdir("/")
    for arguments in (["register", "srv/more", "--name", "folder=model"], ["unregister", "s3://bucket/path"]):
        result = CliRunner().invoke(main, ["repository", *arguments, "--url", url])
        assert result.exit_code == 0, result.output
    assert sent == [
        ("/v2/repository/register", {"repository": "/srv/more", "names": {"folder": "model"}}),
        ("/v2/repository/unregister", {"repository": "s3://bucket/path"}),
    ]
    for wrong, text in (
        (["register", "/srv", "--name", "model"], "--name model: write FOLDER=NAME"),
        (["register", "/srv", "--name", "a="], "--name a=: write FOLDER=NAME"),
        (["register", "/srv", "--name", "a=x", "--name", "a=y"], "--name a=y: folder 'a' has a name already"),
        (["register", ""], "PATH is empty"),
        (["unregister", ""], "PATH is empty"),
    ):
        result = CliRunner().invoke(main, ["repository", *wrong, "--url", url])
        assert (result.exit_code, f"Error: {text}\n" in result.output) == (2, True), result.output
    assert len(sent) == 2


def test_the_command_lists_the_repositories(told: tuple[str, list[tuple[str, Any]]]) -> None:
    url, _ = told
    result = CliRunner().invoke(main, ["repository", "list", "--url", url])
    assert (result.exit_code, result.output) == (0, "/srv\ns3://bucket/path  folder=model\n")
    result = CliRunner().invoke(main, ["repository", "list", "--url", url, "--json"])
    assert json.loads(result.output) == LISTED
