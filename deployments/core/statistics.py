"""Counts what a model version does: its batches, its requests, the responses of a decoupled model."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, cast

from deployments.backends.backend import Batch
from deployments.core.counts import (
    BATCH_REASON,
    BATCH_SIZE,
    MODEL,
    QUEUE,
    RESPONSE,
    BatchReasons,
    BatchSizeCounts,
    Label,
    ModelCounts,
    QueueCounts,
    ResponseCounts,
    Rows,
    Totals,
)
from deployments.core.duration_buckets import BOUNDS_NS
from deployments.core.latency_recorder import LatencyRecorder
from deployments.core.metrics_options import MetricsOptions
from deployments.log.slow_requests import SLOW
from protocol.errors import Cancelled, ServingError
from protocol.infer import RESCHEDULED, InferRequest, InferResponse, StreamedResponse

REJECTED = "REJECTED"
CANCELED = "CANCELED"
BACKEND = "BACKEND"
OTHER = "OTHER"

_REASON_FIELDS = {
    REJECTED: "rejected_count",
    CANCELED: "canceled_count",
    BACKEND: "backend_count",
    OTHER: "other_count",
}
# Of a request's responses, those after the first so many are not counted one by one.
_MAX_RESPONSES = 1024


class ModelStatistics:
    """Counters of one model version; only the loop's thread touches them.

    A batch's durations are counted once for every request in it, as Triton counts them: a batch of 8 that computes for
    2 ms adds 16 ms. Of requests that were refused before they were queued, those that a full queue had no place for are
    counted, unless they came over a lane.
    """

    __slots__ = (
        "__weakref__",
        "_gpu_uuid",
        "_name",
        "_queue",
        "_reasons",
        "_version",
        "batches",
        "counts",
        "latencies",
        "responses",
        "rows",
    )

    def __init__(self, name: str, version: int, rows: Rows) -> None:
        self._name = name
        self._version = version
        self._gpu_uuid = ""
        self.rows = rows
        self.counts = self._model_row()
        self.batches: dict[int, BatchSizeCounts] = {}
        self.responses: list[ResponseCounts] = []
        self.latencies: LatencyRecorder | None = None
        self._open()

    @property
    def whose(self) -> tuple[str, int]:
        """Name and version of the model."""
        return self._name, self._version

    def _open(self) -> None:
        queue: QueueCounts = self._row(QUEUE)
        self._queue = queue.cells
        self._reasons: BatchReasons = self._row(BATCH_REASON)

    def _model_row(self) -> ModelCounts:
        return cast(ModelCounts, self.rows.row(Label(MODEL, self._name, self._version, gpu_uuid=self._gpu_uuid)))

    def _row(self, kind: str, number: int = 0) -> Any:
        return self.rows.row(Label(kind, self._name, self._version, number))

    def count_in(self, rows: Rows, gpu_uuid: str = "") -> None:
        """Go on counting in other rows, on top of what stands there for this model version on this GPU."""
        earlier, batches, responses = self.counts, self.batches, self.responses
        self.rows, self.batches, self.responses = rows, {}, []
        self._gpu_uuid = gpu_uuid
        self.counts = self._model_row()
        self._open()
        self.counts.add(earlier.values())
        self.counts.load_duration_ns = earlier.load_duration_ns
        self.counts.cache_count = earlier.cache_count
        for size, batch in batches.items():
            self._batch_size(size).add(batch.values())
        for index, response in enumerate(responses):
            self._response(index).add(response.values())

    def let_go(self) -> None:
        """Count for nobody from now on: the rows are to be those of others."""
        self.count_in(Totals(), self._gpu_uuid)
        self.latencies = None

    def record_latencies(self, options: MetricsOptions, bounds_ms: Sequence[float]) -> None:
        """Count latencies one by one from now on, where the options ask for that."""
        if options.summaries or options.histograms:
            self.latencies = LatencyRecorder(self._name, self._version, self.rows, options, bounds_ms, self._gpu_uuid)

    def _batch_size(self, rows: int) -> BatchSizeCounts:
        size = self.batches.get(rows)
        if size is None:
            size = self.batches[rows] = self._row(BATCH_SIZE, rows)
        return size

    def _response(self, index: int) -> ResponseCounts:
        if index == len(self.responses):
            self.responses.append(self._row(RESPONSE, index))
        return self.responses[index]

    def count_pending(self, change: int) -> None:
        """Count so many requests more, or fewer, among those that wait for an instance."""
        self.counts.pending_count += change

    def record_batch(self, batch: Batch) -> None:
        """Count a batch that has run, and every request in it."""
        start_ns = batch.start_ns
        end_ns = batch.end_ns
        count = again = request_ns = queue_ns = rows = 0
        waited = self._queue
        if batch.answered:
            # Whether these succeed is known when their last response has come: `record_stream`, `record_late`.
            for request in batch.requests:
                waited_ns = start_ns - request.queued_ns
                waited[1 + bisect_left(BOUNDS_NS, waited_ns)] += 1
                queue_ns += waited_ns
                rows += request.rows  # those of the batch may be more: slots in which no request runs
            count = len(batch.requests)
        for request, result in zip(batch.requests, batch.results, strict=not batch.answered):
            if isinstance(result, ServingError):
                request.started_ns = 0  # the failure is counted here, also where an earlier run has rescheduled it
                self.record_failure(failure_reason(request, result), end_ns - request.received_ns)
            else:
                count += 1
                rows += request.rows
                if request.flags & RESCHEDULED:
                    again += 1
                else:
                    request_ns += end_ns - request.received_ns
                waited_ns = start_ns - request.queued_ns
                waited[1 + bisect_left(BOUNDS_NS, waited_ns)] += 1
                queue_ns += waited_ns
        if not count:
            return
        input_ns = batch.infer_start_ns - start_ns
        infer_ns = batch.infer_end_ns - batch.infer_start_ns
        output_ns = end_ns - batch.infer_end_ns
        counts = self.counts
        if not batch.answered:
            counts.success_count += count - again
            counts.success_ns += request_ns
            if request_ns > SLOW.threshold_ns:
                self._tell_slow(batch, (input_ns, infer_ns, output_ns))
        counts.queue_ns += queue_ns
        waited[0] += queue_ns
        if batch.reason:
            setattr(self._reasons, batch.reason, getattr(self._reasons, batch.reason) + 1)
        counts.compute_count += count
        counts.compute_input_ns += input_ns * count
        counts.compute_infer_ns += infer_ns * count
        counts.compute_output_ns += output_ns * count
        counts.inference_count += rows
        counts.execution_count += 1
        counts.last_inference_ns = start_ns
        size = self._batch_size(batch.rows)
        size.count += 1
        size.input_ns += input_ns
        size.infer_ns += infer_ns
        size.output_ns += output_ns
        if self.latencies is not None:
            self._record_each(self.latencies, batch, (input_ns, infer_ns, output_ns))

    def _tell_slow(self, batch: Batch, phases_ns: tuple[int, int, int]) -> None:
        """Log those requests of a batch that took long; together they took as long as one that does."""
        for request, result in zip(batch.requests, batch.results, strict=True):
            total_ns = batch.end_ns - request.received_ns
            if total_ns > SLOW.threshold_ns and _has_succeeded(request, result):
                stages_ns = (batch.start_ns - request.queued_ns, *phases_ns, total_ns)
                SLOW.tell(self._name, self._version, request.id, batch.rows, batch.end_ns, stages_ns, request.trace)

    @staticmethod
    def _record_each(latencies: LatencyRecorder, batch: Batch, phases_ns: tuple[int, int, int]) -> None:
        results = [None] * len(batch.requests) if batch.answered else batch.results
        for request, result in zip(batch.requests, results, strict=True):
            if isinstance(result, ServingError):
                continue
            latencies.record_phases(batch.end_ns, batch.start_ns - request.queued_ns, phases_ns)
            if result is not None and _has_succeeded(request, result):
                latencies.record_request(batch.end_ns, batch.end_ns - request.received_ns)
                latencies.record_first_response(batch.end_ns - request.received_ns)

    def record_stream(self, now_ns: int, request: InferRequest) -> None:
        """Count a request whose last response has come after its batch."""
        duration_ns = now_ns - request.received_ns
        if duration_ns > SLOW.threshold_ns:
            stages_ns = (request.started_ns - request.queued_ns, 0, now_ns - request.started_ns, 0, duration_ns)
            SLOW.tell(self._name, self._version, request.id, request.rows, now_ns, stages_ns, request.trace)
        self.counts.success_count += 1
        self.counts.success_ns += duration_ns
        if self.latencies is not None:
            self.latencies.record_request(now_ns, duration_ns)

    def record_late(self, now_ns: int, request: InferRequest, result: InferResponse | ServingError) -> None:
        """Count a request that was answered after its batch had left the instance."""
        duration_ns = now_ns - request.received_ns
        if isinstance(result, ServingError):
            self.record_failure(failure_reason(request, result), duration_ns)
            return
        self.record_stream(now_ns, request)
        if self.latencies is not None:
            self.latencies.record_first_response(duration_ns)

    def record_cache_hit(self, now_ns: int, request_ns: int, look_up_ns: int) -> None:
        """Count a request that the response cache has answered."""
        counts = self.counts
        counts.success_count += 1
        counts.success_ns += request_ns
        counts.queue_ns += look_up_ns
        counts.cache_hit_count += 1
        counts.cache_hit_ns += look_up_ns
        if self.latencies is not None:
            self.latencies.record_request(now_ns, request_ns)
            self.latencies.record_cache(now_ns, look_up_ns, hit=True)
            self.latencies.record_first_response(request_ns)

    def record_cache_miss(self, now_ns: int, duration_ns: int) -> None:
        """Count a response that the cache keeps from now on; the look-up before it is part of the duration."""
        self.counts.cache_miss_count += 1
        self.counts.cache_miss_ns += duration_ns
        if self.latencies is not None:
            self.latencies.record_cache(now_ns, duration_ns, hit=False)

    def record_response(
        self, request: InferRequest, index: int, duration_ns: int, result: InferResponse | ServingError
    ) -> None:
        """Count a decoupled model's response, `duration_ns` after the one before it or after its model began."""
        if index > len(self.responses) or index >= _MAX_RESPONSES:
            return
        each = self._response(index)
        if request.cancelled:
            each.cancel_count += 1
            each.cancel_ns += duration_ns
        elif not isinstance(result, StreamedResponse):
            each.fail_count += 1
            each.fail_ns += duration_ns
        elif result.outputs:
            # Another thread has read the outputs, and may have begun before the loop had heard of the last response.
            output_ns = min(result.output_ns, duration_ns)
            each.success_count += 1
            each.infer_ns += duration_ns - output_ns
            each.output_ns += output_ns
        else:
            each.empty_count += 1
            each.empty_ns += duration_ns

    def record_failure(self, reason: str, duration_ns: int) -> None:
        """Count a request that failed; `reason` is REJECTED, CANCELED, BACKEND or OTHER."""
        field = _REASON_FIELDS[reason]
        setattr(self.counts, field, getattr(self.counts, field) + 1)
        self.counts.failures_ns += duration_ns


def _has_succeeded(request: InferRequest, result: InferResponse | ServingError) -> bool:
    """Whether this is the answer of a request, which one has not that is to run again."""
    return not isinstance(result, ServingError) and not request.flags & RESCHEDULED


def failure_reason(request: InferRequest, error: ServingError) -> str:
    """Return what an instance's error counts as: CANCELED where it says no more than that the client has left."""
    return CANCELED if request.cancelled and isinstance(error, Cancelled) else BACKEND
