"""`python -m benchmarks.gpu`: how much of a GPU's speed is left behind the server.

Models that compute for milliseconds, in ONNX and TorchScript, with one instance and with two, beside the same file in a
loop in one process of its own. Rows appear as they are measured.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.bare_device import rows_per_s
from benchmarks.body import example, http_body
from benchmarks.gpu_models import CUDNN, GPU_TENSORS, MAX_BATCH, Served, right_answer, write_repository
from benchmarks.home import Home, PreparationError, install_load_generators
from benchmarks.load import PROTOCOLS, LoadError, Right, Run, run_checked
from benchmarks.options import numbers, words
from benchmarks.peers import HERE, Peer, PeerError, eagleray, run_from
from benchmarks.profiles import PROFILE_S, profile
from benchmarks.rows import Work
from deployments.available_cores import available_cores

TOLERANCE = 0.05
"""Of the largest element: a GPU multiplies with fewer bits (TF32)."""
LOAD_S = 120.0
PATIENCE_S = 8.0
MANY_CORES = 8
MOST_THREADS = 4
SHARED_MEMORY_MODEL = "resnet50"
GOAL = 0.97
HEAD = (
    f"{'model':16} {'protocol':9} {'clients':>7} {'requests/s':>10} {'bare':>10} {'ratio':>6} {'p50 ms':>8} "
    f"{'p99 ms':>8} {'batch':>6}"
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A row: what the server gave, and rows per second of the file alone in batches of as many as there are clients."""

    model: str
    work: Work
    run: Run
    bare_rows_per_s: float | None

    @property
    def ratio(self) -> float | None:
        return self.run.throughput / self.bare_rows_per_s if self.bare_rows_per_s else None

    def __str__(self) -> str:
        protocol = self.work.protocol + (" shm" if self.work.shared_memory else "")
        errors = f" {self.run.errors} errors" if self.run.errors else ""
        return (
            f"{self.model:16} {protocol:9} {self.work.concurrency:7} {self.run.throughput:10,.0f} "
            f"{_or_dash(self.bare_rows_per_s, '10,.0f')} {_or_dash(self.ratio, '6.3f')} {self.run.p50_us / 1e3:8.2f} "
            f"{self.run.p99_us / 1e3:8.2f} {_or_dash(self.run.inferences_per_execution, '6.1f')}{errors}"
        )


def _or_dash(number: float | None, form: str) -> str:
    return format(number, form) if number is not None else format("-", f">{form.split('.')[0].rstrip(',')}")


def threads(clients: int) -> int:
    """Return how many threads make the load: one may be too slow for large requests, if there are cores for more."""
    return min(MOST_THREADS, clients) if available_cores() >= MANY_CORES else 1


def works(served: Served, clients: int, duration_s: float, protocols: list[str]) -> Iterator[Work]:
    """Yield what is asked of a model. `least_s` has h2load make the load also by HTTP."""
    shared = (False, True) if served.model == SHARED_MEMORY_MODEL and served.instances == 1 else (False,)
    for shared_memory in shared:
        for protocol in protocols:
            yield Work(
                served.name,
                protocol,
                clients,
                shared_memory=shared_memory,
                least_s=duration_s,
                threads=threads(clients),
            )


def sizes(largest: int, clients: list[int]) -> list[int]:
    """Return all sizes of batches: what few clients make first, then from the largest down."""
    few = min((count for count in clients if count > 1), default=1)
    return [*range(1, min(few, largest) + 1), *range(largest, few, -1)]


def states(peer: Peer) -> list[dict[str, Any]]:
    """Return what the server says of its models."""
    with urllib.request.urlopen(f"{peer.http_url}/v2/console/state", timeout=30) as answer:
        rows: list[dict[str, Any]] = json.load(answer)["models"]
    return rows


def wait_for(peer: Peer, name: str, ends_s: float) -> None:
    """Wait until a model is ready; one that has been UNAVAILABLE for a while will not be."""
    unavailable_since_s: float | None = None
    while time.monotonic() < ends_s and not peer.has_ended:
        try:
            row = next((each for each in states(peer) if each["name"] == name), {})
        except OSError:
            row = {}
        if row.get("state") == "READY":
            return
        if row.get("state") != "UNAVAILABLE":
            unavailable_since_s = None
        elif unavailable_since_s is None:
            unavailable_since_s = time.monotonic()
        elif time.monotonic() - unavailable_since_s > PATIENCE_S:
            raise LoadError(str(row.get("reason")))
        time.sleep(0.5)
    raise LoadError(f"{name} is not ready; the server's log is {peer.log}")


