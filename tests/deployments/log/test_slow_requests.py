"""Requests that take long are in the log, with their stages."""

import json
from pathlib import Path

import pytest

from deployments.backends.backend import Batch
from deployments.core.counts import Totals
from deployments.core.statistics import ModelStatistics
from deployments.log.log_options import LogOptions
from deployments.log.process_log import ProcessLog
from protocol.errors import Internal
from protocol.infer import InferResponse
from protocol.trace import TIMESTAMPS, Trace
from tests.deployments.fakes import Answers

MS = 1_000_000
S = 1000 * MS


@pytest.fixture(autouse=True)
def log(serve_log: Path) -> ProcessLog:
    return ProcessLog(LogOptions(log_format="json", log_slow_requests_ms=100))


def batch_of(*received_ms: int, failed: int = 0, now_ns: int = S) -> Batch:
    """A batch whose requests were received so long before its end; 3 ms of input, 50 of inference, 2 of output."""
    batch = Batch([Answers().request(f"r{index}", 2) for index in range(len(received_ms))], 2 * len(received_ms))
    batch.end_ns = now_ns
    batch.infer_end_ns = batch.end_ns - 2 * MS
    batch.infer_start_ns = batch.infer_end_ns - 50 * MS
    batch.start_ns = batch.infer_start_ns - 3 * MS
    for request, ago_ms in zip(batch.requests, received_ms, strict=True):
        request.received_ns = batch.end_ns - ago_ms * MS
        request.queued_ns = request.received_ns + 1 * MS
    batch.results = [Internal("no") if index < failed else InferResponse({}) for index in range(len(received_ms))]
    return batch


def test_a_request_over_the_threshold_is_told_with_its_stages(serve_log: Path) -> None:
    statistics = ModelStatistics("simple", 3, Totals())
    batch = batch_of(60, 99, 156)
    batch.requests[2].trace = Trace(TIMESTAMPS, 0xABC, 0xDEF)
    statistics.record_batch(batch)
    statistics.record_batch(batch_of(500, 60, failed=1))
    [row] = map(json.loads, serve_log.read_text().splitlines())
    assert (row["level"], row["model"], row["version"], row["request_id"]) == ("WARNING", "simple", 3, "r2")
    stages = {"queue": 100.0, "compute_input": 3.0, "compute_infer": 50.0, "compute_output": 2.0, "total": 156.0}
    assert (row["stages_ms"], row["batch_rows"]) == (stages, 6)
    assert (row["trace_id"], row["span_id"]) == (f"{0xABC:032x}", f"{0xDEF:016x}")
    assert row["message"] == (
        "slow request with id 'r2' of model 'simple' version 3: 156 ms "
        "(queue 100, compute input 3, compute infer 50, compute output 2; batch of 6)"
    )


def test_a_slow_request_of_a_decoupled_model_is_told(serve_log: Path) -> None:
    request = Answers().request("stream", 1)
    request.received_ns, request.queued_ns, request.started_ns = S, S + 1 * MS, S + 41 * MS
    ModelStatistics("many", 1, Totals()).record_stream(S + 341 * MS, request)
    [row] = map(json.loads, serve_log.read_text().splitlines())
    assert (row["request_id"], row["stages_ms"]["queue"], row["stages_ms"]["total"]) == ("stream", 40.0, 341.0)


def test_a_second_has_ten_lines_and_the_next_counts_the_others(serve_log: Path) -> None:
    statistics = ModelStatistics("simple", 1, Totals())
    for _ in range(50):
        statistics.record_batch(batch_of(200, now_ns=5 * S))
    statistics.record_batch(batch_of(200, now_ns=6 * S))
    lines = serve_log.read_text().splitlines()
    assert len(lines) == 11
    assert json.loads(lines[-1])["message"].endswith("; 40 more before it are left out")


def test_nothing_is_told_without_a_threshold(serve_log: Path, log: ProcessLog) -> None:
    log.apply(LogOptions())
    ModelStatistics("simple", 1, Totals()).record_batch(batch_of(10_000))
    assert not serve_log.read_text()
