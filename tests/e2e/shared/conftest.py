"""One server per placement, shared by all tests of this folder; pytest runs the tests of one placement together."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import PLACEMENTS
from tests.repositories import write_everything
from tests.serving import Server


@pytest.fixture(scope="package")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples, the small models and the broken ones."""
    return write_everything(tmp_path_factory.mktemp("everything"))


@pytest.fixture(scope="package", params=PLACEMENTS)
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


isolated = pytest.mark.parametrize("server", ["auto"], indirect=True)
"""For what only shows where a Python model has a process of its own, or shows the same everywhere."""
