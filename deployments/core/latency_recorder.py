"""Counts how long the requests of one model version take, where `--metrics-config` asks for more than sums."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final

from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.core.counts import (
    FIRST_RESPONSE,
    FIRST_RESPONSE_SUM,
    LATENCIES,
    SLOT_NS,
    SLOTS,
    SUMMARY,
    SUMMARY_BUCKETS,
    BucketCount,
    Label,
    NanosecondSum,
    Rows,
    SummaryCounts,
)
from deployments.core.metrics_options import MetricsOptions
from repository_loader.field_rules import FIRST_RESPONSE_FAMILY

FIRST_RESPONSE_BOUNDS_MS: Final = (100.0, 500.0, 2000.0, 5000.0)
_LONGEST_MS: Final = 1e12
REQUEST, QUEUE, INPUT, INFER, OUTPUT, CACHE_HIT, CACHE_MISS = range(len(LATENCIES))


def first_response_bounds(config: ModelConfig) -> Sequence[float]:
    """Return the buckets that a configuration sets for its first responses, or Triton's; in milliseconds.

    Those are left out that no duration, or every one, falls into.
    """
    for control in config.model_metrics.metric_control:
        if control.metric_identifier.family == FIRST_RESPONSE_FAMILY:
            return tuple(each for each in control.histogram_options.buckets if 0 <= each <= _LONGEST_MS)
    return FIRST_RESPONSE_BOUNDS_MS


class LatencyRecorder:
    """Takes durations in nanoseconds; `now_ns` is monotonic, on the clock of all processes of the node."""

    __slots__ = ("_buckets", "_label", "_rows", "_sum", "_summaries", "_upper_us")

    def __init__(
        self,
        name: str,
        version: int,
        rows: Rows,
        options: MetricsOptions,
        bounds_ms: Sequence[float],
        gpu_uuid: str = "",
    ) -> None:
        self._label = (name, version)
        self._rows = rows
        self._summaries: list[_Summary] | None = None
        if options.summaries:
            self._summaries = [_Summary(self._row(SUMMARY, number, gpu_uuid)) for number in range(CACHE_HIT)]
        self._upper_us: list[int] | None = None
        if options.histograms:
            self._upper_us = sorted({round(bound * 1000) for bound in bounds_ms})
            self._buckets: list[BucketCount] = [self._row(FIRST_RESPONSE, each) for each in (*self._upper_us, -1)]
            self._sum: NanosecondSum = self._row(FIRST_RESPONSE_SUM)

    def _row(self, kind: str, number: int = 0, gpu_uuid: str = "") -> Any:
        return self._rows.row(Label(kind, *self._label, number, gpu_uuid))

    def record_request(self, now_ns: int, duration_ns: int) -> None:
        """Count a request that has succeeded."""
        if self._summaries is not None:
            self._summaries[REQUEST].add(now_ns, duration_ns)

    def record_phases(self, now_ns: int, queue_ns: int, phases_ns: tuple[int, int, int]) -> None:
        """Count a request that has run, by its time in the queue and that of its batch: input, inference, output."""
        if self._summaries is not None:
            self._summaries[QUEUE].add(now_ns, queue_ns)
            for number, phase_ns in zip((INPUT, INFER, OUTPUT), phases_ns, strict=True):
                self._summaries[number].add(now_ns, phase_ns)

    def record_cache(self, now_ns: int, duration_ns: int, *, hit: bool) -> None:
        """Count a look into the response cache; that of a hit was its time in the queue."""
        summaries = self._summaries
        if summaries is not None:
            if len(summaries) == CACHE_HIT:
                summaries += [_Summary(self._row(SUMMARY, number)) for number in (CACHE_HIT, CACHE_MISS)]
            summaries[CACHE_HIT if hit else CACHE_MISS].add(now_ns, duration_ns)
            if hit:
                summaries[QUEUE].add(now_ns, duration_ns)

    def record_first_response(self, duration_ns: int) -> None:
        """Count how long a client has waited for its first response."""
        if self._upper_us is not None:
            self._buckets[bisect_left(self._upper_us, duration_ns / 1000)].count += 1
            self._sum.sum_ns += duration_ns


class _Summary:
    """Writes one row."""

    __slots__ = ("_cells", "_slot", "_start")

    def __init__(self, row: SummaryCounts) -> None:
        self._cells = row.cells
        self._slot = -1
        self._start = 0

    def add(self, now_ns: int, duration_ns: int) -> None:
        cells = self._cells
        slot = now_ns // SLOT_NS
        if slot != self._slot:
            self._turn_to(slot)
        cells[0] += 1
        cells[1] += duration_ns
        cells[self._start + bucket_of(duration_ns)] += 1

    def _turn_to(self, slot: int) -> None:
        """Empty the place of a slot, unless another summary of this process has begun it."""
        cells, place = self._cells, slot % SLOTS
        self._slot, self._start = slot, 2 + SLOTS + place * SUMMARY_BUCKETS
        if cells[2 + place] != slot:
            cells[self._start : self._start + SUMMARY_BUCKETS] = memoryview(bytes(8 * SUMMARY_BUCKETS)).cast("q")
            cells[2 + place] = slot


def bucket_of(duration_ns: int) -> int:
    """Return the bucket of a duration: four to each power of two, from 1,024 ns on."""
    units = duration_ns >> 10
    if units < 4:
        return max(units, 0)
    octave = units.bit_length()
    return min(4 * (octave - 2) + (units >> (octave - 3) & 3), SUMMARY_BUCKETS - 1)


def bucket_bounds_ns(bucket: int) -> tuple[int, int]:
    """Return the bounds of a bucket."""
    if bucket < 4:
        return bucket << 10, (bucket + 1) << 10
    shift = bucket // 4 - 1 + 10
    return (4 + bucket % 4) << shift, (5 + bucket % 4) << shift


def quantile_ns(row: SummaryCounts, quantile: float, now_ns: int) -> float:
    """Return a quantile of the last minute, NaN when nothing was counted in it; it is known to an eighth."""
    values, now = row.values(), now_ns // SLOT_NS
    counts = [0] * SUMMARY_BUCKETS
    for slot in range(SLOTS):
        if now - SLOTS < values[2 + slot] <= now:
            start = 2 + SLOTS + slot * SUMMARY_BUCKETS
            counts = [sum(pair) for pair in zip(counts, values[start : start + SUMMARY_BUCKETS], strict=True)]
    left = quantile * sum(counts)
    for bucket, count in enumerate(counts):
        if count and left <= count:
            low_ns, high_ns = bucket_bounds_ns(bucket)
            return low_ns + (high_ns - low_ns) * left / count
        left -= count
    return float("nan")
