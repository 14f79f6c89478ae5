"""What the metrics beyond Triton's say."""

import time
from typing import Any

import orjson
import pytest

from app.metrics.model_labels import model_labels
from app.metrics.scrape import Shown, render
from deployments.control.directory import UNLOADED, ModelEntry, VersionEntry
from deployments.core.counts import CLIENT, LANES, LOAD_FAILURE, RETRY, SCALING, STATE, Label, Totals
from deployments.core.refusals import Refusals
from deployments.core.request_meter import RequestMeters, give_up, succeed
from deployments.core.statistics import ModelStatistics
from deployments.lane.wire import GRPC, GRPC_STREAM, HTTP
from protocol.errors import NotFound, QueueFull, Unavailable
from repository_loader.plan import app_name
from tests.app.metrics.scraped import samples
from tests.deployments.core.test_statistics import batch_of
from tests.deployments.fakes import MS


def found(totals: Totals, models: dict[str, ModelEntry] | None = None, **labels: str) -> dict[Any, float]:
    text = render(totals, model_labels(models or {}), Shown(), models or {}).decode()
    return samples(text, **labels)


def own() -> Totals:
    """Something in every family."""
    totals = Totals()
    meter = RequestMeters(totals).of("m", 1)
    succeed(meter.begin(HTTP), 0)
    meter.fail(GRPC, meter.begin(GRPC), NotFound("x"))
    batch = batch_of([1])
    batch.reason = "full"
    ModelStatistics("m", 1, totals).record_batch(batch)
    totals.row(Label(STATE, "m", 1)).add([3 * MS, 2, 1, 0, 0])
    totals.row(Label(LANES, "", 0)).add([10, 20, 3])
    totals.row(Label(LOAD_FAILURE, "m", 1)).add([1])
    totals.row(Label(SCALING, "m/v1", 0)).add([2, 1, 3])
    Refusals(totals).count_retry("m", 1)
    return totals


ENSEMBLE = (
    '{"max_batch_size":8,"ensemble_scheduling":{"step":[{"model_name":"a"},{"model_name":"b"},{"model_name":"a"}]}}'
)
CANARY = {"weights": {"1": 90, "2": 10}, "shadow": {}, "canary": {"state": "rolled back"}, "canary_version": 2}
MODELS = {"m": ModelEntry(ENSEMBLE, versions={1: VersionEntry("READY"), 2: VersionEntry("READY")}, traffic=CANARY)}


def test_clients_latencies_are_counted_by_protocol_from_first_byte_to_last() -> None:
    totals = Totals()
    meter = RequestMeters(totals).of("m", 1)
    for wire in (HTTP, HTTP, GRPC, GRPC_STREAM):
        succeed(meter.begin(wire), 0)
    rows = found(totals, model="m", version="1")
    name = "eagleray_request_duration_seconds"
    counts = {
        protocol: rows[f"{name}_count", (("protocol", protocol),)] for protocol in ("http", "grpc", "grpc_stream")
    }
    assert counts == {"http": 2, "grpc": 1, "grpc_stream": 1}
    bounds = [dict(key)["le"] for each, key in rows if each == f"{name}_bucket" and ("protocol", "http") in key]
    assert sorted(map(float, bounds))[:5] == [0.0001, 0.0002, 0.0003, 0.0005, 0.001] and len(bounds) == 25


@pytest.mark.parametrize(
    ("took_ms", "bound"), [(0.05, "0.0001"), (0.1, "0.0001"), (0.11, "0.0002"), (70, "0.1"), (10**6, "+Inf")]
)
def test_a_wait_falls_into_the_smallest_bucket_that_holds_it(took_ms: float, bound: str) -> None:
    totals, batch = Totals(), batch_of([1])
    batch.start_ns = batch.requests[0].queued_ns + round(took_ms * MS)
    batch.infer_start_ns = batch.infer_end_ns = batch.end_ns = batch.start_ns
    ModelStatistics("m", 1, totals).record_batch(batch)
    buckets = {
        float(dict(key)["le"]): value
        for (name, key), value in found(totals, model="m", version="1").items()
        if name == "eagleray_queue_duration_seconds_bucket"
    }
    assert min(each for each, count in buckets.items() if count) == float(bound)


