"""The server that the cases are put to: one that is started here, or the one that `EAGLERAY_TEST_URL` names.

That one may be Triton itself, on the repository that `tests.repositories.write_everything` writes.
"""

import os
from collections.abc import Iterator

import pytest

from tests.repositories import write_broken_models, write_small_models
from tests.serving import Client, Server


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Host and port of the server's HTTP."""
    given = os.environ.get("EAGLERAY_TEST_URL")
    if given:
        yield given.removeprefix("http://").rstrip("/")
        return
    repository = write_broken_models(write_small_models(tmp_path_factory.mktemp("conformance")))
    log = tmp_path_factory.mktemp("conformance_log") / "log"
    server = Server(repository, log, "--placement", "embedded", "--num-cpus", "4", "--no-dashboard")
    try:
        yield server.wait_ready().address
        server.stop()
    finally:
        server.kill()


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address) as client:
        yield client
