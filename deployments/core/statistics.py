"""What a model version has done, in plain integers; shown as Triton's statistics object and as metrics."""

import time
from collections.abc import Iterable
from typing import Any

from deployments.backends.backend import Batch
from protocol.errors import ServingError
from protocol.infer import InferRequest, InferResponse, StreamedResponse

REJECTED = "REJECTED"
CANCELED = "CANCELED"
BACKEND = "BACKEND"
OTHER = "OTHER"
REASONS = (REJECTED, CANCELED, BACKEND, OTHER)

_PHASES = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
_RESPONSE_PHASES = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")
# Of a request's responses, those after the first so many are not counted one by one.
_MAX_RESPONSES = 1024
_BATCH_PHASES = ("compute_input", "compute_infer", "compute_output")


class BatchSizeStatistics:
    """What the batches of one size cost: how many there were, and nanoseconds by phase."""

    __slots__ = ("count", "infer_ns", "input_ns", "output_ns")

    def __init__(self) -> None:
        self.count = 0
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0


class ResponseStatistics:
    """What the n-th responses to requests of a decoupled model cost: how often there was one, and nanoseconds."""

    __slots__ = (
        "cancel_count",
        "cancel_ns",
        "empty_count",
        "empty_ns",
        "fail_count",
        "fail_ns",
        "infer_ns",
        "output_ns",
        "success_count",
    )

    def __init__(self) -> None:
        self.cancel_count = 0
        self.cancel_ns = 0
        self.success_count = 0
        self.infer_ns = 0
        self.output_ns = 0
        self.fail_count = 0
        self.fail_ns = 0
        self.empty_count = 0
        self.empty_ns = 0


class ModelStatistics:
    """Counters of one model version; only the loop's thread touches them.

    A batch's durations are counted once for every request in it, as Triton counts them: a batch of 8 that computes for
    2 ms adds 16 ms. Requests that were refused before they were queued are not counted at all.
    """

    __slots__ = (
        "batches",
        "cache_hit_count",
        "cache_hit_ns",
        "cache_miss_count",
        "cache_miss_ns",
        "compute_count",
        "compute_infer_ns",
        "compute_input_ns",
        "compute_output_ns",
        "execution_count",
        "failures",
        "failures_ns",
        "inference_count",
        "last_inference_ns",
        "load_duration_ns",
        "pending_count",
        "queue_ns",
        "responses",
        "success_count",
        "success_ns",
    )

    def __init__(self) -> None:
        self.success_count = 0
        self.success_ns = 0
        self.queue_ns = 0
        self.compute_count = 0
        self.compute_input_ns = 0
        self.compute_infer_ns = 0
        self.compute_output_ns = 0
        self.cache_hit_count = 0
        self.cache_hit_ns = 0
        self.cache_miss_count = 0
        self.cache_miss_ns = 0
        self.inference_count = 0
        self.execution_count = 0
        self.last_inference_ns = 0
        self.load_duration_ns = 0
        self.pending_count = 0
        self.failures = dict.fromkeys(REASONS, 0)
        self.failures_ns = 0
        self.batches: dict[int, BatchSizeStatistics] = {}
        self.responses: list[ResponseStatistics] = []

    def record_batch(self, batch: Batch) -> None:
        """Count a batch that has run, and every request in it."""
        start_ns = batch.start_ns
        end_ns = batch.end_ns
        count = request_ns = queue_ns = rows = 0
        if batch.answered:
            # Whether these succeed is known when their last response has come: `record_stream`.
            for request in batch.requests:
                queue_ns += start_ns - request.queued_ns
            rows = batch.rows
            count = len(batch.requests)
        for request, result in zip(batch.requests, batch.results, strict=not batch.answered):
            if isinstance(result, ServingError):
                self.record_failure(BACKEND, end_ns - request.received_ns)
            else:
                count += 1
                rows += request.rows
                request_ns += end_ns - request.received_ns
                queue_ns += start_ns - request.queued_ns
        if not count:
            return
        input_ns = batch.infer_start_ns - start_ns
        infer_ns = batch.infer_end_ns - batch.infer_start_ns
        output_ns = end_ns - batch.infer_end_ns
        if not batch.answered:
            self.success_count += count
            self.success_ns += request_ns
        self.queue_ns += queue_ns
        self.compute_count += count
        self.compute_input_ns += input_ns * count
        self.compute_infer_ns += infer_ns * count
        self.compute_output_ns += output_ns * count
        self.inference_count += rows
        self.execution_count += 1
        self.last_inference_ns = start_ns
        size = self.batches.get(batch.rows)
        if size is None:
            size = self.batches[batch.rows] = BatchSizeStatistics()
        size.count += 1
        size.input_ns += input_ns
        size.infer_ns += infer_ns
        size.output_ns += output_ns

    def record_stream(self, duration_ns: int) -> None:
        """Count a decoupled model's request whose last response has come."""
        self.success_count += 1
        self.success_ns += duration_ns

    def record_response(
        self, request: InferRequest, index: int, duration_ns: int, result: InferResponse | ServingError
    ) -> None:
        """Count a decoupled model's response, `duration_ns` after the one before it or after its model began."""
        responses = self.responses
        if index == len(responses) and index < _MAX_RESPONSES:
            responses.append(ResponseStatistics())
        if index >= len(responses):
            return
        each = responses[index]
        if request.cancelled:
            each.cancel_count += 1
            each.cancel_ns += duration_ns
        elif not isinstance(result, StreamedResponse):
            each.fail_count += 1
            each.fail_ns += duration_ns
        elif result.outputs:
            each.success_count += 1
            each.infer_ns += duration_ns - result.output_ns
            each.output_ns += result.output_ns
        else:
            each.empty_count += 1
            each.empty_ns += duration_ns

    def record_failure(self, reason: str, duration_ns: int) -> None:
        """Count a queued request that failed; `reason` is one of `REASONS`."""
        self.failures[reason] += 1
        self.failures_ns += duration_ns

    def record_cache_hit(self, request: InferRequest, lookup_ns: int, end_ns: int) -> None:
        """Count a request that the response cache answered: a success that ran nothing."""
        self.success_count += 1
        self.success_ns += end_ns - request.received_ns
        self.queue_ns += end_ns - lookup_ns - request.queued_ns
        self.cache_hit_count += 1
        self.cache_hit_ns += lookup_ns

    def record_cache_miss(self, duration_ns: int) -> None:
        """Count a look-up that found nothing, with the insertion that followed."""
        self.cache_miss_count += 1
        self.cache_miss_ns += duration_ns

    def snapshot(self, name: str, version: int, now_ns: int) -> dict[str, Any]:
        """Return Triton's statistics object of the version, JSON-safe, with our own `metrics` beside it.

        `now_ns` is the clock's time; with it monotonic times become milliseconds since the epoch.
        """
        epoch_ns = time.time_ns() - now_ns
        fail_count = sum(self.failures.values())
        return {
            "name": name,
            "version": str(version),
            "last_inference": (epoch_ns + self.last_inference_ns) // 1_000_000 if self.last_inference_ns else 0,
            "inference_count": self.inference_count,
            "execution_count": self.execution_count,
            "inference_stats": {
                "success": _duration(self.success_count, self.success_ns),
                "fail": _duration(fail_count, self.failures_ns),
                "queue": _duration(self.success_count, self.queue_ns),
                "compute_input": _duration(self.compute_count, self.compute_input_ns),
                "compute_infer": _duration(self.compute_count, self.compute_infer_ns),
                "compute_output": _duration(self.compute_count, self.compute_output_ns),
                "cache_hit": _duration(self.cache_hit_count, self.cache_hit_ns),
                "cache_miss": _duration(self.cache_miss_count, self.cache_miss_ns),
            },
            "response_stats": {str(index): _response(each) for index, each in enumerate(self.responses)},
            "batch_stats": [_batch_size(rows, size) for rows, size in sorted(self.batches.items())],
            "memory_usage": [],
            "metrics": {
                "failures": dict(self.failures),
                "pending_count": self.pending_count,
                "load_duration_ns": self.load_duration_ns,
                "request_duration_ns": self.success_ns + self.failures_ns,
            },
        }


