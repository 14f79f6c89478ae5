"""`python -m benchmarks.control`: what changes take, and being ready for them.

Loads by API, reloads under load, another replica, API keys, and a repository that is watched.
"""

import asyncio
import hashlib
import json
import os
import secrets
import statistics
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import onnx

from benchmarks.body import grpc_body, http_body
from benchmarks.home import Home
from benchmarks.idle import idle_cores
from benchmarks.load import measure
from benchmarks.many_models import write_small_models
from benchmarks.models import mlp
from benchmarks.peers import Peer, PeerError, eagleray
from benchmarks.rows import Work

BUSY = """
import os, time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.05 * len(requests))
        answer = np.array([os.getpid()], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("PID", answer)]) for _ in requests]
"""
BUSY_CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "PID" data_type: TYPE_INT32 dims: [ 1 ] } ]
parameters { key: "eagleray.autoscaling.max_replicas" value { string_value: "2" } }
parameters { key: "eagleray.autoscaling.target_ongoing_requests" value { string_value: "4" } }
parameters { key: "eagleray.autoscaling.downscale_delay_s" value { string_value: "600" } }
"""
PLACED = ("packed", "isolated")
RATE = 200
CONNECTIONS = 16
CONTROLLER = "ray::ServeReplica:eagleray:RepositoryController"
WATCHED_S = 30.0
"""Twice the time between two looks."""
SETTLED_S = 15.0
SETTLE_S = 1.0
"""For so long after a reload was answered, requests still count as sent during it."""


def write_repository(root: Path) -> None:
    """Write the small MLP packed and isolated, and a model of 50 ms that scales to two replicas."""
    for placement in PLACED:
        (root / placement / "1").mkdir(parents=True)
        onnx.save(mlp(), root / placement / "1/model.onnx")
        parameter = f'parameters {{ key: "eagleray.placement" value {{ string_value: "{placement}" }} }}'
        (root / placement / "config.pbtxt").write_text(parameter)
    (root / "busy/1").mkdir(parents=True)
    (root / "busy/1/model.py").write_text(BUSY)
    (root / "busy/config.pbtxt").write_text(BUSY_CONFIG)


def command(peer: Peer, model: str, action: str) -> float:
    """Load or unload a model; returns how many seconds that took."""
    started_s = time.monotonic()
    request = urllib.request.Request(f"{peer.http_url}/v2/repository/models/{model}/{action}", b"", method="POST")
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()
    return time.monotonic() - started_s


@dataclass
class Steady:
    """Requests that leave when they are due, whatever became of those before; latencies count from then."""

    sent_s: list[float] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    failures: int = 0

    def p99_ms(self, begins_s: float, ends_s: float) -> float:
        taken = [ms for at, ms in zip(self.sent_s, self.latencies_ms, strict=True) if begins_s <= at < ends_s]
        return statistics.quantiles(taken, n=100)[98] if len(taken) > 1 else float("nan")

    async def run(self, port: int, request: bytes, stop: asyncio.Event) -> None:
        due: asyncio.Queue[float] = asyncio.Queue()

        async def connection() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while True:
                at = await due.get()
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                fields = head.lower().split(b"\r\n")
                await reader.readexactly(next(int(each[15:]) for each in fields if each.startswith(b"content-length:")))
                self.failures += not head.startswith(b"HTTP/1.1 200")
                self.sent_s.append(at)
                self.latencies_ms.append((time.monotonic() - at) * 1e3)
                due.task_done()

        connections = [asyncio.create_task(connection()) for _ in range(CONNECTIONS)]
        at = time.monotonic()
        while not stop.is_set():
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            due.put_nowait(at)
            at += 1 / RATE
        await due.join()
        for task in connections:
            task.cancel()


async def reload_under_load(peer: Peer, model: str, file: Path, rounds: int) -> tuple[float, float, float, int]:
    """Return p99 before and during reloads in milliseconds, the seconds of a reload, and how many requests failed."""
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 256], "data": [0.5] * 256}]})
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    steady, stop = Steady(), asyncio.Event()
    load = asyncio.create_task(steady.run(peer.port, (head + body).encode(), stop))
    await asyncio.sleep(2)
    begins_s = time.monotonic()
    await asyncio.sleep(5)
    spans = [(begins_s, time.monotonic())]
    for _ in range(rounds):
        os.utime(file)  # a change of the file, as the server sees it
        at = time.monotonic()
        await asyncio.to_thread(command, peer, model, "load")
        spans.append((at, time.monotonic()))
        await asyncio.sleep(SETTLE_S)
    stop.set()
    await load
    during = [steady.p99_ms(begins, ends + SETTLE_S) for begins, ends in spans[1:]]
    took_s = [ends - begins for begins, ends in spans[1:]]
    return steady.p99_ms(*spans[0]), statistics.median(during), statistics.median(took_s), steady.failures


async def scale_up(port: int) -> float:
    """Return how many seconds after a load rises a second replica answers."""
    body = json.dumps({"inputs": [{"name": "X", "datatype": "INT32", "shape": [1], "data": [0]}]})
    request = f"POST /v2/models/busy/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    seen: set[int] = set()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while len(seen) < 2:
            writer.write(request)
            fields = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
            length = next(int(each[15:]) for each in fields if each.startswith(b"content-length:"))
            seen.update(json.loads(await reader.readexactly(length))["outputs"][0]["data"])
        writer.close()

    started_s = time.monotonic()
    async with asyncio.timeout(120):
        await asyncio.gather(*(client() for _ in range(8)))
    return time.monotonic() - started_s


@contextmanager
def closed_and_open(home: Home, port: int) -> Iterator[tuple[Peer, Peer, str]]:
    """Run two servers of the MLP, the first with API keys; yields a key too."""
    key = secrets.token_urlsafe(32)
    with ExitStack() as stack:
        closed = eagleray(home, home.models, "packed", ["mlp_onnx"], port, None)
        closed.command += ["--api-key", f"bench infer,read {hashlib.sha256(key.encode()).hexdigest()}"]
        closed.log = closed.log.with_name("eagleray-keys.log")
        yield (
            stack.enter_context(closed),
            stack.enter_context(eagleray(home, home.models, "packed", ["mlp_onnx"], port + 10, None)),
            key,
        )


def api_keys(home: Home, port: int, rounds: int, duration_s: float) -> list[float]:
    """Return what a key costs a request, in microseconds of the servers' CPU, by pairs of runs."""
    differences = []
    http, grpc = http_body("mlp_onnx", home.bodies), grpc_body("mlp_onnx", home.bodies)
    with closed_and_open(home, port) as (closed, opened, key):
        keyed = replace(http, headers={**http.headers, "Authorization": f"Bearer {key}"})
        work = Work("mlp_onnx", "http", 1)
        for number in range(rounds):
            order = (closed, opened) if number % 2 else (opened, closed)
            used = {peer: measure(peer, work, keyed, grpc, duration_s).server_cpu_us for peer in order}
            differences.append(used[closed] - used[opened])
    return differences