def test_answers_are_counted_by_what_clients_got() -> None:
    totals = Totals()
    meter = RequestMeters(totals).of("m", 1)
    succeed(meter.begin(HTTP), 0)  # as slow as can be
    succeed(meter.begin(HTTP), time.monotonic_ns())
    succeed(meter.begin(GRPC), 0)
    for error in (QueueFull(), Unavailable("x"), NotFound("x")):
        for wire in (HTTP, GRPC):
            meter.fail(wire, meter.begin(wire), error)
    answers = {
        key: value
        for (name, key), value in found(totals, model="m", version="1").items()
        if name == "eagleray_responses"
    }
    codes = {tuple(value for _, value in key): count for key, count in answers.items()}
    assert codes == {
        ("200", "http"): 2,
        ("503", "http"): 2,
        ("404", "http"): 1,
        ("OK", "grpc"): 1,
        ("UNAVAILABLE", "grpc"): 2,
        ("NOT_FOUND", "grpc"): 1,
    }


def test_errors_of_requests_that_no_model_had_are_counted_without_one() -> None:
    totals = Totals()
    meters = RequestMeters(totals)
    for wire, code in ((HTTP, 404), (HTTP, 404), (GRPC, 5), (GRPC_STREAM, 14)):
        meters.refuse(wire, code)
    answers = {key: value for (name, key), value in found(totals).items() if name == "eagleray_responses"}
    assert answers == {
        (("code", "404"), ("protocol", "http")): 2,
        (("code", "NOT_FOUND"), ("protocol", "grpc")): 1,
        (("code", "UNAVAILABLE"), ("protocol", "grpc_stream")): 1,
    }


def test_what_is_under_way_is_what_has_not_ended_and_dies_with_its_process() -> None:
    totals, everywhere = Totals(), Totals()
    meter = RequestMeters(totals).of("m", 1)
    begun = [meter.begin(HTTP) for _ in range(5)]
    succeed(begun[0], 0)
    meter.fail(HTTP, begun[1], NotFound("x"))
    give_up(begun[2])
    meter.sample()
    key = ("eagleray_inflight_requests", (("protocol", "http"),))
    assert found(totals, model="m", version="1")[key] == 2
    everywhere.add_list(orjson.loads(orjson.dumps(totals.to_list())), present=False)
    assert found(everywhere, model="m", version="1")[key] == 0
    assert found(everywhere, model="m", version="1")["eagleray_cancelled_requests", (("protocol", "http"),)] == 1
    everywhere.add_list(totals.to_list())
    assert found(everywhere, model="m", version="1")[key] == 2


def test_batch_sizes_are_a_histogram() -> None:
    totals = Totals()
    statistics = ModelStatistics("m", 1, totals)
    for rows in (1, 1, 3, 4, 2000):
        statistics.record_batch(batch_of([rows]))
    rows_of = found(totals, model="m", version="1")
    buckets = [rows_of["eagleray_batch_size_bucket", (("le", bound),)] for bound in ("1", "2", "4", "1024", "+Inf")]
    assert buckets == [2, 2, 4, 4, 5]
    assert rows_of["eagleray_batch_size_sum", ()] == 2009


def test_states_are_told_by_the_node_and_by_the_directory() -> None:
    rows = found(own(), MODELS, model="m", version="1")
    assert rows["eagleray_replicas", (("state", "ready"),)] == 1
    assert rows["eagleray_replicas", (("state", "loading"),)] == 0
    assert rows["eagleray_oldest_request_age_seconds", ()] == 0.003
    assert rows["eagleray_executing_requests", ()] == 2
    assert rows["eagleray_model_state", (("state", "READY"),)] == 1
    assert rows["eagleray_load_failures", ()] == 1
    assert rows["eagleray_lane_retries", ()] == 1


def test_lanes_have_no_model() -> None:
    rows = found(own(), MODELS)
    assert rows["eagleray_lane_bytes", (("path", "socket"),)] == 10
    assert rows["eagleray_lane_bytes", (("path", "shared_memory"),)] == 20
    assert rows["eagleray_lanes", ()] == 3


