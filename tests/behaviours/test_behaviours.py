"""Every folder beside this file is a behaviour of one server that serves all their models: see README.md."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.behaviours.repository import BACKENDS, load_cases, model_folders, write_repository
from tests.behaviours.script import Script
from tests.behaviours.tally import SUCCESS, Tally, assert_balanced
from tests.serving import Server

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

CASES = load_cases()
RUNS = [
    pytest.param(
        name,
        way,
        id=f"{name}-{way}",
        marks=[pytest.mark.xfail(reason=case["xfail"], strict=True, raises=AssertionError)] if "xfail" in case else [],
    )
    for name, case in CASES.items()
    for way in case.get("over", ("http", "grpc"))
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the models of all folders."""
    root = tmp_path_factory.mktemp("behaviours")
    (root / "models").mkdir()
    (root / "gates").mkdir()
    placement = os.environ.get("PLACEMENT", "packed")
    flags = ("--placement", placement, "--num-cpus", "4", "--no-dashboard", "--cache-config", "local,size=1048576")
    flags += ("--backend-directory", str(BACKENDS))
    started = Server(write_repository(root / "models", CASES), root / "log", *flags)
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


@pytest.fixture(scope="module")
def grpc_address(server: Server) -> str:
    return server.wait_for(r"gRPC\s+(\S+)")[1]


@pytest.fixture(scope="module")
def tally() -> Tally:
    tally = Tally()
    for case in CASES.values():
        for model, count in case.get("warm_up", {}).items():
            tally.add(model, SUCCESS, count)
    return tally


@pytest.mark.parametrize(("name", "way"), RUNS)
def test_behaviour(name: str, way: str, server: Server, grpc_address: str, tally: Tally) -> None:
    case: dict[str, Any] = CASES[name]
    script = Script(server, grpc_address, way, name, tally)
    try:
        script.run(case["steps"])
    except BaseException:
        tally.give_up(script.models | set(model_folders(name)))
        raise


def test_every_request_is_counted_once(server: Server, tally: Tally) -> None:
    assert_balanced(tally, server)
