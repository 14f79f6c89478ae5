"""Load on a server, after a check that it answers right.

By wrk (HTTP) or h2load: gRPC, both protocols at a fixed rate, and models that compute for long.
"""

import json
import os
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.awake import AWAKE_MARK
from benchmarks.body import (
    Body,
    example,
    expected,
    grpc_body,
    grpc_shared_body,
    http_body,
    http_shared_body,
    output_size,
)
from benchmarks.measure import CpuMeter, memory_mb
from benchmarks.models import TENSORS, Tensors
from benchmarks.peers import Peer
from benchmarks.rows import Work
from benchmarks.shared_region import registered

LUA = Path(__file__).with_name("post.lua")
PROTOCOLS = ("http", "grpc")
EDGE_S = 0.3
"""The CPU meter leaves out so much at both ends of a run."""

SETTLE_S = 1.0
"""What the warm-up leaves behind of a model that computes for long, a batch, is over after so much."""


class LoadError(Exception):
    """A server did not answer as it must; the message says what came instead."""


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement. Latencies are those that the client saw; of ONNX Runtime alone only the rate is known."""

    throughput: float
    """Requests per second."""
    p50_us: float
    p99_us: float
    errors: int
    server_cpu_us: float
    """CPU time of all the server's processes for one request."""
    stray_cores: float
    memory_mb: float
    inferences_per_execution: float | None
    """Requests in one execution of the model, on average; None if the server's statistics do not tell."""


def load_generator(work: Work) -> str:
    """Return the program that makes the load."""
    return "wrk" if work.protocol == "http" and not work.rate_rps and not work.least_s else "h2load"


@dataclass(frozen=True, slots=True)
class Right:
    """The right answer to the example, and how far from it each element may be."""

    answer: NDArray[np.generic]
    tolerance: float = 1e-4