def warm_up(peer: Peer, served: Served, order: list[int], limit_s: float, bodies: Path) -> str:
    """Ask each instance for each size of batch, twice: cuDNN and the compiler of TorchScript choose for each."""
    began_s, done = time.monotonic(), 0
    folder = bodies / served.name
    folder.mkdir(parents=True, exist_ok=True)

    def ask(request: urllib.request.Request) -> None:
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            raise LoadError(f"it was answered with {error.code}: {error.read(300)!r}") from error

    with ThreadPoolExecutor(served.instances) as pool:
        for rows in order:
            if time.monotonic() - began_s > limit_s:
                break
            body = http_body(served.name, folder, served.tensors, rows)
            request = urllib.request.Request(peer.http_url + body.path, body.file.read_bytes(), body.headers)
            list(pool.map(ask, [request] * 2 * served.instances))
            done += 1
    return f"{served.name}: {done} of {len(order)} sizes of batches warmed up in {time.monotonic() - began_s:.1f} s"


@contextmanager
def running(home: Home, repository: Path, device: str, ingresses: int, port: int) -> Iterator[Peer]:
    """Start a server that comes up also where a model fails."""
    peer = eagleray(home, repository, "isolated", [], port, None)
    peer.command += ["--model-control-mode", "none", "--strict-readiness", "false"]
    peer.command += ["--ingresses-per-node", str(ingresses), *(["--num-gpus", "1"] if device == "gpu" else [])]
    peer.log = peer.log.with_name(f"eagleray-{device}.log")
    run_from(HERE, peer)
    with peer:
        yield peer


