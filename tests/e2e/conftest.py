"""One server per placement, shared by all tests; pytest runs the tests of one placement together."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.http_case import FLAGS
from tests.hostile.watch import Watch, grpc_address
from tests.repositories import write_everything, write_examples, write_small_models
from tests.serving import Server

PLACEMENTS = ("auto", "packed", "embedded")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.ray)
            # A test may be the one that starts a server.
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples, the small models and the broken ones."""
    return write_everything(tmp_path_factory.mktemp("everything"))


@pytest.fixture(scope="session")
def example_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the examples."""
    return write_examples(tmp_path_factory.mktemp("examples"))


@pytest.fixture(scope="session", params=PLACEMENTS)
def server(
    request: pytest.FixtureRequest, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server on everything; it must stop without leaving a process behind."""
    log = tmp_path_factory.mktemp(request.param) / "log"
    flags = ("--num-cpus", "4", "--no-dashboard", "--max-batch-duration-s", "12")
    flags += ("--cache-config", "local,size=1048576", "--metrics-interval-ms", "500", "--metrics-aliases")
    for setting in ("summary_latencies=true", "histogram_latencies=true"):
        flags += ("--metrics-config", setting)
    started = Server(repository, log, "--placement", request.param, *flags)
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    """A server with small limits and short times, for what no well-meaning client sends, and good clients of it."""
    repository = write_small_models(tmp_path_factory.mktemp("hostile"))
    log = tmp_path_factory.mktemp("hostile-log") / "log"
    started = Server(repository, log, "--placement", "embedded", "--num-cpus", "4", "--no-dashboard", *FLAGS)
    try:
        started.wait_ready()
        watch = Watch(started.address, grpc_address(started.log()), [started.pid])
        yield watch
        watch.close()
        started.stop()
    finally:
        started.kill()


@pytest.fixture(scope="session", params=PLACEMENTS)
def open_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose clients may register shared memory."""
    repository = write_small_models(tmp_path_factory.mktemp("clients"))
    log = tmp_path_factory.mktemp("clients_log") / "log"
    flags = ("--placement", request.param, "--num-cpus", "4", "--no-dashboard", "--allow-client-shm", "true")
    forward = ("--http-header-forward-pattern", "^x-tenant$", "--grpc-header-forward-pattern", "^x-tenant$")
    server = Server(repository, log, *flags, *forward)
    try:
        yield server.wait_ready()
        server.stop()
    finally:
        server.kill()


isolated = pytest.mark.parametrize("server", ["auto"], indirect=True)
"""For what only shows where a Python model has a process of its own, or shows the same everywhere."""