def test_what_the_autoscaler_wants_has_the_model_version_whose_replicas_are_counted() -> None:
    rows = found(own(), MODELS, model="m", version="1")
    deployment = (("application", "m"), ("deployment", "v1"))
    assert rows["eagleray_autoscaler_decisions", (*deployment, ("direction", "up"))] == 2
    assert rows["eagleray_autoscaler_wanted_replicas", deployment] == 3


@pytest.mark.parametrize("model", ["m", "eagleray", "eagleray-model-m", "Grüße:1", "team@folder-1", "a=b%3D/c", "v2"])
def test_a_scaled_model_has_its_own_name_whatever_its_application_is_called(model: str) -> None:
    totals = Totals()
    application = app_name(model)
    totals.row(Label(SCALING, f"{application}/v12-gpu0", 0)).add([0, 0, 3])
    rows = found(totals, model=model, version="12")
    deployment = (("application", application), ("deployment", "v12-gpu0"))
    assert rows["eagleray_autoscaler_wanted_replicas", deployment] == 3


def test_what_was_scaled_of_a_version_that_has_long_gone_is_told_no_more() -> None:
    totals = own()
    totals.row(Label(SCALING, "m/v3-gpu0", 0)).add([2, 1, 0])
    totals.row(Label(SCALING, "m/v4", 0)).add([2, 1, 0])
    gone = VersionEntry("UNAVAILABLE", UNLOADED, long_gone=True)
    models = {"m": ModelEntry(versions={**MODELS["m"].versions, 3: gone})}
    told = {key for name, key in found(totals, models) if name == "eagleray_autoscaler_wanted_replicas"}
    assert {dict(key)["deployment"] for key in told} == {"v1"}


def test_rows_of_a_dead_process_keep_its_counts_and_not_its_state() -> None:
    totals = Totals()
    totals.add_list(own().to_list(), present=False)
    assert totals.row(Label(STATE, "m", 1)).values() == [0] * 5
    assert totals.row(Label(LANES, "", 0)).values() == [10, 20, 0]
    assert totals.row(Label(RETRY, "m", 1)).values() == [1]
    assert sum(totals.row(Label(CLIENT, "m", 1, HTTP)).values()[4:]) == 1


def test_a_versions_limits_steps_and_share_of_the_traffic_are_told() -> None:
    rows = [found(Totals(), MODELS, model="m", version=version) for version in ("1", "2")]
    assert [row["eagleray_model_max_batch_size", ()] for row in rows] == [8, 8]
    assert [row["eagleray_model_traffic_ratio", ()] for row in rows] == [0.9, 0.1]
    steps = {key for name, key in rows[0] if name == "eagleray_ensemble_step"}
    assert steps == {(("step", "a"),), (("step", "b"),)}
    canary = {key: value for (name, key), value in rows[1].items() if name == "eagleray_canary_state"}
    assert {dict(key)["state"] for key, value in canary.items() if value} == {"rolled back"} and len(canary) == 4


@pytest.mark.parametrize(
    ("version", "down"),
    [
        (VersionEntry("READY"), 0),
        (VersionEntry("LOADING"), 0),
        (VersionEntry("UNAVAILABLE", "no replica", replacing=True), 1),
        (VersionEntry("UNAVAILABLE", "no such file"), 1),
        (VersionEntry("UNAVAILABLE", UNLOADED), 0),
    ],
)
def test_a_version_is_down_that_cannot_serve_and_that_nobody_has_unloaded(version: VersionEntry, down: int) -> None:
    rows = found(Totals(), {"m": ModelEntry("{}", versions={7: version})}, model="m", version="7")
    assert rows["eagleray_model_down", ()] == down


def test_a_model_without_versions_is_down_as_the_index_shows_it() -> None:
    models = {"broken": ModelEntry(reason="config.pbtxt:3: what is this"), "never_loaded": ModelEntry("{}")}
    rows = found(Totals(), models, model="broken", version="1")
    assert rows["eagleray_model_down", ()] == rows["eagleray_model_state", (("state", "UNAVAILABLE"),)] == 1
    assert not found(Totals(), models, model="never_loaded")
