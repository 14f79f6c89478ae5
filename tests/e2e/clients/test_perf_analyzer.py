"""NVIDIA's perf_analyzer, unmodified, measures a server of ours and has nothing to complain of.

Its path is `PERF_ANALYZER`, or else `perf_analyzer` in the folder of the benchmarks' downloads.
"""

import os
import re
from pathlib import Path

import pytest

from tests.serving import Server, run

FOLDERS = (os.environ.get("EAGLERAY_BENCH_HOME"), "~/.cache/eagleray-benchmarks")
WINDOW = ("--measurement-interval", "1000", "--stability-percentage", "999", "--max-trials", "3")


@pytest.fixture(scope="session")
def perf_analyzer() -> str:
    """The path of the binary; without one the test is skipped."""
    candidates = [Path(folder).expanduser() / "perf_analyzer" for folder in FOLDERS if folder]
    given = os.environ.get("PERF_ANALYZER")
    for path in [Path(given)] if given else candidates:
        if os.access(path, os.X_OK):
            return str(path)
    pytest.skip("there is no perf_analyzer; PERF_ANALYZER may name it")


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
def test_measures_without_a_warning(perf_analyzer: str, open_server: Server, mode: tuple[str, ...]) -> None:
    address = open_server.address if "http" in mode else open_server.wait_for(r"gRPC\s+(\S+)")[1]
    ended = run(perf_analyzer, "-m", "simple", "-b", "1", "-u", address, *mode, *WINDOW, timeout_s=90)
    said = ended.stdout + ended.stderr
    print(said)
    assert ended.returncode == 0, said
    rates = [float(rate) for rate in re.findall(r"Throughput: ([\d.]+) infer/sec", said)]
    assert rates and all(rate > 0 for rate in rates), said
    assert not re.search(r"warning|error|fail(ed|ure)|unable", said, re.IGNORECASE), said
    assert "Server:" in said and "Inference count:" in said, said
