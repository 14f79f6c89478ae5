"""The server that the cases are put to: one that is started here, or the one that `EAGLERAY_TEST_URL` names.

That one may be Triton itself, on the repository that `tests.repositories.write_everything` writes; its gRPC is named by
`EAGLERAY_TEST_GRPC_URL`.
"""

import os
from collections.abc import Iterator

import grpc
import pytest

from tests.repositories import write_broken_models, write_small_models
from tests.serving import Client, Server


@pytest.fixture(scope="package")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Host and port of the server's HTTP and of its gRPC."""
    given = os.environ.get("EAGLERAY_TEST_URL")
    if given:
        yield given.removeprefix("http://").rstrip("/"), os.environ.get("EAGLERAY_TEST_GRPC_URL", "")
        return
    repository = write_broken_models(write_small_models(tmp_path_factory.mktemp("conformance")))
    log = tmp_path_factory.mktemp("conformance_log") / "log"
    traces = f"triton,file={log.parent}/traces.json"
    flags = ("--placement", "embedded", "--num-cpus", "4", "--no-dashboard", "--trace-config", traces)
    server = Server(repository, log, *flags)
    try:
        yield server.wait_ready().address, server.wait_for(r"gRPC\s+(\S+)")[1]
        server.stop()
    finally:
        server.kill()


@pytest.fixture(scope="package")
def address(addresses: tuple[str, str]) -> str:
    """Host and port of the server's HTTP."""
    return addresses[0]


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address) as client:
        yield client


@pytest.fixture(scope="package")
def channel(addresses: tuple[str, str]) -> Iterator[grpc.Channel]:
    """One connection to the server's gRPC, for all cases."""
    if not addresses[1]:
        pytest.skip("EAGLERAY_TEST_URL is set and EAGLERAY_TEST_GRPC_URL is not")
    with grpc.insecure_channel(addresses[1]) as channel:
        yield channel
