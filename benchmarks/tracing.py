"""`python -m benchmarks.tracing`: what tracing costs the requests that are not traced, and those that are.

Requests go over a lane whose bytes go nowhere and are answered, by turns through the model's own target and through
that of a model of which some requests are traced, thousands each, in one process. What every request pays for looking
whether it is traced is timed beside an empty loop: as many tests of an attribute for None as there are on its way.
"""

import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Final

import click

from app.trace.sampler import Sampler, Sampling
from app.trace.traced_target import TracedTarget
from benchmarks.metrics import _Lane, _Sink
from deployments.core.refusals import Refusals
from deployments.core.request_meter import RequestMeters
from deployments.lane.frames import FINAL, NO_JSON_LENGTH, Kind
from deployments.lane.sink import Target
from deployments.lane.target import LaneTarget, TargetContext
from deployments.replica.node_counters import NodeCounters
from deployments.replica.node_folder import NodeFolder
from protocol.trace import TIMESTAMPS

REQUESTS: Final = 1_000
ROUNDS: Final = 400
TESTS: Final = 5
"""For None, of each request: `LaneClient.call`, `LaneServerConnection` twice, `PoolScheduler`, and a gRPC head's."""
MOST_NS: Final = 500

Work = Callable[[], None]


def requests(rows: NodeCounters, rate: int | None) -> Work:
    """Return what sends requests, one in `rate` of them with a trace; None: there is nothing in front of the target."""
    lane = _Lane("", SimpleNamespace(), SimpleNamespace(), near=True)  # type: ignore[arg-type]
    own = LaneTarget("m", 1, TargetContext(1 << 30, Refusals(rows), meters=RequestMeters(rows)))
    own.choice.add(lane, 0, capacity=1 << 30, spill=False)
    target: Target = own
    if rate is not None:
        target = TracedTarget(own, Sampler(Sampling(TIMESTAMPS, rate)), lambda trace, sampler: None)
    sink, parts = _Sink(), (b"x" * 100,)

    def work() -> None:
        for _ in range(REQUESTS):
            target.submit(parts, None, sink)
            (call,) = lane.calls
            lane.frame_received(Kind.RESPONSE, FINAL, 0, call, NO_JSON_LENGTH, b"")

    return work


def tests(*, made: bool) -> Work:
    request = SimpleNamespace(trace=None)

    def plain() -> None:
        for _ in range(REQUESTS * TESTS):
            pass

    def tested() -> None:
        for _ in range(REQUESTS * TESTS):
            if request.trace is not None:
                raise AssertionError

    return tested if made else plain


def added_ns(plain: Work, more: Work) -> float:
    """Return the median of what a request costs more, over pairs of rounds."""
    added = []
    for number in range(ROUNDS):
        took = {}
        for work in (plain, more) if number % 2 else (more, plain):
            began_ns = time.thread_time_ns()
            work()
            took[work] = time.thread_time_ns() - began_ns
        added.append((took[more] - took[plain]) / REQUESTS)
    return statistics.median(added)


@click.command(help=__doc__)
def main() -> None:
    with TemporaryDirectory(dir="/dev/shm") as folder:
        rows = NodeCounters(NodeFolder("node", Path(folder)))
        gc.collect()
        gc.disable()
        own = requests(rows, None)
        looking_ns = added_ns(tests(made=False), tests(made=True))
        waiting_ns = added_ns(own, requests(rows, 1 << 40))
        traced_ns = added_ns(own, requests(rows, 1))
        rows.close()
    click.echo(f"a request to a model that is not traced: {looking_ns:.0f} ns more than without tracing")
    click.echo(f"one whose turn it is not: {looking_ns + waiting_ns:.0f} ns more; at most {MOST_NS}")
    click.echo(f"one that is traced, in the ingress: {traced_ns / 1000:.1f} µs more")
    if looking_ns + waiting_ns > MOST_NS:
        sys.exit(1)


if __name__ == "__main__":
    main()
