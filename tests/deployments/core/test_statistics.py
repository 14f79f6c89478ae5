import json

import numpy as np
from tritonclient.grpc.service_pb2 import ModelStatisticsResponse

from deployments.backends.backend import Batch
from deployments.core.counts import MODEL, Label, Totals
from deployments.core.statistics import ModelStatistics
from deployments.core.statistics_document import documents
from protocol.errors import Cancelled, Internal
from protocol.infer import InferResponse, StreamedResponse
from tests.deployments.fakes import Answers

LABEL = Label(MODEL, "m", 1)


def batch_of(rows, failed=0):
    """A batch queued at 100, started at 150; 10 of input, 30 of inference, 5 of output."""
    requests = [Answers().request(str(index), count) for index, count in enumerate(rows)]
    for request in requests:
        request.received_ns, request.queued_ns = 90, 100
    batch = Batch(requests, sum(rows))
    batch.start_ns, batch.infer_start_ns, batch.infer_end_ns, batch.end_ns = 150, 160, 190, 195
    batch.results = [Internal("no") if index < failed else InferResponse({}) for index in range(len(rows))]
    return batch


def counted(*batches):
    totals = Totals()
    statistics = ModelStatistics("m", 1, totals)
    for batch in batches:
        statistics.record_batch(batch)
    return totals


def snapshot_of(*batches):
    (document,) = documents(counted(*batches))
    return document


def test_every_request_counts_the_whole_durations_of_its_batch():
    stats = snapshot_of(batch_of([1, 3]))
    assert stats["inference_count"] == 4 and stats["execution_count"] == 1 and stats["last_inference"] == 0
    assert stats["inference_stats"] == {
        "success": {"count": 2, "ns": 2 * 105},
        "fail": {"count": 0, "ns": 0},
        "queue": {"count": 2, "ns": 2 * 50},
        "compute_input": {"count": 2, "ns": 2 * 10},
        "compute_infer": {"count": 2, "ns": 2 * 30},
        "compute_output": {"count": 2, "ns": 2 * 5},
        "cache_hit": {"count": 0, "ns": 0},
        "cache_miss": {"count": 0, "ns": 0},
    }


def test_batches_count_once_under_their_size():
    stats = snapshot_of(batch_of([2, 2]), batch_of([1]), batch_of([4]))
    assert stats["batch_stats"] == [
        {
            "batch_size": size,
            "compute_input": {"count": count, "ns": count * 10},
            "compute_infer": {"count": count, "ns": count * 30},
            "compute_output": {"count": count, "ns": count * 5},
        }
        for size, count in ((1, 1), (4, 2))
    ]


def test_failed_requests_count_by_reason_and_not_as_inferences():
    totals = counted(batch_of([1, 2], failed=1), batch_of([1], failed=1))
    (stats,) = documents(totals)
    assert stats["inference_stats"]["fail"] == {"count": 2, "ns": 2 * 105}
    assert stats["inference_stats"]["queue"]["count"] == 1
    assert stats["inference_count"] == 2 and stats["execution_count"] == 1
    assert totals.rows[LABEL].backend_count == 2


def test_untouched_statistics_are_zero_and_plain_json():
    stats = snapshot_of()
    assert json.loads(json.dumps(stats)) == stats
    assert (stats["name"], stats["version"], stats["last_inference"], stats["batch_stats"]) == ("m", "1", 0, [])


def test_replicas_add_up():
    totals = Totals()
    for each in (
        counted(batch_of([1]), batch_of([2, 2])),
        counted(batch_of([4], failed=1), batch_of([1])),
    ):
        totals.add_list(json.loads(json.dumps(each.to_list())))
    (merged,) = documents(totals)
    assert merged["inference_count"] == 6 and merged["execution_count"] == 3
    assert merged["inference_stats"]["compute_infer"] == {"count": 4, "ns": 120}
    assert [(entry["batch_size"], entry["compute_input"]["count"]) for entry in merged["batch_stats"]] == [
        (1, 2),
        (4, 1),
    ]
    assert merged["inference_stats"]["fail"] == {"count": 1, "ns": 105}
    assert totals.rows[LABEL].backend_count == 1


def test_devices_add_up():
    totals = Totals()
    for gpu in ("GPU-1", "", "GPU-2"):
        statistics = ModelStatistics("m", 1, Totals())
        statistics.count_in(totals, gpu)
        statistics.record_batch(batch_of([2]))
    (document,) = documents(totals)
    assert (document["inference_count"], document["execution_count"]) == (6, 3)
    assert [each["batch_size"] for each in document["batch_stats"]] == [2]


def test_a_dead_replica_adds_what_it_did_and_not_what_it_was_doing():
    dead, totals = counted(batch_of([1])), Totals()
    counts = dead.rows[LABEL]
    counts.pending_count, counts.load_duration_ns = 3, 10**9
    totals.add_list(dead.to_list(), present=False)
    (document,) = documents(totals)
    assert document["inference_count"] == 1
    assert (totals.rows[LABEL].pending_count, totals.rows[LABEL].load_duration_ns) == (0, 0)


def test_counting_goes_on_in_other_rows_on_top_of_what_stands_there():
    shared = counted(batch_of([1]), batch_of([2]))
    statistics = ModelStatistics("m", 1, Totals())
    statistics.record_batch(batch_of([2]))
    statistics.count_in(shared)
    statistics.record_batch(batch_of([2]))
    (document,) = documents(shared)
    assert document["execution_count"] == 4
    assert [(each["batch_size"], each["compute_infer"]["count"]) for each in document["batch_stats"]] == [
        (1, 1),
        (2, 3),
    ]


def test_responses_are_counted_by_their_place_in_other_rows_too():
    totals = Totals()
    statistics = ModelStatistics("m", 1, Totals())
    (request,) = batch_of([1]).requests
    statistics.record_response(request, 0, 9, StreamedResponse({"Y": np.zeros(1)}, None, False, 2))
    statistics.record_response(request, 1, 4, StreamedResponse({}, None, True, 0))
    statistics.count_in(totals)
    statistics.record_response(request, 1, 6, Internal("no"))
    request.cancelled = True
    statistics.record_response(request, 0, 8, Cancelled(""))
    first, second = documents(totals)[0]["response_stats"].values()
    assert (first["compute_infer"], first["compute_output"]) == ({"count": 1, "ns": 7}, {"count": 1, "ns": 2})
    assert (first["success"], first["cancel"]) == ({"count": 1, "ns": 9}, {"count": 1, "ns": 8})
    assert (second["empty_response"], second["fail"]) == ({"count": 1, "ns": 4}, {"count": 1, "ns": 6})


def test_what_was_counted_fits_tritons_message():
    totals = counted(batch_of([1, 2], failed=1))
    (document,) = documents(totals)
    document["response_stats"] = {"0": {"success": {"count": 1, "ns": 9}}}
    document["memory_usage"] = [{"type": "GPU", "id": 1, "byte_size": 2**40}]
    (stats,) = ModelStatisticsResponse(model_stats=[document]).model_stats
    assert (stats.name, stats.version, stats.inference_stats.fail.count) == ("m", "1", 1)
    assert (stats.batch_stats[0].batch_size, stats.batch_stats[0].compute_infer.ns) == (3, 30)
    assert stats.response_stats["0"].success.ns == 9
    assert stats.memory_usage[0].byte_size == 2**40
