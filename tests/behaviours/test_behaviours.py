"""Every folder beside this file is a behaviour of one server that serves all their models: see README.md."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.behaviours.repository import BACKENDS, load_cases, model_folders, write_repository
from tests.behaviours.script import Script
from tests.behaviours.tally import SUCCESS, Tally, assert_balanced
from tests.serving import Client, Endpoint, Server

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

CASES = load_cases()


def _marks(case: dict[str, Any]) -> list[pytest.MarkDecorator]:
    missing = [name for name in case.get("packages", ()) if find_spec(name) is None]
    marks = [pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")]
    if "xfail" in case:
        marks.append(pytest.mark.xfail(reason=case["xfail"], strict=True, raises=AssertionError))
    return marks


RUNS = [
    pytest.param(name, way, id=f"{name}-{way}", marks=_marks(case))
    for name, case in CASES.items()
    for way in case.get("over", ("http", "grpc"))
]


@dataclass
class Given(Endpoint):
    """A server that runs already, and that may be Triton itself: see README.md."""

    address: str
    grpc_address: str
    metrics_address: str
    repository: Path

    def metrics_text(self) -> str:
        with Client(self.metrics_address) as client:
            return client.get("/metrics").body.decode()

    @cached_property
    def without_backend(self) -> set[str]:
        """The models for which the server has no backend."""
        rows = self.post("/v2/repository/index", {}).json
        return {row["name"] for row in rows if "unable to find backend" in row.get("reason", "")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server | Given]:
    """A server on the models of all folders."""
    given = os.environ.get("EAGLERAY_TEST_URL")
    if given:
        others = (os.environ[f"EAGLERAY_TEST_{what}_URL"] for what in ("GRPC", "METRICS"))
        repository = Path(os.environ["EAGLERAY_TEST_REPOSITORY"]) / "models"
        yield Given(given.removeprefix("http://").rstrip("/"), *others, repository)
        return
    root = tmp_path_factory.mktemp("behaviours")
    placement = os.environ.get("PLACEMENT", "packed")
    flags = ("--placement", placement, "--num-cpus", "4", "--no-dashboard", "--cache-config", "local,size=1048576")
    flags += ("--backend-directory", str(BACKENDS))
    started = Server(write_repository(root, CASES), root / "log", *flags)
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


@pytest.fixture(scope="module")
def grpc_address(server: Server | Given) -> str:
    if isinstance(server, Given):
        return server.grpc_address
    return server.wait_for(r"gRPC\s+(\S+)")[1]


@pytest.fixture(scope="module")
def tally() -> Tally:
    tally = Tally()
    for case in CASES.values():
        for model, count in case.get("warm_up", {}).items():
            tally.add(model, SUCCESS, count)
    return tally


@pytest.mark.parametrize(("name", "way"), RUNS)
def test_behaviour(name: str, way: str, server: Server | Given, grpc_address: str, tally: Tally) -> None:
    case: dict[str, Any] = CASES[name]
    if isinstance(server, Given) and not server.without_backend.isdisjoint(model_folders(name)):
        pytest.skip("the server has no backend for its models")
    script = Script(server, grpc_address, way, name, tally)
    try:
        script.run(case["steps"])
    except BaseException:
        tally.give_up(script.models | set(model_folders(name)))
        raise


def test_every_request_is_counted_once(server: Server | Given, tally: Tally) -> None:
    if isinstance(server, Given):
        pytest.skip("only Eagleray promises that")
    assert_balanced(tally, server)
