"""The wall clock jumps by an hour, for every Python process of a server, while clients ask 200 times a second.

What waits goes on waiting, what is kept is kept, and nothing takes an hour.
"""

import json
import mmap
import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from itertools import pairwise
from pathlib import Path

import pytest

from tests.checked_load import write_doubles
from tests.e2e.test_autoscaling import CONFIG, MODEL, X
from tests.e2e.test_faults_under_traffic import BACK_S, TWO, replicas, step, total, traffic
from tests.repeating import asking
from tests.repositories import write_small_models
from tests.serving import ROOT, Client, Server, environment, tensor, wait_until

pytestmark = pytest.mark.skipif("FAULTS" not in os.environ, reason="takes minutes: make soak")

HOUR_S = 3600
NEAR_S = 60.0
LOADED = ("doubles", "lone", "busy", "clock", "packed_clock", "shared_sums", "cached", "countdown_in_thread")
FLAGS = (
    "--model-control-mode",
    "explicit",
    "--num-cpus",
    "8",
    "--no-dashboard",
    "--cache-config",
    "local,size=1048576",
)
CLOCK = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            seconds = pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy()
            time.sleep(float(seconds.max()))
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("NOW", np.full_like(seconds, time.time()))]))
        return answers
"""
CLOCK_CONFIG = """
backend: "python"
max_batch_size: 1
input { name: "SECONDS" data_type: TYPE_FP64 dims: 1 }
output { name: "NOW" data_type: TYPE_FP64 dims: 1 }
dynamic_batching { default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 600000000 } }
"""
SCALED = """
parameters { key: "eagleray.autoscaling.max_replicas" value { string_value: "2" } }
parameters { key: "eagleray.autoscaling.target_ongoing_requests" value { string_value: "4" } }
parameters { key: "eagleray.autoscaling.downscale_delay_s" value { string_value: "4" } }
"""


class WallClock:
    """How far the clock of the server's processes is ahead of the machine's."""

    def __init__(self, file: Path) -> None:
        file.write_bytes(bytes(8))
        self.environment = {"PYTHONPATH": str(ROOT / "tests/wall_clock"), "WALL_CLOCK_FILE": str(file)}
        with file.open("r+b") as opened:
            self._ahead_ns = memoryview(mmap.mmap(opened.fileno(), 8)).cast("q")

    def jump(self, seconds: int) -> None:
        self._ahead_ns[0] += seconds * 1_000_000_000

    def is_near(self, told_s: float) -> bool:
        """Whether a time of day is about the one there."""
        return abs(told_s - time.time() - self._ahead_ns[0] / 1e9) < NEAR_S


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> WallClock:
    return WallClock(tmp_path_factory.mktemp("clock") / "ahead_ns")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jumps-traces") / "traces.json"


@pytest.fixture(scope="module")
def server(clock: WallClock, traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = write_small_models(tmp_path_factory.mktemp("jumps"))
    shutil.rmtree(root / "lone")
    isolated = 'parameters { key: "eagleray.placement" value { string_value: "isolated" } }'
    write_doubles(root, "doubles", TWO)
    write_doubles(root, "lone", isolated)
    sums = (root / "sequence_sums/config.pbtxt").read_text() + isolated + TWO
    for name, config, code in (
        ("busy", CONFIG + SCALED, MODEL),
        ("clock", CLOCK_CONFIG + isolated, CLOCK),
        ("packed_clock", CLOCK_CONFIG + isolated.replace("isolated", "packed"), CLOCK),
        ("shared_sums", sums, ""),
    ):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
        if code:
            (root / name / "1/model.py").write_text(code)
    flags = [word for name in LOADED for word in ("--load-model", name)]
    for setting in (f"triton,file={traces}", "level=TIMESTAMPS", "rate=20"):
        flags += ["--trace-config", setting]
    log = tmp_path_factory.mktemp("jumps-log") / "log"
    started = Server(root, log, *FLAGS, *flags, env=environment(**clock.environment))
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


@contextmanager
def many_who_ask(server: Server, model: str) -> Iterator[set[int]]:
    """Keep eight clients of the autoscaled model busy; the set has the processes that have answered."""
    pids: set[int] = set()
    failures: list[bytes] = []

    def ask(client: Client) -> None:
        answer = client.infer(model, X)
        if answer.status == 200:
            pids.add(answer.json["outputs"][0]["data"][0])
        else:
            failures.append(answer.body)

    with asking(server, ask, count=8):
        yield pids
    assert not failures


def told_s(server: Server, model: str, seconds: float = 0.0) -> float:
    """Return the time of day in a model's process, after it has slept."""
    answer = server.infer(model, tensor("SECONDS", "FP64", [1, 1], [seconds]))
    assert answer.status == 200, answer.body
    return float(answer.json["outputs"][0]["data"][0])


