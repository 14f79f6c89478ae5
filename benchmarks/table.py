"""The runs of all rounds become one line for each row: medians, the ratio to Triton, and whether it suffices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.load import Run
from benchmarks.rows import BATCHED_CONCURRENCY, MIN_MEAN_BATCH, Row
from benchmarks.startup import Startup

MAX_STRAY_CORES = 0.35
"""A run beside which more of the machine was busy with something else does not count, if there are others."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All runs of a row, by server."""

    row: Row
    eagleray: Sequence[Run]
    triton: Sequence[Run]

    @property
    def ratio(self) -> float:
        """Eagleray's throughput as a multiple of Triton's."""
        theirs = middle(self.triton, lambda run: run.throughput)
        return middle(self.eagleray, lambda run: run.throughput) / theirs if theirs else float("inf")

    @property
    def complaints(self) -> list[str]:
        """What keeps the row from passing."""
        found = []
        if self.row.floor is not None and self.ratio < self.row.floor:
            found.append("too slow")
        if any(run.errors for run in self.eagleray):
            found.append("errors")
        batch = mean_batch(self.eagleray)
        if self.row.concurrency == BATCHED_CONCURRENCY and (batch is None or batch < MIN_MEAN_BATCH):
            found.append("not batched")
        return found

    @property
    def is_noisy(self) -> bool:
        """Whether no run of one of the servers had the machine to itself."""
        return any(all(run.stray_cores > MAX_STRAY_CORES for run in runs) for runs in (self.eagleray, self.triton))


def quiet(runs: Sequence[Run]) -> Sequence[Run]:
    return [run for run in runs if run.stray_cores <= MAX_STRAY_CORES] or runs


def middle(runs: Sequence[Run], value: Callable[[Run], float]) -> float:
    return median(value(run) for run in quiet(runs))


def mean_batch(runs: Sequence[Run]) -> float | None:
    batches = [run.inferences_per_execution for run in runs if run.inferences_per_execution is not None]
    return median(batches) if batches else None


def print_comparisons(console: Console, comparisons: Sequence[Comparison]) -> None:
    table = Table(title="Eagleray beside Triton: medians; Triton's value after the stroke")
    for column in ("model", "protocol", "placement"):
        table.add_column(column, no_wrap=True)
    numeric = ("clients", "requests/s", "p50 µs", "p99 µs", "CPU µs", "memory MB", "batch", "ratio", "floor", "result")
    for column in numeric:
        table.add_column(column, justify="right", no_wrap=True)
    for comparison in comparisons:
        row = comparison.row
        name = row.model if row.model == row.triton_model else f"{row.model} / {row.triton_model}"
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
            for batch in (mean_batch(comparison.eagleray), mean_batch(comparison.triton))
        )
        floor = "-" if row.floor is None else f"{row.floor:.1f}"
        cells = [name, row.protocol, row.placement, str(row.concurrency), *pairs, batches]
        table.add_row(*cells, f"{comparison.ratio:.2f}", floor, verdict(comparison))
    console.print(table)


def pair(comparison: Comparison, value: Callable[[Run], float]) -> str:
    return f"{middle(comparison.eagleray, value):,.0f} / {middle(comparison.triton, value):,.0f}"


def verdict(comparison: Comparison) -> str:
    note = " (noisy machine)" if comparison.is_noisy else ""
    if comparison.complaints:
        return f"[red]FAIL[/red]: {', '.join(comparison.complaints)}{note}"
    return ("-" if comparison.row.floor is None else "[green]pass[/green]") + note


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
