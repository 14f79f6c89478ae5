"""A cluster that is not there is told apart before Ray waits for it."""

import socket
from pathlib import Path
from typing import Any

import click
import pytest

from app.cli.cluster_address import require_listener
from app.cli.cluster_nodes import ask_each_node
from app.cli.local_ray import LocalRay, RayOptions, StartFailed


@pytest.fixture
def nobody() -> str:
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def init(**arguments: Any) -> None:
        raise AssertionError("Ray is asked")

    monkeypatch.setattr(ray, "init", init)


def test_commands_that_ask_the_nodes_say_so_at_once(nobody: str) -> None:
    with pytest.raises(click.ClickException) as raised:
        ask_each_node(nobody, str)
    assert raised.value.message == f"no Ray cluster can be joined at {nobody}: Connection refused"


def test_a_server_that_joins_a_cluster_says_so_at_once(
    nobody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StartFailed) as raised:
        LocalRay(RayOptions(address=nobody)).start()
    first = str(raised.value).splitlines()[0]
    assert first == f"no Ray cluster could be joined at {nobody}: Connection refused"


def test_auto_is_what_the_environment_says(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", nobody)
    with pytest.raises(ConnectionError):
        require_listener("auto")


@pytest.mark.parametrize("address", ["", "auto", "local", "ray://127.0.0.1:1", "127.0.0.1"])
def test_no_other_form_is_asked_for(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    require_listener(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_whoever_listens_will_do(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        require_listener(f"{host}:{server.getsockname()[1]}")
