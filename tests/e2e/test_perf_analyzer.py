"""NVIDIA's perf_analyzer, unmodified, measures a server of ours and has nothing to complain of.

Its path is `PERF_ANALYZER`, or else `perf_analyzer` in the folder of the benchmarks' downloads.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import PLACEMENTS
from tests.repositories import write_small_models
from tests.serving import Server, run

FOLDERS = (os.environ.get("EAGLERAY_BENCH_HOME"), "~/.cache/eagleray-benchmarks")
WINDOW = ("--measurement-interval", "1000", "--stability-percentage", "999", "--max-trials", "3")


def perf_analyzer() -> str:
    """Return the path of the binary, or skip the test."""
    candidates = [Path(folder).expanduser() / "perf_analyzer" for folder in FOLDERS if folder]
    given = os.environ.get("PERF_ANALYZER")
    for path in [Path(given)] if given else candidates:
        if os.access(path, os.X_OK):
            return str(path)
    pytest.skip("there is no perf_analyzer; PERF_ANALYZER may name it")


@pytest.fixture(scope="module", params=PLACEMENTS)
def server_for_analysis(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose clients may register shared memory."""
    perf_analyzer()
    repository = write_small_models(tmp_path_factory.mktemp("analysed"))
    flags = ("--placement", request.param, "--num-cpus", "4", "--no-dashboard", "--allow-client-shm", "true")
    server = Server(repository, tmp_path_factory.mktemp("analysed_log") / "log", *flags)
    try:
        yield server.wait_ready()
        server.stop()
    finally:
        server.kill()


MODES = {
    "http": ("-i", "http"),
    "http-async": ("-i", "http", "--async", "--concurrency-range", "4"),
    "http-request-rate": ("-i", "http", "--request-rate-range", "50"),
    "http-shared-memory": ("-i", "http", "--shared-memory", "system"),
    "grpc": ("-i", "grpc"),
    "grpc-concurrency": ("-i", "grpc", "--concurrency-range", "1:4:3"),
    "grpc-async": ("-i", "grpc", "--async", "--concurrency-range", "4"),
    "grpc-streaming": ("-i", "grpc", "--streaming", "--async", "--concurrency-range", "4"),
    "grpc-streaming-request-rate": ("-i", "grpc", "--streaming", "--async", "--request-rate-range", "50"),
    "grpc-request-rate": ("-i", "grpc", "--async", "--request-rate-range", "50"),
    "grpc-shared-memory": ("-i", "grpc", "--shared-memory", "system"),
}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_measures_without_a_warning(server_for_analysis: Server, mode: tuple[str, ...]) -> None:
    address = server_for_analysis.address if "http" in mode else server_for_analysis.wait_for(r"gRPC\s+(\S+)")[1]
    ended = run(perf_analyzer(), "-m", "simple", "-b", "1", "-u", address, *mode, *WINDOW, timeout_s=90)
    said = ended.stdout + ended.stderr
    print(said)
    assert ended.returncode == 0, said
    rates = [float(rate) for rate in re.findall(r"Throughput: ([\d.]+) infer/sec", said)]
    assert rates and all(rate > 0 for rate in rates), said
    assert not re.search(r"warning|error|fail(ed|ure)|unable", said, re.IGNORECASE), said
    assert "Server:" in said and "Inference count:" in said, said