def watched(home: Home, port: int, count: int, rounds: int, duration_s: float) -> list[float]:
    """Return what a watched repository costs between changes, in percent of a core, beside one that is not."""
    with tempfile.TemporaryDirectory(prefix="eagleray-watched-") as folder, ExitStack() as stack:
        write_small_models(Path(folder), count)
        peers = [eagleray(home, Path(folder), "packed", [], each, None) for each in (port, port + 10)]
        peers[0].command += ["--model-control-mode", "poll"]
        peers[0].log = peers[0].log.with_name("eagleray-watched.log")
        for peer in peers:
            stack.enter_context(peer)
        time.sleep(SETTLED_S)
        measured = [idle_cores(peers, duration_s) for _ in range(rounds)]
    return [polls.get(CONTROLLER, 0.0) - rests.get(CONTROLLER, 0.0) for polls, rests in measured]


def changes(home: Home, port: int, rounds: int) -> None:
    """Measure and print what loads, reloads and another replica take."""
    with tempfile.TemporaryDirectory(prefix="eagleray-control-") as folder:
        write_repository(Path(folder))
        with eagleray(home, Path(folder), "auto", ["busy"], port, None) as server:
            for model in PLACED:
                command(server, model, "load")
                seconds = []
                for _ in range(rounds):
                    command(server, model, "unload")
                    seconds.append(command(server, model, "load"))
                click.echo(
                    f"load, {model}: {statistics.median(seconds):.2f} s (longest {max(seconds):.2f} s), "
                    f"load {os.getloadavg()[0]:.1f}"
                )
            for model in PLACED:
                file = Path(folder) / model / "1/model.onnx"
                before_ms, during_ms, took_s, failures = asyncio.run(reload_under_load(server, model, file, rounds))
                click.echo(
                    f"reload at {RATE} requests/s, {model}: p99 {before_ms:.1f} ms before, {during_ms:.1f} ms "
                    f"during ({during_ms / before_ms:.1f} times), {took_s:.2f} s, {failures} failed, "
                    f"load {os.getloadavg()[0]:.1f}"
                )
            click.echo(f"from one to two replicas: {asyncio.run(scale_up(port)):.1f} s, load {os.getloadavg()[0]:.1f}")


@click.command(help=__doc__)
@click.option("--rounds", default=5, show_default=True)
@click.option("--duration", "duration_s", default=4.0, show_default=True, help="Seconds of each run with API keys.")
@click.option("--port", default=18300, show_default=True, help="HTTP; the next ones are taken too.")
@click.option("--models", "count", default=300, show_default=True, help="Models of the repository that is watched.")
@click.option("--only", type=click.Choice(["changes", "keys", "watch"]), help="Measure one of them.")
def main(rounds: int, duration_s: float, port: int, count: int, only: str | None) -> None:
    home = Home.from_environment()
    try:
        if only in (None, "changes"):
            changes(home, port, rounds)
        if only in (None, "keys"):
            echo("API keys", api_keys(home, port, 2 * rounds, duration_s), "us a request")
        if only in (None, "watch"):
            costs = watched(home, port, count, rounds, WATCHED_S)
            echo(f"a watched repository of {count} models", costs, "% of a core", digits=2)
    except (PeerError, urllib.error.URLError) as error:
        raise click.ClickException(str(error)) from error


def echo(what: str, differences: list[float], unit: str, digits: int = 1) -> None:
    each = ", ".join(f"{difference:+.{digits}f}" for difference in differences)
    median = statistics.median(differences)
    click.echo(f"{what}: {median:+.{digits}f} {unit} ({each}), load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
