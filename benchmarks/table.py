"""The runs of all rounds become one line for each row: medians, the ratio to the peer, and whether it suffices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.load import Run
from benchmarks.rows import BATCHED_CONCURRENCY, MIN_MEAN_BATCH, MIN_SHARED_MEMORY_GAIN, Row
from benchmarks.startup import Startup

MAX_STRAY_CORES = 0.35
"""A run beside which more of the machine was busy with something else does not count, if there are others."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All runs of a row, by server."""

    row: Row
    eagleray: Sequence[Run]
    peer: Sequence[Run]

    @property
    def ratio(self) -> float:
        """Eagleray's throughput as a multiple of the peer's."""
        theirs = middle(self.peer, lambda run: run.throughput)
        return self.throughput / theirs if theirs else float("inf")

    @property
    def throughput(self) -> float:
        """Eagleray's requests per second."""
        return middle(self.eagleray, lambda run: run.throughput)

    @property
    def p99_ratio(self) -> float:
        """Eagleray's p99 latency as a multiple of the peer's."""
        theirs = middle(self.peer, lambda run: run.p99_us)
        return middle(self.eagleray, lambda run: run.p99_us) / theirs if theirs else 0.0

    @property
    def complaints(self) -> list[str]:
        """What keeps the row from passing."""
        found = []
        row = self.row
        if row.floor is not None and self.ratio < row.floor:
            found.append("too slow")
        if row.p99_ceiling is not None and self.p99_ratio > row.p99_ceiling:
            found.append("long tail")
        if any(run.errors for run in self.eagleray):
            found.append("errors")
        # Calls of a model come one by one where its author has written them so.
        batches = mean_batch(self.peer) is None or is_batched(self.peer)
        if row.work.concurrency == BATCHED_CONCURRENCY and batches and not is_batched(self.eagleray):
            found.append("not batched")
        return found

    @property
    def is_noisy(self) -> bool:
        """Whether no run of one of the servers had the machine to itself."""
        return any(all(run.stray_cores > MAX_STRAY_CORES for run in runs) for runs in (self.eagleray, self.peer))


def is_batched(runs: Sequence[Run]) -> bool:
    """Whether executions served several requests each."""
    batch = mean_batch(runs)
    return batch is not None and batch >= MIN_MEAN_BATCH


def quiet(runs: Sequence[Run]) -> Sequence[Run]:
    return [run for run in runs if run.stray_cores <= MAX_STRAY_CORES] or runs


def middle(runs: Sequence[Run], value: Callable[[Run], float]) -> float:
    return median(value(run) for run in quiet(runs))


def mean_batch(runs: Sequence[Run]) -> float | None:
    batches = [run.inferences_per_execution for run in runs if run.inferences_per_execution is not None]
    return median(batches) if batches else None


def print_comparisons(console: Console, comparisons: Sequence[Comparison]) -> None:
    table = Table(title="Eagleray beside its peer: medians; the peer's value after the stroke")
    for column in ("model", "protocol", "placement"):
        table.add_column(column, no_wrap=True)
    numeric = ("clients", "requests/s", "p50 µs", "p99 µs", "CPU µs", "memory MB", "batch", "ratio", "floor", "result")
    for column in numeric:
        table.add_column(column, justify="right", no_wrap=True)
    for comparison in comparisons:
        row = comparison.row
        work = row.work
        pairs = [
            pair(comparison, value)
            for value in (
                lambda run: run.throughput,
                lambda run: run.p50_us,
                lambda run: run.p99_us,
                lambda run: run.server_cpu_us,
                lambda run: run.memory_mb,
            )
        ]
        batches = " / ".join(
            "-" if batch is None else f"{batch:.1f}"
            for batch in (mean_batch(comparison.eagleray), mean_batch(comparison.peer))
        )
        ratio, floor = f"{comparison.ratio:.2f}", "-" if row.floor is None else f"{row.floor:.2f}"
        if work.rate_rps:
            ratio = f"p99 {comparison.p99_ratio:.2f}"
            floor = "-" if row.p99_ceiling is None else f"≤ {row.p99_ceiling:.1f}"
        protocol = work.protocol + (", shared memory" if work.shared_memory else "")
        clients = f"{work.concurrency}, {work.rate_rps}/s" if work.rate_rps else str(work.concurrency)
        cells = [models_of_row(row), protocol, row.placement, clients, *pairs, batches]
        table.add_row(*cells, ratio, floor, verdict(comparison, comparisons))
    console.print(table)


def models_of_row(row: Row) -> str:
    if row.peer == "bare":
        return f"{row.work.model} / ONNX Runtime"
    return row.work.model if row.work.model == row.peer_model else f"{row.work.model} / {row.peer_model}"


def pair(comparison: Comparison, value: Callable[[Run], float]) -> str:
    return f"{middle(comparison.eagleray, value):,.0f} / {middle(comparison.peer, value):,.0f}"


def shared_memory_gain(comparison: Comparison, comparisons: Sequence[Comparison]) -> float | None:
    """Return how many times faster a row by shared memory is than the same row without; None for other rows."""
    row = comparison.row
    if not row.work.shared_memory:
        return None
    without = replace(row.work, shared_memory=False)
    for other in comparisons:
        if other.row.placement == row.placement and other.row.work == without:
            return comparison.throughput / other.throughput
    return None


def complaints_of(comparison: Comparison, comparisons: Sequence[Comparison]) -> list[str]:
    """Return what keeps a row from passing, beside the peer and beside Eagleray's own other rows."""
    gain = shared_memory_gain(comparison, comparisons)
    slow = gain is not None and gain < MIN_SHARED_MEMORY_GAIN
    return comparison.complaints + ([f"{gain:.2f} x without"] if slow else [])


def verdict(comparison: Comparison, comparisons: Sequence[Comparison]) -> str:
    note = " (noisy machine)" if comparison.is_noisy else ""
    complaints = complaints_of(comparison, comparisons)
    if complaints:
        return f"[red]FAIL[/red]: {', '.join(complaints)}{note}"
    return (
        "-" if comparison.row.floor is None and comparison.row.p99_ceiling is None else "[green]pass[/green]"
    ) + note


def print_startups(console: Console, startups: Sequence[Startup]) -> None:
    table = Table(title="Start to ready, and memory when ready: medians, examples/model_repository, all models")
    table.add_column("placement")
    for column in ("seconds", "memory MB", "processes"):
        table.add_column(column, justify="right")
    for placement in dict.fromkeys(startup.placement for startup in startups):
        mine = [startup for startup in startups if startup.placement == placement]
        table.add_row(
            placement,
            f"{median(startup.ready_s for startup in mine):.1f}",
            f"{median(startup.memory_mb for startup in mine):,.0f}",
            f"{median(startup.process_count for startup in mine):.0f}",
        )
    console.print(table)