def check_answer(peer: Peer, model: str, body: Body, right: Right, answer_file: Path | None) -> None:
    """Raise LoadError unless the server answers the example right: a fast wrong answer is no result.

    `answer_file` is the shared memory that the answer goes to, None when it comes in the body.
    """
    request = urllib.request.Request(peer.http_url + body.path, body.file.read_bytes(), body.headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            header_length = response.headers.get("Inference-Header-Content-Length")
            answer = response.read()
    except urllib.error.HTTPError as error:
        raise LoadError(f"{peer.name} answered {model} with {error.code}: {error.read(300)!r}") from error
    except OSError as error:
        raise LoadError(f"{peer.name} did not answer {model}: {error}") from error
    if answer_file is not None:
        tail = answer_file.read_bytes()
    elif header_length is None:
        raise LoadError(f"{peer.name} answered {model} without the binary tensor that was asked for")
    else:
        tail = answer[int(header_length) :]
    answered = np.frombuffer(tail, "<f4") if len(tail) == right.answer.nbytes else None
    if answered is None or not np.allclose(answered, right.answer.ravel(), atol=right.tolerance):
        raise LoadError(f"{peer.name} answered {model} wrong")


def run(peer: Peer, work: Work, duration_s: float, models: Path, bodies: Path) -> Run:
    """Check one answer, warm the server up, then measure it for `duration_s` seconds."""
    return run_checked(peer, work, duration_s, TENSORS[work.model], Right(expected(work.model, models)), bodies)


def run_checked(peer: Peer, work: Work, duration_s: float, tensors: Tensors, right: Right, bodies: Path) -> Run:
    """Do the same with a model that is none of the benchmarks' own repository."""
    bodies.mkdir(parents=True, exist_ok=True)
    model = work.model
    if not work.shared_memory:
        http = http_body(model, bodies, tensors)
        check_answer(peer, model, http, right, None)
        return measure(peer, work, http, grpc_body(model, bodies, tensors), duration_s)
    http = http_shared_body(model, bodies, tensors)
    with registered(peer.http_url, example(tensors), output_size(tensors)) as answer_file:
        check_answer(peer, model, http, right, answer_file)
        return measure(peer, work, http, grpc_shared_body(model, bodies, tensors), duration_s)


def load_on(peer: Peer, work: Work, http: Body, grpc: Body) -> "Wrk | H2Load":
    """Return what makes the load."""
    if load_generator(work) == "wrk":
        return Wrk(peer.http_url, http, work)
    if work.protocol == "http":
        return H2Load(peer.http_url, http, work, http1=True)
    return H2Load(peer.grpc_url, grpc, work)


def measure(peer: Peer, work: Work, http: Body, grpc: Body, duration_s: float) -> Run:
    load = load_on(peer, work, http, grpc)
    with load.start(min(duration_s, 1.5)) as warm_up:
        warm_up.communicate()
    if work.least_s:
        time.sleep(SETTLE_S)
    counts_before = execution_counts(peer, work.model)
    with load.start(duration_s) as process:
        time.sleep(EDGE_S)
        meter = CpuMeter(peer.mark, process.pid, AWAKE_MARK)
        time.sleep(duration_s - 2 * EDGE_S)
        cpu = meter.stop()
        output, _ = process.communicate()
    counts_after = execution_counts(peer, work.model)
    result = load.read(output)
    return Run(
        throughput=result.throughput,
        p50_us=result.p50_us,
        p99_us=result.p99_us,
        errors=result.errors,
        server_cpu_us=cpu.server_cores / result.throughput * 1e6 if result.throughput else float("inf"),
        stray_cores=cpu.stray_cores,
        memory_mb=memory_mb(peer.mark),
        inferences_per_execution=mean_batch(counts_before, counts_after),
    )


@dataclass(frozen=True, slots=True)
class Result:
    throughput: float
    p50_us: float
    p99_us: float
    errors: int


class Wrk:
    """wrk: as many connections as asked for, each with one request in flight."""

    def __init__(self, url: str, body: Body, work: Work) -> None:
        self.command = ["wrk", f"-t{work.threads}", f"-c{work.concurrency}"]
        self.command += ["--timeout", "30s", "--latency", "-s", str(LUA)]
        self.url = url + body.path
        headers = "\n".join(f"{name}: {value}" for name, value in body.headers.items())
        self.environment = {**os.environ, "BODY": str(body.file), "HEADERS": headers}

    def start(self, duration_s: float) -> "subprocess.Popen[str]":
        command = [*self.command, "-d", f"{max(1, round(duration_s))}s", self.url]
        return start(command, self.environment)

    def read(self, output: str) -> Result:
        lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
        if not lines:
            raise LoadError(f"wrk printed no result: {output[-400:]}")
        numbers = json.loads(lines[0].removeprefix("RESULT "))
        throughput = numbers["requests"] / numbers["duration_us"] * 1e6
        return Result(throughput, numbers["p50_us"], numbers["p99_us"], numbers["errors"])


class H2Load:
    """h2load: as many connections as asked for, each with one request in flight.

    The rate is that of the answers until the last one: a batch that the end of the run cuts off counts in neither the
    requests nor the time, as with ONNX Runtime alone. h2load does not read grpc-status, so a failed call counts as an
    answer; `check_answer` comes first for that reason.
    """

    def __init__(self, url: str, body: Body, work: Work, http1: bool = False) -> None:
        self.log = Path(tempfile.gettempdir()) / f"eagleray-benchmark-{os.getpid()}.h2load"
        self.command = ["h2load", f"-t{work.threads}", "-c", str(work.concurrency), "-m1", "-d", str(body.file)]
        self.command += ["--log-file", str(self.log)]
        if http1:
            self.command += ["--h1"]
        if work.rate_rps:
            self.command += ["--rps", str(work.rate_rps // work.concurrency)]
        for name, value in body.headers.items():
            self.command += ["-H", f"{name}: {value}"]
        self.url = url + body.path

    def start(self, duration_s: float) -> "subprocess.Popen[str]":
        self.log.unlink(missing_ok=True)
        return start([*self.command, "-D", str(max(1, round(duration_s))), self.url], dict(os.environ))

    def read(self, output: str) -> Result:
        try:
            rows = [line.split() for line in self.log.read_text().splitlines()]
        except FileNotFoundError as error:
            raise LoadError(f"h2load printed no result: {output[-400:]}") from error
        self.log.unlink()
        answers = [(int(started_us), int(time_us)) for started_us, status, time_us, *_ in rows if status == "200"]
        if len(answers) < 2:
            raise LoadError(f"h2load got no answers: {output[-400:]}")
        percentiles = statistics.quantiles((time_us for _, time_us in answers), n=100)
        first_us = min(started_us for started_us, _ in answers)
        last_us = max(started_us + time_us for started_us, time_us in answers)
        throughput = len(answers) / (last_us - first_us) * 1e6
        return Result(throughput, percentiles[49], percentiles[98], len(rows) - len(answers))


def start(command: list[str], environment: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def execution_counts(peer: Peer, model: str) -> tuple[int, int] | None:
    """Return (inferences, executions) so far of the model, or of the MLP behind an ensemble or calls."""
    inner = "mlp_py" if model in ("ensemble_py", "bls_py") else model
    try:
        with urllib.request.urlopen(f"{peer.http_url}/v2/models/{inner}/stats", timeout=30) as response:
            (statistics_of_version,) = json.load(response)["model_stats"]
    except (OSError, ValueError, KeyError):
        return None
    return statistics_of_version["inference_count"], statistics_of_version["execution_count"]


def mean_batch(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    if before is None or after is None or after[1] == before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])
