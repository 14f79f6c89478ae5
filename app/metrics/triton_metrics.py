"""Triton's `nv_*` families, with its names, types, labels and texts (`core/src/metrics.cc`)."""

import time
from collections.abc import Callable
from functools import lru_cache
from itertools import groupby
from typing import Final

from app.metrics.exposition import Exposition, Sample, escape, number
from deployments.core.counts import (
    FIRST_RESPONSE,
    FIRST_RESPONSE_SUM,
    LATENCIES,
    MODEL,
    SUMMARY,
    Label,
    ModelCounts,
    RowsByKind,
    SummaryCounts,
    by_version,
)
from deployments.core.latency_recorder import quantile_ns
from deployments.core.metrics_options import MetricsOptions
from repository_loader.field_rules import FIRST_RESPONSE_FAMILY

_Versions = list[tuple[str, ModelCounts]]

_COUNTS: Final[tuple[tuple[str, str, Callable[[ModelCounts], int]], ...]] = (
    (
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        lambda counts: counts.inference_count,
    ),
    (
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        lambda counts: counts.execution_count,
    ),
)
_DURATIONS: Final[tuple[tuple[str, str, Callable[[ModelCounts], int]], ...]] = (
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda counts: counts.success_ns + counts.failures_ns,
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        lambda counts: counts.queue_ns,
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda counts: counts.compute_input_ns,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda counts: counts.compute_infer_ns,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda counts: counts.compute_output_ns,
    ),
)
_REASONS: Final[tuple[tuple[str, Callable[[ModelCounts], int]], ...]] = (
    ("REJECTED", lambda counts: counts.rejected_count),
    ("CANCELED", lambda counts: counts.canceled_count),
    ("BACKEND", lambda counts: counts.backend_count),
    ("OTHER", lambda counts: counts.other_count),
)


def _failed_count(counts: ModelCounts) -> int:
    return sum(count(counts) for _, count in _REASONS)


_ALIASES: Final[tuple[tuple[str, str, Callable[[ModelCounts], int]], ...]] = (
    (
        "triton_infer_request_duration_us",
        "nv_inference_request_duration_us by another name",
        lambda counts: (counts.success_ns + counts.failures_ns) // 1000,
    ),
    (
        "triton_infer_queue_duration_us",
        "nv_inference_queue_duration_us by another name",
        lambda counts: counts.queue_ns // 1000,
    ),
    (
        "triton_infer_compute_duration_us",
        "The sum of nv_inference_compute_input, infer and output_duration_us",
        lambda counts: (counts.compute_input_ns + counts.compute_infer_ns + counts.compute_output_ns) // 1000,
    ),
    (
        "triton_infer_total_request_count",
        "nv_inference_request_success and nv_inference_request_failure together",
        lambda counts: counts.success_count + _failed_count(counts),
    ),
    (
        "triton_infer_success_count",
        "nv_inference_request_success by another name",
        lambda counts: counts.success_count,
    ),
    ("triton_infer_failure_count", "The sum of nv_inference_request_failure over its reasons", _failed_count),
)
_SUMMARIES: Final = dict(
    zip(
        LATENCIES,
        (
            ("nv_inference_request_summary_us", "Summary of inference request duration in microseconds"),
            ("nv_inference_queue_summary_us", "Summary of inference queuing duration in microseconds"),
            ("nv_inference_compute_input_summary_us", "Summary of compute input duration in microseconds"),
            ("nv_inference_compute_infer_summary_us", "Summary of compute inference duration in microseconds"),
            ("nv_inference_compute_output_summary_us", "Summary of compute output duration in microseconds"),
            ("nv_cache_hit_summary_per_model", "Summary of cache hit duration per model, in microseconds"),
            ("nv_cache_miss_summary_per_model", "Summary of cache miss duration per model, in microseconds"),
        ),
        strict=True,
    )
)