def merge(snapshots: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return one snapshot that sums those of several replicas of one model version.

    The last inference is the latest, the load duration the longest.

    Raises:
        ValueError: there is none to sum.
    """
    replicas = list(snapshots)
    if not replicas:
        raise ValueError("no snapshot to merge")
    first = replicas[0]
    metrics = [replica["metrics"] for replica in replicas]
    return {
        "name": first["name"],
        "version": first["version"],
        "last_inference": max(replica["last_inference"] for replica in replicas),
        "inference_count": sum(replica["inference_count"] for replica in replicas),
        "execution_count": sum(replica["execution_count"] for replica in replicas),
        "inference_stats": _sum_phases([replica["inference_stats"] for replica in replicas], _PHASES),
        "response_stats": _merge_responses(replicas),
        "batch_stats": _merge_batches(replicas),
        "memory_usage": [usage for replica in replicas for usage in replica["memory_usage"]],
        "metrics": {
            "failures": {reason: sum(each["failures"].get(reason, 0) for each in metrics) for reason in REASONS},
            "pending_count": sum(each["pending_count"] for each in metrics),
            "load_duration_ns": max(each["load_duration_ns"] for each in metrics),
            "request_duration_ns": sum(each["request_duration_ns"] for each in metrics),
        },
    }


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}


def _batch_size(rows: int, size: BatchSizeStatistics) -> dict[str, Any]:
    return {
        "batch_size": rows,
        "compute_input": _duration(size.count, size.input_ns),
        "compute_infer": _duration(size.count, size.infer_ns),
        "compute_output": _duration(size.count, size.output_ns),
    }


def _response(each: ResponseStatistics) -> dict[str, Any]:
    return {
        "compute_infer": _duration(each.success_count, each.infer_ns),
        "compute_output": _duration(each.success_count, each.output_ns),
        "success": _duration(each.success_count, each.infer_ns + each.output_ns),
        "fail": _duration(each.fail_count, each.fail_ns),
        "empty_response": _duration(each.empty_count, each.empty_ns),
        "cancel": _duration(each.cancel_count, each.cancel_ns),
    }


def _sum_phases(parts: list[dict[str, Any]], phases: tuple[str, ...]) -> dict[str, Any]:
    return {
        phase: _duration(sum(part[phase]["count"] for part in parts), sum(part[phase]["ns"] for part in parts))
        for phase in phases
    }


def _merge_batches(replicas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_size: dict[int, list[dict[str, Any]]] = {}
    for replica in replicas:
        for entry in replica["batch_stats"]:
            by_size.setdefault(entry["batch_size"], []).append(entry)
    return [{"batch_size": size, **_sum_phases(by_size[size], _BATCH_PHASES)} for size in sorted(by_size)]


def _merge_responses(replicas: list[dict[str, Any]]) -> dict[str, Any]:
    by_index: dict[str, list[dict[str, Any]]] = {}
    for replica in replicas:
        for index, entry in replica["response_stats"].items():
            by_index.setdefault(index, []).append(entry)
    return {index: _sum_phases(by_index[index], _RESPONSE_PHASES) for index in sorted(by_index, key=int)}
