"""`python -m benchmarks.metrics`: what counting costs each request, and what a scrape of 300 models costs.

Two targets of one model, of which one counts what clients get, take turns in the same process, thousands of requests
each, through the code that an ingress runs, over a lane and to a model of its own; so do the loops over the waits of a
batch's requests. The loop that turns beside the scrapes shares its interpreter with them, as an ingress's does.
"""

import asyncio
import gc
import statistics
import sys
import time
from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final, cast

import click
from tritonclient.grpc.model_config_pb2 import ModelConfig

from app.metrics.exposition import Exposition
from app.metrics.model_labels import model_labels
from app.metrics.scrape import Scrape, Shown, write
from app.service.statistics import NodeTotals, Statistics
from deployments.backends.backend import Batch
from deployments.control.directory import ModelEntry, VersionEntry
from deployments.core.counts import QUEUE, STATE, Label, QueueCounts, Totals
from deployments.core.duration_buckets import BOUNDS_NS
from deployments.core.metrics_options import MetricsOptions
from deployments.core.model_version import ModelVersion
from deployments.core.refusals import Refusals
from deployments.core.request_meter import RequestMeters, succeed
from deployments.core.statistics import ModelStatistics
from deployments.lane.client import LaneClient
from deployments.lane.frames import FINAL, NO_JSON_LENGTH, Kind
from deployments.lane.slow_codec import SlowCodec
from deployments.lane.target import LaneTarget, TargetContext
from deployments.lane.wire import GRPC, HTTP, WireCodec
from deployments.lane.work_queue import WorkQueue
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder
from deployments.replica.process_memory import spare_long_lived_objects, without_collections
from deployments.replica.served_model import LocalTarget, ServedModel
from protocol.infer import InferRequest, InferResponse

REQUESTS: Final = 1_000
ROUNDS: Final = 400
TURN_S: Final = 0.0005
QUIET_S: Final = 2.0
SCRAPES: Final = 60
MOST_PER_REQUEST_NS: Final = 1_000
MOST_SCRAPE_MS: Final = 50.0
MOST_HELD_MS: Final = 5.0


class _Sink:
    def on_response(self, json_length: int | None, parts: Any, final: bool) -> None:
        pass

    def on_error(self, error: Exception) -> None:
        raise error


class _Lane(LaneClient):
    """A lane whose bytes go nowhere."""

    def send(self, *args: Any, **more: Any) -> None:
        pass


def lane_requests(rows: NodeCounters, *, counted: bool) -> Callable[[], None]:
    """Return what sends requests over a lane and answers them."""
    lane = _Lane("", SimpleNamespace(), SimpleNamespace(), near=True)  # type: ignore[arg-type]
    target = LaneTarget("m", 1, TargetContext(1 << 30, Refusals(rows), meters=RequestMeters(rows) if counted else None))
    target.choice.add(lane, 0, capacity=1 << 30, spill=False)
    sink, parts = _Sink(), (b"x" * 100,)

    def work() -> None:
        for _ in range(REQUESTS):
            call = target.submit(parts, None, sink)
            assert call is not None
            lane.frame_received(Kind.RESPONSE, FINAL, 0, call.id, NO_JSON_LENGTH, b"")

    return work


class _Codec:
    """Decodes nothing and encodes nothing."""

    def decode(self, body: Any, json_length: int | None, reply: Any, context: Any) -> InferRequest:
        return InferRequest({}, 1, reply, context=context)

    def reads_long(self, body: Any) -> bool:
        return False

    def takes_long(self, request: InferRequest, response: InferResponse) -> bool:
        return False

    def encode(self, request: InferRequest, response: InferResponse) -> tuple[int | None, tuple[bytes, ...]]:
        return None, (b"",)


