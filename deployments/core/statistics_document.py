"""Counted rows as Triton's statistics objects."""

from typing import Any, cast

from deployments.core.counts import BATCH_SIZE, RESPONSE, BatchSizeCounts, ModelCounts, ResponseCounts, Totals


def documents(totals: Totals) -> list[dict[str, Any]]:
    """Return one JSON-safe object for each model version, by name and version.

    The time of a last inference in `totals` is nanoseconds since the epoch.
    """
    found = {version: _model(version, counts) for version, counts in totals.models().items()}
    for label in sorted(label for label in totals.rows if label.kind in (BATCH_SIZE, RESPONSE)):
        row, document = totals.rows[label], found[label.name, label.version]
        if label.kind == BATCH_SIZE:
            document["batch_stats"].append(_batch_size(label.number, cast(BatchSizeCounts, row)))
        else:
            document["response_stats"][str(label.number)] = _response(cast(ResponseCounts, row))
    return list(found.values())


def _model(version: tuple[str, int], counts: ModelCounts) -> dict[str, Any]:
    fail_count = counts.rejected_count + counts.canceled_count + counts.backend_count + counts.other_count
    return {
        "name": version[0],
        "version": str(version[1]),
        "last_inference": counts.last_inference_ns // 1_000_000,
        "inference_count": counts.inference_count,
        "execution_count": counts.execution_count,
        "inference_stats": {
            "success": _duration(counts.success_count, counts.success_ns),
            "fail": _duration(fail_count, counts.failures_ns),
            "queue": _duration(counts.success_count, counts.queue_ns),
            "compute_input": _duration(counts.compute_count, counts.compute_input_ns),
            "compute_infer": _duration(counts.compute_count, counts.compute_infer_ns),
            "compute_output": _duration(counts.compute_count, counts.compute_output_ns),
            "cache_hit": _duration(counts.cache_hit_count, counts.cache_hit_ns),
            "cache_miss": _duration(counts.cache_miss_count, counts.cache_miss_ns),
        },
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }


def _batch_size(rows: int, counts: BatchSizeCounts) -> dict[str, Any]:
    return {
        "batch_size": rows,
        "compute_input": _duration(counts.count, counts.input_ns),
        "compute_infer": _duration(counts.count, counts.infer_ns),
        "compute_output": _duration(counts.count, counts.output_ns),
    }


def _response(counts: ResponseCounts) -> dict[str, Any]:
    return {
        "compute_infer": _duration(counts.success_count, counts.infer_ns),
        "compute_output": _duration(counts.success_count, counts.output_ns),
        "success": _duration(counts.success_count, counts.infer_ns + counts.output_ns),
        "fail": _duration(counts.fail_count, counts.fail_ns),
        "empty_response": _duration(counts.empty_count, counts.empty_ns),
        "cancel": _duration(counts.cancel_count, counts.cancel_ns),
    }


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}