def runs(server: Server) -> int:
    """Return which run of the model that caches answers, always the same while the response is kept."""
    return int(server.infer("cached", tensor("X", "INT32", [1], [7])).json["outputs"][0]["data"][0])


def countdown(server: Server, count: int) -> int:
    """Return how many responses a stream has had."""
    with Client(server.address) as client:
        answer = client.request("POST", "/v2/models/countdown_in_thread/generate_stream", {"COUNT": count})
    assert answer.status == 200, answer.body
    return answer.body.count(b"data: ")


def load_of_a_slow_model(server: Server) -> int:
    folder = server.repository / "later"
    shutil.rmtree(folder, ignore_errors=True)
    write_doubles(server.repository, "later")
    code = folder / "1/model.py"
    code.write_text(f"import time; time.sleep(3)\n{code.read_text()}")
    answer = server.post("/v2/repository/models/later/load")
    assert server.post("/v2/repository/models/later/unload").status == 200
    return answer.status


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seconds", [HOUR_S, -HOUR_S], ids=["ahead", "back"])
def test_the_wall_clock_jumps(server: Server, clock: WallClock, seconds: int) -> None:
    kept, since_s, before = runs(server), time.monotonic(), server.statistics("clock")["inference_stats"]
    sequences = range(100, 108)
    assert len(replicas(server, "busy")) == 1
    with (
        traffic(server, f"a wall clock that jumps {'ahead' if seconds > 0 else 'back'} by an hour"),
        ThreadPoolExecutor() as others,
    ):
        for number in sequences:
            assert total(step(server, "shared_sums", number, number, sequence_start=True)) == number
        with many_who_ask(server, "busy") as pids:
            # One of them runs and the others wait in the queue.
            waiting = [others.submit(told_s, server, "clock", 1.0) for _ in range(4)]
            stream = others.submit(countdown, server, 500)
            loading = others.submit(load_of_a_slow_model, server)
            wait_until(loading.running, "the load")
            clock.jump(seconds)
            assert all(clock.is_near(told_s(server, model)) for model in ("clock", "packed_clock"))
            answered = parsedate_to_datetime(server.get("/v2/health/live").headers["date"])
            assert clock.is_near(answered.timestamp())
            wait_until(lambda: len(pids) == 2, "answers of a second replica", BACK_S)
        assert all(each.result() for each in waiting)
        assert stream.result() == 500
        assert loading.result() == 200
        for number in sequences:
            assert total(step(server, "shared_sums", number, 1)) == number + 1
        assert runs(server) == kept
        after = server.statistics("clock")["inference_stats"]
        for part in ("success", "queue", "compute_infer"):
            taken_ns = after[part]["ns"] - before[part]["ns"]
            assert 0 <= taken_ns < (time.monotonic() - since_s) * 1e9 * (after["success"]["count"] + 1)
        assert clock.is_near(server.statistics("clock")["last_inference"] / 1e3)
        assert server.post("/v2/repository/models/doubles/load").status == 200
        wait_until(lambda: len(replicas(server, "busy")) == 1, "one replica again", BACK_S)
    (old,) = replicas(server, "lone")
    with traffic(server, "kill -9 of the only replica after that", "lone", may_refuse=True) as outcome:
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: set(outcome.pids) - {old}, "an answer of the new replica", BACK_S)


def test_traces_have_no_hour_in_them(server: Server, traces: Path) -> None:
    """Runs last: what was traced while the clock jumped is in the file."""
    told = wait_until(lambda: traces.exists() and json.loads(traces.read_text()), "traces")
    spans = [[each["ns"] for each in trace["timestamps"]] for trace in told if "timestamps" in trace]
    assert len(spans) > 100
    for times_ns in spans:
        assert all(earlier <= later for earlier, later in pairwise(times_ns)), times_ns
        assert times_ns[-1] - times_ns[0] < 60e9
