"""`python -m benchmarks.console`: what the console costs the ingress that it polls, with 300 models.

An ingress's HTTP port, without models, in a process of its own, which counts its processor time; viewers ask once a
second, as the page does, each on a connection of its own. Counters are those of 300 models that have had requests.
"""

import asyncio
import contextlib
import gzip
import sys
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final, cast

import click

from app.console.assets import read_assets
from app.console.live_state import LiveState
from app.http.api import Api
from app.http.console_api import ConsoleApi
from app.http.context import HttpContext
from app.http.front import HttpFront
from app.http.limits import HttpLimits
from app.service.cluster_view import NoClusterView
from app.service.service import Service
from app.service.statistics import NodeTotals
from benchmarks.metrics import write_models
from deployments.core.counts import CPU, GPU, MODEL, Label, ModelCounts, Totals
from deployments.core.refusals import Refusals
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder
from deployments.replica.process_memory import spare_long_lived_objects

MOST_MS: Final = 20.0
MOST_PAGE_BYTES: Final = 150_000


class _Counters:
    def __init__(self, rows: NodeCounters) -> None:
        self._rows = rows

    async def of_node(self) -> Totals:
        return await asyncio.to_thread(self._rows.totals)

    of_cluster = of_node

    async def of_nodes(self) -> list[NodeTotals]:
        return await asyncio.to_thread(self._read)

    def _read(self) -> list[NodeTotals]:
        began_s = time.thread_time()
        totals = self._rows.totals()
        return [NodeTotals("node", "127.0.0.1", totals, time.thread_time() - began_s)]


class _View(NoClusterView):
    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan

    async def plan(self) -> dict[str, Any]:
        return self._plan


def serve(pipe: Connection, models: int, busy: bool = False, plan: dict[str, Any] | None = None) -> None:
    """Serve the console's state until the pipe closes; tells the port, and for each message its processor time in s.

    `busy` has every model count on, `plan` is what the console is told of the plan, if anything.
    """

    async def run() -> None:
        with TemporaryDirectory(dir="/dev/shm") as folder:
            rows = NodeCounters(NodeFolder("node", Path(folder)))
            host: Any = SimpleNamespace(
                regions=None, copies=(), target=lambda *_: SimpleNamespace(ready=True), says_ready=lambda *_: True
            )
            fleet: Any = SimpleNamespace(target=lambda *_: None, says_ready=lambda *_: True)
            service = Service("triton", "0", True, host, fleet, _Counters(rows), Refusals(rows))
            if plan is not None:
                service.cluster = _View(plan)
            directory = service.models.directory
            directory.models, directory.epoch, directory.settled = write_models(rows, models), "epoch", True
            api = Api(service, ConsoleApi(service, LiveState(service), manages=True))
            context = HttpContext(api, service.routing, HttpLimits(), asyncio.get_running_loop())
            front = HttpFront(context)
            rows.row(Label(CPU, "", 0))
            rows.row(Label(GPU, "GPU-1234", 0))
            spare_long_lived_objects()  # as every ingress does
            pipe.send(await front.listen("127.0.0.1", 0))
            counting = asyncio.create_task(_count_on(rows, models)) if busy else None
            with contextlib.suppress(EOFError):
                while await asyncio.to_thread(pipe.recv):
                    pipe.send(time.process_time())
            if counting is not None:
                counting.cancel()
            await front.close(1.0)
            rows.close()

    asyncio.run(run())


async def _count_on(rows: NodeCounters, models: int) -> None:
    while True:
        for number in range(models):
            row = cast(ModelCounts, rows.row(Label(MODEL, f"model_{number}", 1)))
            row.success_count += 1 + number % 7
        await asyncio.sleep(0.1)


async def view(port: int, viewers: int, seconds: float) -> int:
    """Have so many viewers, or none, poll for so long; returns the bytes of one answer."""
    size = 0

    async def look(delay_s: float) -> None:
        nonlocal size
        await asyncio.sleep(delay_s)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(round(seconds)):
            began_s = time.monotonic()
            writer.write(b"GET /v2/console/state HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            body = await reader.readexactly(length)
            assert len(gzip.decompress(body)) > length
            size = length
            await asyncio.sleep(max(0.0, 1 - (time.monotonic() - began_s)))
        writer.close()

    await asyncio.gather(asyncio.sleep(seconds), *(look(number / viewers) for number in range(viewers)))
    return size


def measure(models: int, seconds: float) -> dict[int, tuple[float, int]]:
    """Return milliseconds of processor time per second, and the bytes of an answer, by the number of viewers."""
    ours, theirs = get_context("spawn").Pipe()
    server = get_context("spawn").Process(target=serve, args=(theirs, models))
    server.start()
    theirs.close()
    port, found = ours.recv(), {}

    def spent_s() -> float:
        ours.send(True)
        return float(ours.recv())

    for viewers in (0, 1, 10):
        before_s = spent_s()
        size = asyncio.run(view(port, viewers, seconds))
        found[viewers] = 1000 * (spent_s() - before_s) / seconds, size
    ours.close()
    server.join(10)
    return found


@click.command(help=__doc__)
@click.option("--models", default=300, help="How many models there are.")
@click.option("--seconds", default=20.0, help="How long each number of viewers looks.")
def main(models: int, seconds: float) -> None:
    page_bytes = sum(len(asset.content) for asset in read_assets().values())
    sent_bytes = sum(len(asset.compressed) for asset in read_assets().values())
    click.echo(f"the page and its files: {page_bytes:,} bytes, {sent_bytes:,} compressed; at most {MOST_PAGE_BYTES:,}")
    found = measure(models, seconds)
    quiet_ms = found[0][0]
    worst_ms = 0.0
    for viewers, (spent_ms, size) in found.items():
        per_viewer_ms = (spent_ms - quiet_ms) / viewers if viewers else 0.0
        worst_ms = max(worst_ms, per_viewer_ms)
        click.echo(
            f"{viewers} viewers, {models} models: {spent_ms:.1f} ms of processor time per second, "
            f"{per_viewer_ms:.1f} ms per viewer; {size:,} bytes an answer"
        )
    click.echo(f"at most {MOST_MS:g} ms per second and viewer")
    if worst_ms > MOST_MS or page_bytes > MOST_PAGE_BYTES:
        sys.exit(1)


if __name__ == "__main__":
    main()