def write_models(
    out: Exposition, rows: RowsByKind, labels_of: Callable[[str, int], str], options: MetricsOptions
) -> None:
    """Write what was counted of models; a version that no living process has loaded has no load duration.

    What instances do is told by GPU, where they have one (`gpu_uuid`); what is done before and beside them is not.
    """
    versions = _versions(rows, labels_of)
    devices = _devices(rows, labels_of)
    out.family(
        "nv_inference_request_success",
        "counter",
        "Number of successful inference requests, all batch sizes",
        ((labels, counts.success_count) for labels, counts in devices),
    )
    out.family(
        "nv_inference_request_failure",
        "counter",
        "Number of failed inference requests, all batch sizes",
        (
            (_with_reason(labels, reason), count(counts))
            for reason, count in _REASONS
            for labels, counts in (devices if reason == "BACKEND" else versions)
        ),
    )
    for name, text, count in _COUNTS:
        out.family(name, "counter", text, ((labels, count(counts)) for labels, counts in devices))
    for name, text, duration_ns in _DURATIONS if options.counters else ():
        out.family(name, "counter", text, ((labels, duration_ns(counts) // 1000) for labels, counts in devices))
    out.family(
        "nv_inference_pending_request_count",
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
        ((labels, counts.pending_count) for labels, counts in versions),
    )
    out.family(
        "nv_model_load_duration_secs",
        "gauge",
        "Model load time in seconds",
        ((labels, counts.load_duration_ns / 1e9) for labels, counts in versions if counts.load_duration_ns),
    )
    _write_cache(out, versions, options)
    if options.summaries:
        _write_summaries(out, rows, labels_of, options)
    if options.histograms:
        _write_first_responses(out, rows, labels_of)


def _versions(rows: RowsByKind, labels_of: Callable[[str, int], str]) -> _Versions:
    return [(labels_of(*version), counts) for version, counts in by_version(rows.get(MODEL, ())).items()]


def _devices(rows: RowsByKind, labels_of: Callable[[str, int], str]) -> _Versions:
    return [(_device(label, labels_of), counts) for label, counts in rows.get(MODEL, ())]


def _device(label: Label, labels_of: Callable[[str, int], str]) -> str:
    labels = labels_of(label.name, label.version)
    return f'gpu_uuid="{escape(label.gpu_uuid)}",{labels}' if label.gpu_uuid else labels


def _with_reason(labels: str, reason: str) -> str:
    """Add a label where Triton has it, in the order of the names: scripts look for whole lines."""
    model, separator, version = labels.partition(',version="')  # a quote within a value is escaped
    return f'{model},reason="{reason}"{separator}{version}'


def _write_cache(out: Exposition, versions: _Versions, options: MetricsOptions) -> None:
    cached = [row for row in versions if row[1].cache_count or row[1].cache_hit_count or row[1].cache_miss_count]

    def of(value: Callable[[ModelCounts], int]) -> list[Sample]:
        return [(labels, value(counts)) for labels, counts in cached]

    hits, misses = of(lambda counts: counts.cache_hit_count), of(lambda counts: counts.cache_miss_count)
    out.family("nv_cache_num_hits_per_model", "counter", "Number of cache hits per model", hits)
    out.family("nv_cache_num_misses_per_model", "counter", "Number of cache misses per model", misses)
    if options.counters:
        durations = of(lambda counts: counts.cache_hit_ns // 1000)
        text = "Total cache hit duration per model, in microseconds"
        out.family("nv_cache_hit_duration_per_model", "counter", text, durations)
        durations = of(lambda counts: counts.cache_miss_ns // 1000)
        text = "Total cache miss duration per model, in microseconds"
        out.family("nv_cache_miss_duration_per_model", "counter", text, durations)


def _write_summaries(
    out: Exposition, rows: RowsByKind, labels_of: Callable[[str, int], str], options: MetricsOptions
) -> None:
    """Write quantiles of the last minute; as Triton's, those of whole requests are left out where a cache answers."""
    now_ns = time.monotonic_ns()
    found: dict[int, list[tuple[Label, SummaryCounts]]] = {number: [] for number in range(len(LATENCIES))}
    for label, row in rows.get(SUMMARY, ()):
        found[label.number].append((label, row))
    cached = {(label.name, label.version) for label, counts in rows.get(MODEL, ()) if counts.cache_count}

    def summary(each: tuple[Label, SummaryCounts]) -> tuple[str, list[tuple[float, float]], int, float]:
        label, row = each
        values = [(quantile, quantile_ns(row, quantile, now_ns) / 1000) for quantile in options.quantiles]
        return _device(label, labels_of), values, row.count, row.sum_ns // 1000

    for place, counted in found.items():
        name, text = _SUMMARIES[LATENCIES[place]]
        shown = counted if place else [each for each in counted if (each[0].name, each[0].version) not in cached]
        out.summaries(name, text, map(summary, shown))


def _write_first_responses(out: Exposition, rows: RowsByKind, labels_of: Callable[[str, int], str]) -> None:
    out.family(FIRST_RESPONSE_FAMILY, "histogram", "Duration from request to first response in milliseconds")
    sums_ns = {(label.name, label.version): row.sum_ns for label, row in rows.get(FIRST_RESPONSE_SUM, ())}
    for version, buckets in groupby(rows.get(FIRST_RESPONSE, ()), lambda each: each[0][1:3]):
        counted = [(label.number, row.count) for label, row in buckets]
        if counted[0][0] < 0:  # the one without a bound, which sorts first
            counted.append(counted.pop(0))
        bounds_us, counts = zip(*counted, strict=True)
        sum_ms = sums_ns.get(version, 0) / 1e6
        out.histogram(FIRST_RESPONSE_FAMILY, labels_of(*version), _bounds_ms(bounds_us[:-1]), [*counts], sum_ms)


@lru_cache(maxsize=1024)
def _bounds_ms(bounds_us: tuple[int, ...]) -> list[str]:
    return [number(bound / 1000) for bound in bounds_us]


def write_aliases(out: Exposition, rows: RowsByKind, labels_of: Callable[[str, int], str]) -> None:
    """Write the names `triton_infer_*` that some dashboards use, which no Triton has."""
    versions = _versions(rows, labels_of)
    for name, text, value in _ALIASES:
        out.family(name, "counter", text, ((labels, value(counts)) for labels, counts in versions))
