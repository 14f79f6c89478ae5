"""One server in explicit mode, shared by all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http as http_client

from tests.checked_load import write_doubles
from tests.e2e.tagged_models import WHEN_LOADED, write_tagged
from tests.repositories import write_examples, write_small_models
from tests.serving import Server

FLAGS = ("--model-control-mode", "explicit", "--num-cpus", "4", "--no-dashboard", "--cache-config", "local,size=65536")


@pytest.fixture(scope="package")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_small_models(write_examples(tmp_path_factory.mktemp("controlled")))
    write_doubles(root, "doubles")
    write_tagged(root, "remembered", WHEN_LOADED, config="response_cache { enable: true }")
    return root


@pytest.fixture(scope="package")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("controlled-log") / "log"
    chosen = [word for pattern in ("hal*", "flags", "doubles") for word in ("--load-model", pattern)]
    started = Server(repository, log, *FLAGS, *chosen)
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


@pytest.fixture
def triton(server: Server) -> Iterator[http_client.InferenceServerClient]:
    with http_client.InferenceServerClient(server.address, network_timeout=60, connection_timeout=60) as client:
        yield client
