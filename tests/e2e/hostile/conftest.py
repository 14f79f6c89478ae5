"""A server that all tests of this folder share."""

from collections.abc import Iterator

import pytest

from tests.hostile.http_case import FLAGS
from tests.hostile.watch import Watch, grpc_address
from tests.repositories import write_small_models
from tests.serving import Server


@pytest.fixture(scope="package")
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