class Benchmark:
    """Measures rows, prints each and writes all of them."""

    def __init__(self, home: Home, repository: Path, ends_s: float, json_file: Path | None) -> None:
        self.home = home
        self.repository = repository
        self.ends_s = ends_s
        self.json_file = json_file
        self.bare: dict[str, dict[int, float]] = {}
        self.right: dict[str, Right] = {}
        self.rows: list[Measured] = []

    def measure_bare(
        self, models: list[Served], device: str, cudnn: str, duration_s: float, clients: list[int]
    ) -> None:
        for served in models:
            try:
                answer = right_answer(served, self.repository)
                self.right[served.model] = Right(answer, TOLERANCE * float(abs(answer).max()))
                rows = example(served.tensors)
                batches = sorted({*clients, *[max(1, count // 2) for count in clients]}, reverse=True)
                rates = rows_per_s(served.file(self.repository), device, cudnn, duration_s, batches, rows)
            except Exception as error:
                say(f"{served.model} alone: {error!r}")
                continue
            self.bare[served.model] = rates
            say(f"{served.model} alone: " + ", ".join(f"{each:,.0f} rows/s by {size}" for size, each in rates.items()))
        self.write()

    def measure(self, peer: Peer, served: Served, work: Work, duration_s: float) -> bool:
        """Measure a row; says whether it could be."""
        try:
            run = run_checked(peer, work, duration_s, served.tensors, self.right[served.model], self.home.bodies)
        except Exception as error:
            say(f"{served.name} {work.protocol} {work.concurrency}: {error!r}")
            return False
        row = Measured(served.name, work, run, self.bare.get(served.model, {}).get(work.concurrency))
        self.rows.append(row)
        say(str(row))
        self.write()
        return True

    def write(self) -> None:
        if self.json_file is not None:
            rows = [asdict(row) | {"ratio": row.ratio} for row in self.rows]
            self.json_file.write_text(json.dumps({"bare": self.bare, "rows": rows}, indent=1))

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.ends_s


def say(text: str) -> None:
    click.echo(text)  # which flushes


@click.command(help=__doc__)
@click.option("--device", default="gpu", show_default=True, type=click.Choice(["gpu", "cpu"]))
@click.option("--model", "models", default=",".join(GPU_TENSORS), show_default=True, callback=words)
@click.option("--clients", default="16,64,1", show_default=True, callback=numbers, help="In this order.")
@click.option("--protocol", "protocols", default=",".join(PROTOCOLS), show_default=True, callback=words)
@click.option("--instances", default="1,2", show_default=True, callback=numbers, help="Of each model, in this order.")
@click.option("--duration", "duration_s", default=5.0, show_default=True, help="Seconds for each measurement.")
@click.option("--ingresses", default=4, show_default=True)
@click.option("--cudnn", default="heuristic", show_default=True, type=click.Choice(list(CUDNN)))
@click.option(
    "--warm-up", "warm_up_s", default=90.0, show_default=True, help="At most so many seconds, for all models."
)
@click.option("--within", "within_s", default=3600.0, show_default=True, help="Begin no row later, in seconds.")
@click.option("--profile", "profiles", type=click.Path(file_okay=False, path_type=Path), help="py-spy writes here.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write all rows here.")
@click.option("--port", default=18500, show_default=True, help="HTTP; gRPC and metrics take the next two.")
def main(
    device: str,
    models: list[str],
    clients: list[int],
    protocols: list[str],
    instances: list[int],
    duration_s: float,
    ingresses: int,
    cudnn: str,
    warm_up_s: float,
    within_s: float,
    profiles: Path | None,
    json_file: Path | None,
    port: int,
) -> None:
    ends_s = time.monotonic() + within_s
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped then, too
    home = Home.from_environment()
    all_served = [Served(model, count) for count in instances for model in models]
    with tempfile.TemporaryDirectory(prefix="eagleray-gpu-") as folder:
        benchmark = Benchmark(home, Path(folder), ends_s, json_file)
        try:
            install_load_generators({tool for tool in ("h2load",) if shutil.which(tool) is None})
            write_repository(Path(folder), all_served, device, cudnn)
            benchmark.measure_bare(all_served[: len(models)], device, cudnn, duration_s, clients)
            with running(home, Path(folder), device, ingresses, port) as peer:
                say(f"up after {peer.start_to_ready_s:.1f} s, {available_cores()} cores, load {os.getloadavg()[0]:.1f}")
                all_served = prepared(peer, all_served, clients, warm_up_s, home.bodies)
                for row in states(peer):
                    say(" ".join(str(row.get(key, "")) for key in ("name", "state", "placement", "device", "reason")))
                say(HEAD)
                for count in instances:
                    for concurrency in clients:
                        for served in all_served:
                            if served.instances == count:
                                measure_model(benchmark, peer, served, concurrency, duration_s, protocols)
                                if profiles and count == instances[0] and concurrency == max(clients):
                                    profile_model(benchmark, peer, served, concurrency, protocols, profiles)
        except (PreparationError, PeerError, LoadError) as error:
            raise click.ClickException(f"{error}{_tail(home.logs / f'eagleray-{device}.log')}") from error
    missed = [row for row in benchmark.rows if row.work.concurrency > 1 and row.ratio is not None and row.ratio < GOAL]
    say(f"{len(benchmark.rows)} rows, {len(missed)} with several clients under {GOAL} of the file alone")


def _tail(log: Path) -> str:
    return f"; its end:\n{log.read_text()[-3000:]}" if log.exists() else ""


def prepared(peer: Peer, models: list[Served], clients: list[int], warm_up_s: float, bodies: Path) -> list[Served]:
    """Return the models that are ready and warm; all get warm at the same time."""
    ready_by_s = time.monotonic() + LOAD_S

    def prepare(served: Served) -> bool:
        try:
            wait_for(peer, served.name, ready_by_s)
            say(warm_up(peer, served, sizes(min(max(clients), MAX_BATCH), clients), warm_up_s, bodies))
        except Exception as error:
            say(f"{served.name}: {error!r}")
            return False
        return True

    pool = ThreadPoolExecutor(len(models))
    try:
        are_ready = list(pool.map(prepare, models))
    finally:
        pool.shutdown(wait=False)  # what still waits fails once the server is stopped
    return [served for served, is_ready in zip(models, are_ready, strict=True) if is_ready]


def measure_model(
    benchmark: Benchmark, peer: Peer, served: Served, clients: int, duration_s: float, protocols: list[str]
) -> None:
    for work in works(served, clients, duration_s, protocols):
        if benchmark.is_over:
            return
        benchmark.measure(peer, served, work, duration_s)


def profile_model(
    benchmark: Benchmark, peer: Peer, served: Served, clients: int, protocols: list[str], folder: Path
) -> None:
    """Repeat the plain rows under py-spy."""
    for work in works(served, clients, PROFILE_S, protocols):
        if benchmark.is_over or work.shared_memory:
            continue
        try:
            profile(peer, work, served.tensors, benchmark.home.bodies, folder, say)
        except Exception as error:
            say(f"profile of {served.name}: {error!r}")


if __name__ == "__main__":
    main()
