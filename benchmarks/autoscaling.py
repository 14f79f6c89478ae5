"""`python -m benchmarks.autoscaling`: a load that triples and falls again, and what becomes of replicas and p99."""

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
import psutil

from benchmarks.home import Home
from benchmarks.measure import is_marked
from benchmarks.peers import eagleray

MODEL = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for _ in requests:
            time.sleep(0.02)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros(1, np.float32))]))
        return answers
"""
CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
parameters { key: "eagleray.autoscaling.max_replicas" value { string_value: "4" } }
parameters { key: "eagleray.autoscaling.target_ongoing_requests" value { string_value: "2" } }
parameters { key: "eagleray.autoscaling.downscale_delay_s" value { string_value: "10" } }
"""
BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [0]}]}).encode()
REQUEST = b"POST /v2/models/scales/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
CONNECTIONS = 128


@dataclass
class Run:
    """What was measured, by second."""

    rates: list[float]
    latencies_ms: dict[int, list[float]] = field(default_factory=dict)
    replicas: dict[int, int] = field(default_factory=dict)
    failures: int = 0

    def rows(self) -> Iterator[tuple[int, float, int, float]]:
        """Yield second, requests per second, replicas and p99 in milliseconds."""
        replicas = 1
        for second, rate in enumerate(self.rates):
            taken = sorted(self.latencies_ms.get(second, [0.0]))
            replicas = self.replicas.get(second, replicas)
            yield second, rate, replicas, taken[min(len(taken) - 1, int(0.99 * len(taken)))]


async def load(port: int, run: Run, mark: str) -> None:
    """Send requests when they are due, whatever became of those before: latencies count from then."""
    due: asyncio.Queue[float] = asyncio.Queue()
    started = time.monotonic()

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            at = await due.get()
            writer.write(REQUEST)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            await reader.readexactly(length)
            run.failures += not head.startswith(b"HTTP/1.1 200")
            run.latencies_ms.setdefault(int(at - started), []).append((time.monotonic() - at) * 1e3)
            due.task_done()

    async def watch() -> None:
        while True:
            run.replicas[int(time.monotonic() - started)] = await asyncio.to_thread(count_replicas, mark)
            await asyncio.sleep(0.5)

    tasks = [asyncio.create_task(connection()) for _ in range(CONNECTIONS)]
    tasks.append(asyncio.create_task(watch()))
    at = started
    for second, rate in enumerate(run.rates):
        while at < started + second + 1:
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            due.put_nowait(at)
            at += 1 / rate
    await due.join()
    for task in tasks:
        task.cancel()


def count_replicas(mark: str) -> int:
    """Return how many replicas of the model run."""
    count = 0
    for process in psutil.process_iter(["cmdline"]):
        if " ".join(process.info["cmdline"] or ()).startswith("ray::ServeReplica:scales:"):
            count += is_marked(process.pid, mark)
    return count


def plot(rows: list[tuple[int, float, int, float]], title: str) -> str:
    """Return an SVG of three curves above each other, by second."""
    width, height, left = 720, 110, 60
    names = ("requests/s", "replicas", "p99 ms")
    last = max(1, rows[-1][0])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 20}" height="{3 * (height + 30) + 50}" '
        'font-family="sans-serif" font-size="12">',
        f'<text x="{left}" y="18" font-size="14">{title}</text>',
    ]
    for index, name in enumerate(names):
        values = [row[index + 1] for row in rows]
        top, most = 35 + index * (height + 30), max(values) or 1
        points = " ".join(
            f"{left + width * row[0] / last:.1f},{top + height * (1 - value / most):.1f}"
            for row, value in zip(rows, values, strict=True)
        )
        parts += [
            f'<text x="4" y="{top + 10}">{most:.0f}</text><text x="4" y="{top + height}">0</text>',
            f'<text x="{left + 5}" y="{top + 12}" fill="#555">{name}</text>',
            f'<path d="M{left},{top}v{height}h{width}" fill="none" stroke="#999"/>',
            f'<polyline points="{points}" fill="none" stroke="#1f77b4" stroke-width="1.5"/>',
        ]
    bottom = 35 + 3 * (height + 30)
    parts += [f'<text x="{left + width * s / last:.0f}" y="{bottom}">{s} s</text>' for s in range(0, last + 1, 20)]
    return "\n".join([*parts, "</svg>", ""])


@click.command(help=__doc__)
@click.option("--rate", default=30.0, show_default=True, help="Requests per second before and after.")
@click.option("--port", default=18200, show_default=True, help="HTTP; gRPC and metrics take the next two.")
@click.option("--out", default="docs/autoscaling.svg", show_default=True, type=click.Path(path_type=Path))
def main(rate: float, port: int, out: Path) -> None:
    run = Run([rate] * 20 + [3 * rate] * 40 + [rate] * 40)
    with tempfile.TemporaryDirectory(prefix="eagleray-scaling-") as folder:
        (Path(folder) / "scales/1").mkdir(parents=True)
        (Path(folder) / "scales/1/model.py").write_text(MODEL)
        (Path(folder) / "scales/config.pbtxt").write_text(CONFIG)
        with eagleray(Home.from_environment(), Path(folder), "auto", [], port, None) as server:
            asyncio.run(load(port, run, server.mark))
    rows = list(run.rows())
    for second, sent, replicas, p99_ms in rows:
        click.echo(f"{second:3} s  {sent:6.0f} requests/s  {replicas} replicas  p99 {p99_ms:7.1f} ms")
    click.echo(
        f"{sum(map(len, run.latencies_ms.values()))} requests, {run.failures} failed, load {os.getloadavg()[0]:.1f}"
    )
    out.write_text(plot(rows, "A model of 20 ms, at most 50 requests/s per replica: the load triples, and falls"))


if __name__ == "__main__":
    main()