def embedded_requests(rows: NodeCounters, *, counted: bool) -> Callable[[], None]:
    """Return what sends requests to a model of the same process, which answers at once."""
    answer = InferResponse({})
    model = SimpleNamespace(
        package=SimpleNamespace(name="m", version=1, config=ModelConfig()),
        interface="",
        submit=lambda request: request.reply(request, answer),
        cancel=None,
        end_sequence=None,
        pool=None,
    )
    codecs = (cast(WireCodec, _Codec()),) * 3
    slow = SlowCodec(codecs, cast(WorkQueue, None))  # nothing takes long
    served = ServedModel(cast(ModelVersion, model), codecs, slow)
    target = LocalTarget(served, RequestMeters(rows).of("m", 1) if counted else None)
    sink, parts = _Sink(), (b"x" * 100,)

    def work() -> None:
        for _ in range(REQUESTS):
            target.submit(parts, None, sink)

    return work


def waits(rows: NodeCounters, *, counted: bool) -> Callable[[], None]:
    """Return what `ModelStatistics.record_batch` does about the wait of each request of a batch."""
    cells = cast(QueueCounts, rows.row(Label(QUEUE, "m", 1))).cells
    queued = [SimpleNamespace(queued_ns=1_000_000_000 + 1000 * number) for number in range(100)] * (REQUESTS // 100)
    start_ns = 1_000_300_000

    def plain() -> None:
        queue_ns = 0
        for request in queued:
            queue_ns += start_ns - request.queued_ns

    def measured() -> None:
        queue_ns, waited = 0, cells
        for request in queued:
            waited_ns = start_ns - request.queued_ns
            waited[1 + bisect_left(BOUNDS_NS, waited_ns)] += 1
            queue_ns += waited_ns

    return measured if counted else plain


PAIRS: Final = {
    "a client's request that goes over a lane": lane_requests,
    "a client's request to an embedded model": embedded_requests,
    "the wait in a queue": waits,
}


def paired_ns(make: Callable[..., Callable[[], None]], rows: NodeCounters) -> tuple[float, float]:
    """Return the median and the 90th percentile of what counting adds to a request, over pairs of rounds."""
    plain, counted = make(rows, counted=False), make(rows, counted=True)
    added = []
    for number in range(ROUNDS):
        took = {}
        for work in (plain, counted) if number % 2 else (counted, plain):
            began_ns = time.thread_time_ns()
            work()
            took[work] = time.thread_time_ns() - began_ns
        added.append((took[counted] - took[plain]) / REQUESTS)
    return statistics.median(added), statistics.quantiles(added, n=10)[-1]


def write_models(rows: NodeCounters, count: int) -> dict[str, ModelEntry]:
    """Count something in every family of so many models, as a replica and an ingress of the node do."""
    meters = RequestMeters(rows)
    options = MetricsOptions(summaries=False, histograms=True)
    request = InferRequest({}, 1, lambda *_: None)
    request.received_ns = request.queued_ns = 1
    for number in range(count):
        name = f"model_{number}"
        each = ModelStatistics(name, 1, rows)
        each.record_latencies(options, (100, 500, 2000, 5000))
        for size in (1, 2, 4, 8):
            batch = Batch([request], size, "full")
            batch.results = [InferResponse({})]
            batch.start_ns = batch.infer_start_ns = batch.infer_end_ns = batch.end_ns = 5_000_000
            each.record_batch(batch)
        each.counts.load_duration_ns = 10**9
        for wire in (HTTP, GRPC):
            succeed(meters.of(name, 1).begin(wire), time.monotonic_ns())
        rows.row(Label(STATE, name, 1))
    return {f"model_{number}": ModelEntry("{}", versions={1: VersionEntry("READY")}) for number in range(count)}


class _Counters:
    def __init__(self, rows: NodeCounters) -> None:
        self._rows = rows

    async def of_node(self) -> Totals:
        return await asyncio.to_thread(self._rows.totals)

    of_cluster = of_node

    async def of_nodes(self) -> list[NodeTotals]:
        return [NodeTotals("", "", await self.of_node(), 0.0)]


async def scrape(rows: NodeCounters, models: dict[str, ModelEntry], count: int) -> tuple[list[float], list[float], int]:
    """Scrape so often, or wait, beside a loop; returns milliseconds of scrapes and of turns, and the bytes of one."""
    known: Any = SimpleNamespace(directory=SimpleNamespace(models=models))
    page = Scrape(Statistics(known, _Counters(rows)), known, Shown(MetricsOptions(histograms=True)))
    turns_ms: list[float] = []
    took_ms = []
    scraping = True

    async def turn() -> None:
        while scraping:
            began = time.perf_counter()
            await asyncio.sleep(TURN_S)
            turns_ms.append(1000 * (time.perf_counter() - began - TURN_S))

    turning = asyncio.create_task(turn())
    size_bytes = 0
    if not count:
        await asyncio.sleep(QUIET_S)
    for _ in range(count):
        began = time.perf_counter()
        size_bytes = len(await page.text())
        took_ms.append(1000 * (time.perf_counter() - began))
    scraping = False
    await turning
    return took_ms, turns_ms, size_bytes


def stretches(rows: NodeCounters, models: dict[str, ModelEntry], count: int) -> tuple[list[float], list[float], str]:
    """Scrape so often; returns the processor time of each in ms, the longest of it without a pause, and the last text.

    Unlike the turns of a loop, what else the machine does is not in them.
    """
    took_ms, longest_ms, before = [], [], None
    text = b""
    for _ in range(count):
        pauses_ns = [time.thread_time_ns()]

        def pause(pauses_ns: list[int] = pauses_ns) -> None:
            pauses_ns.append(time.thread_time_ns())

        with without_collections():
            out = Exposition(pause, before)
            write(out, rows.totals(pause), model_labels(models), Shown(MetricsOptions(histograms=True)), models)
            text, before = out.text(), out.histograms_written
        pause()
        took_ms.append((pauses_ns[-1] - pauses_ns[0]) / 1e6)
        longest_ms.append(max(b - a for a, b in pairwise(pauses_ns)) / 1e6)
    return took_ms, longest_ms, text.decode()


@click.command(help=__doc__)
@click.option("--models", default=300, help="How many models a scrape tells of.")
def main(models: int) -> None:
    with TemporaryDirectory(dir="/dev/shm") as folder:
        rows = NodeCounters(NodeFolder("node", Path(folder)))
        gc.collect()
        gc.disable()
        added_ns = {}
        for what, make in PAIRS.items():
            added_ns[make], high_ns = paired_ns(make, rows)
            click.echo(f"{what}: {added_ns[make]:.0f} ns (90th percentile of {ROUNDS} pairs: {high_ns:.0f} ns)")
        total_ns = max(added_ns[lane_requests], added_ns[embedded_requests]) + added_ns[waits]
        click.echo(f"the dearer way, and the wait: {total_ns:.0f} ns a request; at most {MOST_PER_REQUEST_NS}")
        gc.enable()
        known = write_models(rows, models)
        spare_long_lived_objects()  # as every ingress does
        quiet_ms = statistics.quantiles(asyncio.run(scrape(rows, known, 0))[1], n=1000)[-1]
        took_ms, turns_ms, size_bytes = asyncio.run(scrape(rows, known, SCRAPES))
        scrape_ms, held_ms = statistics.median(took_ms), statistics.quantiles(turns_ms, n=1000)[-1]
        click.echo(f"a scrape of {models} models, {size_bytes:,} bytes: {scrape_ms:.1f} ms; at most {MOST_SCRAPE_MS:g}")
        click.echo(
            f"a turn of the loop is late meanwhile by {held_ms:.2f} ms at the 99.9th percentile, without a scrape by "
            f"{quiet_ms:.2f} ms: with what else the machine does"
        )
        longest_ms = max(stretches(rows, known, SCRAPES)[1])
        click.echo(f"the scrape holds the interpreter for {longest_ms:.2f} ms at the longest; at most {MOST_HELD_MS:g}")
        rows.close()
    if total_ns > MOST_PER_REQUEST_NS or scrape_ms > MOST_SCRAPE_MS or longest_ms > MOST_HELD_MS:
        sys.exit(1)


if __name__ == "__main__":
    main()
