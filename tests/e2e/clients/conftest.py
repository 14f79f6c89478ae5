"""One server per placement, shared by all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import PLACEMENTS
from tests.repositories import write_small_models
from tests.serving import Server


@pytest.fixture(scope="package", params=PLACEMENTS)
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
