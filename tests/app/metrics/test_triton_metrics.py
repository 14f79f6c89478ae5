"""Triton's metrics: names, types and labels, and what `--metrics-config` changes."""

import math
import time
from typing import Any

import orjson
import pytest

from app.metrics.model_labels import model_labels
from app.metrics.scrape import Shown, render
from deployments.control.directory import ModelEntry, VersionEntry
from deployments.core.counts import CPU, GPU, SHADOW, Label, Totals
from deployments.core.latency_recorder import bucket_bounds_ns, bucket_of, first_response_bounds
from deployments.core.metrics_options import MetricsOptions
from deployments.core.response_streams import ResponseStreams
from deployments.core.statistics import ModelStatistics
from protocol.infer import StreamedResponse
from repository_loader.namespaces import identifier
from tests.app.metrics.scraped import families, samples
from tests.deployments.core.test_statistics import batch_of
from tests.deployments.fakes import MS, Answers, FakeClock, config_of

ALL = MetricsOptions(summaries=True, histograms=True)
VERSION = {"model", "version"}
INSTANCES = VERSION | {"gpu_uuid"}
CATALOG = {
    "nv_inference_request_success": ("counter", INSTANCES),
    "nv_inference_request_failure": ("counter", INSTANCES | {"reason"}),
    "nv_inference_count": ("counter", INSTANCES),
    "nv_inference_exec_count": ("counter", INSTANCES),
    "nv_inference_request_duration_us": ("counter", INSTANCES),
    "nv_inference_queue_duration_us": ("counter", INSTANCES),
    "nv_inference_compute_input_duration_us": ("counter", INSTANCES),
    "nv_inference_compute_infer_duration_us": ("counter", INSTANCES),
    "nv_inference_compute_output_duration_us": ("counter", INSTANCES),
    "nv_inference_pending_request_count": ("gauge", VERSION),
    "nv_model_load_duration_secs": ("gauge", VERSION),
    "nv_inference_first_response_histogram_ms": ("histogram", VERSION),
    "nv_inference_request_summary_us": ("summary", INSTANCES),
    "nv_inference_queue_summary_us": ("summary", INSTANCES),
    "nv_inference_compute_input_summary_us": ("summary", INSTANCES),
    "nv_inference_compute_infer_summary_us": ("summary", INSTANCES),
    "nv_inference_compute_output_summary_us": ("summary", INSTANCES),
    "nv_cache_num_hits_per_model": ("counter", VERSION),
    "nv_cache_num_misses_per_model": ("counter", VERSION),
    "nv_cache_hit_duration_per_model": ("counter", VERSION),
    "nv_cache_miss_duration_per_model": ("counter", VERSION),
    "nv_cache_hit_summary_per_model": ("summary", VERSION),
    "nv_cache_miss_summary_per_model": ("summary", VERSION),
    "nv_gpu_utilization": ("gauge", {"gpu_uuid"}),
    "nv_gpu_memory_total_bytes": ("gauge", {"gpu_uuid"}),
    "nv_gpu_memory_used_bytes": ("gauge", {"gpu_uuid"}),
    "nv_gpu_power_usage": ("gauge", {"gpu_uuid"}),
    "nv_gpu_power_limit": ("gauge", {"gpu_uuid"}),
    "nv_energy_consumption": ("counter", {"gpu_uuid"}),
    "nv_cpu_utilization": ("gauge", set()),
    "nv_cpu_memory_total_bytes": ("gauge", set()),
    "nv_cpu_memory_used_bytes": ("gauge", set()),
    "nv_pinned_memory_pool_total_bytes": ("gauge", set()),
    "nv_pinned_memory_pool_used_bytes": ("gauge", set()),
}
"""Triton's families (docs/user_guide/metrics.md)."""


def text_of(totals: Totals, options: MetricsOptions = ALL, **models: dict[str, Any]) -> str:
    entries = {name: ModelEntry(orjson.dumps(config).decode()) for name, config in models.items()}
    return render(totals, model_labels(entries), Shown(options), entries).decode()


def counted(
    name: str = "m", options: MetricsOptions = ALL, bounds_ms: tuple[float, ...] = (100, 500)
) -> tuple[Totals, ModelStatistics]:
    totals = Totals()
    statistics = ModelStatistics(name, 1, totals)
    statistics.record_latencies(options, bounds_ms)
    return totals, statistics


def everything() -> Totals:
    """A plain model, one with a response cache, one on a GPU, a processor and a GPU."""
    totals, statistics = counted()
    on_gpu = ModelStatistics("on_gpu", 1, Totals())
    on_gpu.count_in(totals, "GPU-1")
    on_gpu.record_latencies(ALL, (100, 500))
    statistics.record_batch(batch_of([1, 2], failed=1))
    statistics.counts.load_duration_ns = 10**9
    cached = ModelStatistics("cached", 1, totals)
    cached.record_latencies(ALL, (100, 500))
    cached.counts.cache_count = 1
    cached.record_cache_hit(time.monotonic_ns(), 2000, 1000)
    cached.record_cache_miss(time.monotonic_ns(), 3000)
    totals.row(Label(SHADOW, "m", 1)).add([1, 2, 3])
    totals.row(Label(CPU, "", 0)).add([250_000, 8 << 30, 2 << 30])
    totals.row(Label(GPU, "GPU-1", 0)).add([0b111111, 500_000, 80 << 30, 1 << 30, 300_000, 700_000, 5_000])
    return totals


def test_families_have_the_names_types_and_labels_of_tritons() -> None:
    found = {
        name.removesuffix("_total"): (
            family.type,
            {key for each in family.samples for key in each.labels} - {"quantile", "le"},
        )
        for name, family in families(text_of(everything())).items()
        if name.startswith("nv_")
    }
    assert found == CATALOG


def test_a_models_tags_are_labels_of_all_its_metrics() -> None:
    totals, statistics = counted()
    statistics.record_batch(batch_of([1]))
    text = text_of(totals, m={"metric_tags": {"team": 'a"b', "cost-center": "7"}})
    rows = [each for family in families(text).values() for each in family.samples if "model" in each.labels]
    assert len(rows) > 20
    assert all((row.labels["_team"], row.labels["_cost_center"]) == ('a"b', "7") for row in rows)
    assert 'nv_inference_count{_cost_center="7",_team="a\\"b",model="m",version="1"} 1' in text.splitlines()


def test_what_instances_do_is_told_by_gpu_and_what_surrounds_them_is_not() -> None:
    totals = Totals()
    for gpu, sizes in (("GPU-1", [1, 2, 3]), ("GPU-2", [1, 2]), ("", [1, 2])):
        statistics = ModelStatistics("m", 1, Totals())
        statistics.count_in(totals, gpu)
        statistics.record_latencies(ALL, (100, 500))
        statistics.record_batch(batch_of(sizes, failed=1))
        statistics.record_failure("REJECTED", 1)
        statistics.counts.pending_count = 1
        statistics.counts.load_duration_ns = len(sizes) * 10**9
        statistics.record_cache_hit(time.monotonic_ns(), 2000, 1000)
    found = samples(text_of(totals), model="m", version="1")

    def of(name: str, *more: tuple[str, str]) -> dict[str, float]:
        return {
            dict(rest).get("gpu_uuid", ""): value
            for (family, rest), value in found.items()
            if family == name and set(more) == {each for each in rest if each[0] != "gpu_uuid"}
        }

    assert of("nv_inference_request_success") == {"GPU-1": 3, "GPU-2": 2, "": 2}
    assert of("nv_inference_exec_count") == {"GPU-1": 1, "GPU-2": 1, "": 1}
    assert of("nv_inference_request_failure", ("reason", "BACKEND")) == {"GPU-1": 1, "GPU-2": 1, "": 1}
    assert of("nv_inference_request_failure", ("reason", "REJECTED")) == {"": 3}
    lines = text_of(totals).splitlines()
    assert 'nv_inference_request_failure{gpu_uuid="GPU-1",model="m",reason="BACKEND",version="1"} 1' in lines
    assert 'nv_inference_request_failure{model="m",reason="REJECTED",version="1"} 3' in lines
    assert of("nv_inference_pending_request_count") == {"": 3}
    assert of("nv_model_load_duration_secs") == {"": 3}
    assert of("nv_cache_num_hits_per_model") == {"": 3}
    assert of("nv_inference_queue_summary_us_count") == {"GPU-1": 3, "GPU-2": 2, "": 2}
    assert of("nv_inference_compute_infer_summary_us_count") == {"GPU-1": 2, "GPU-2": 1, "": 1}
    assert of("nv_cache_hit_summary_per_model_count") == {"": 3}


def test_models_of_namespaces_have_their_names_and_the_namespaces() -> None:
    totals, entries = Totals(), {}
    config = '{"metric_tags":{"team":"x"},"ensemble_scheduling":{"step":[{"model_name":"%s"}]}}'
    for repository, known in (("/a", identifier("m", "/a")), ("s3://b", identifier("m", "s3://b")), ("/a", "alone")):
        ModelStatistics(known, 1, totals).record_batch(batch_of([1]))
        entries[known] = ModelEntry(config % known, versions={1: VersionEntry("READY")}, namespace=repository)
    text = render(totals, model_labels(entries), Shown(ALL), entries).decode()
    for namespace, model in (("/a", "m"), ("s3://b", "m"), ("/a", "alone")):
        rows = samples(text, namespace=namespace, model=model, version="1", _team="x")
        assert rows["nv_inference_request_success", ()] == 1
        assert rows["eagleray_ensemble_step", (("step", model),)] == 1
    assert "@" not in text


def test_families_without_samples_have_their_heads() -> None:
    lines = text_of(Totals(), MetricsOptions()).splitlines()
    assert "# TYPE nv_inference_count counter" in lines and "# TYPE nv_gpu_utilization gauge" in lines
    assert [line for line in lines if not line.startswith("#")] == [
        "nv_pinned_memory_pool_total_bytes 0",
        "nv_pinned_memory_pool_used_bytes 0",
    ], "a pool that Eagleray does not have"


def test_durations_are_left_out_on_request() -> None:
    shown = [name for name in families(text_of(everything(), MetricsOptions(counters=False))) if "_duration_" in name]
    assert [name for name in shown if name.startswith("nv_")] == ["nv_model_load_duration_secs"]


def test_a_models_cache_metrics_are_there_from_its_load() -> None:
    totals, statistics = counted(options=MetricsOptions())
    statistics.counts.cache_count = 1
    assert samples(text_of(totals), model="m", version="1")[("nv_cache_num_hits_per_model", ())] == 0


def test_summaries_tell_the_quantiles_of_the_last_minute() -> None:
    totals, statistics = counted()
    assert statistics.latencies is not None
    now_ns = time.monotonic_ns()
    for ms in range(1, 1001):
        statistics.latencies.record_request(now_ns, ms * MS)
        statistics.latencies.record_phases(now_ns - 76_000 * MS, MS, (MS, MS, MS))
        statistics.latencies.record_cache(now_ns - 59_000 * MS, ms * MS, hit=False)
    found = samples(text_of(totals), model="m", version="1")
    for quantile, ms in ((0.5, 500), (0.9, 900), (0.99, 990), (0.999, 999)):
        value = found["nv_inference_request_summary_us", (("quantile", str(quantile)),)]
        assert value == pytest.approx(ms * 1000, rel=0.125)
    assert found["nv_inference_request_summary_us_count", ()] == 1000
    assert found["nv_inference_request_summary_us_sum", ()] == 500_500_000
    assert math.isnan(found["nv_inference_queue_summary_us", (("quantile", "0.5"),)])
    assert found["nv_cache_miss_summary_per_model", (("quantile", "0.5"),)] == pytest.approx(500_000, rel=0.125)
    assert found["nv_inference_queue_summary_us_count", ()] == 1000


def test_summaries_of_processes_add_up() -> None:
    now_ns, whole = time.monotonic_ns(), Totals()
    for ms in (10, 20, 30):
        totals, statistics = counted()
        assert statistics.latencies is not None
        statistics.latencies.record_request(now_ns - 900_000 * MS, MS)
        statistics.latencies.record_request(now_ns, ms * MS)
        whole.add_list(orjson.loads(orjson.dumps(totals.to_list())))
    found = samples(text_of(whole), model="m", version="1")
    assert found["nv_inference_request_summary_us_count", ()] == 6
    assert found["nv_inference_request_summary_us", (("quantile", "0.5"),)] == pytest.approx(20_000, rel=0.125)


def test_the_requests_of_a_cached_model_have_no_summary() -> None:
    rows = [each for family in families(text_of(everything())).values() for each in family.samples]
    cached = {each.name for each in rows if each.labels.get("model") == "cached"}
    assert "nv_cache_hit_summary_per_model" in cached and "nv_inference_request_summary_us" not in cached


@pytest.mark.parametrize("duration_ns", [0, 1, 1023, 1024, 5000, 123_456, 7 * MS, 1_000 * MS, 60_000 * MS])
def test_a_duration_is_within_its_bucket(duration_ns: int) -> None:
    low_ns, high_ns = bucket_bounds_ns(bucket_of(duration_ns))
    assert low_ns <= duration_ns < high_ns
    assert high_ns - low_ns <= max(1024, duration_ns / 4)


def test_first_responses_fall_into_the_buckets_of_the_model() -> None:
    config = config_of(
        'model_metrics { metric_control { metric_identifier { family: "nv_inference_first_response_histogram_ms" } '
        "histogram_options { buckets: [ 0.5, 2, 10 ] } } }"
    )
    totals, statistics = counted(bounds_ms=tuple(first_response_bounds(config)))
    assert statistics.latencies is not None
    for ms in (0.4, 0.5, 1, 9, 11):
        statistics.latencies.record_first_response(round(ms * MS))
    found = samples(text_of(totals), model="m", version="1")
    name = "nv_inference_first_response_histogram_ms"
    assert [found[f"{name}_bucket", (("le", bound),)] for bound in ("0.5", "2", "10", "+Inf")] == [2, 3, 4, 5]
    assert (found[f"{name}_sum", ()], found[f"{name}_count", ()]) == (21.9, 5)


def test_buckets_that_no_duration_or_every_one_falls_into_are_left_out() -> None:
    config = config_of(
        'model_metrics { metric_control { metric_identifier { family: "nv_inference_first_response_histogram_ms" } '
        "histogram_options { buckets: [ -inf, -5, 100, 1e300, inf ] } } }"
    )
    totals, statistics = counted(bounds_ms=tuple(first_response_bounds(config)))
    assert statistics.latencies is not None
    for ms in (1, 300):
        statistics.latencies.record_first_response(ms * MS)
    found = samples(text_of(totals), model="m", version="1")
    name = "nv_inference_first_response_histogram_ms_bucket"
    buckets = {labels[0][1]: value for (sample, labels), value in found.items() if sample == name}
    assert buckets == {"100": 1, "+Inf": 2}


def test_buckets_are_tritons_where_the_model_sets_none() -> None:
    assert first_response_bounds(config_of("")) == (100, 500, 2000, 5000)


def test_of_a_stream_the_first_response_counts() -> None:
    clock, answers = FakeClock(), Answers()
    totals, statistics = counted(bounds_ms=(15,))
    streams = ResponseStreams(statistics, clock)
    request = answers.request("1")
    streams.open(request)
    request.started_ns = clock.now_ns()
    for final in (False, False, True):
        clock.advance(10)
        request.reply(request, StreamedResponse({}, {}, final, 0))
    found = samples(text_of(totals), model="m", version="1")
    assert found["nv_inference_first_response_histogram_ms_bucket", (("le", "15"),)] == 1
    assert found["nv_inference_first_response_histogram_ms_count", ()] == 1


def test_gpus_tell_what_nvml_knows_of_them() -> None:
    totals = Totals()
    totals.row(Label(GPU, "GPU-1", 0)).add([0b000110, 0, 80, 7, 0, 0, 0])
    found = samples(text_of(totals), gpu_uuid="GPU-1")
    assert found == {("nv_gpu_memory_total_bytes", ()): 80, ("nv_gpu_memory_used_bytes", ()): 7}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("summary_latencies", "has the form <setting>=<value>"),
        ("summary=true", "knows no setting 'summary'"),
        ("summary_latencies=maybe", "is true or false"),
        ("summary_quantiles=0.5", "has the form <quantile>:<error>"),
        ("summary_quantiles=1.5:0.1", "has the form <quantile>:<error>"),
    ],
)
def test_a_malformed_setting_is_refused(given: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        MetricsOptions.parse([given])


def test_settings_are_read_as_triton_reads_them() -> None:
    options = MetricsOptions.parse(
        ["counter_latencies=false", "summary_latencies=TRUE", "summary_quantiles=0.5:0.05,0.75:0.01"], 500
    )
    assert options == MetricsOptions(False, True, False, (0.5, 0.75), 0.5)


def test_aliases_say_the_same_as_what_they_stand_for() -> None:
    totals = everything()
    text = render(totals, model_labels({}), Shown(ALL, aliases=True), {}).decode()
    own, found = samples(text, model="m", version="1"), samples(text, model="m", version="1")
    compute_us = sum(own[f"nv_inference_compute_{part}_duration_us", ()] for part in ("input", "infer", "output"))
    failures = sum(value for (name, _), value in own.items() if name == "nv_inference_request_failure")
    assert {name: value for (name, _), value in found.items() if name.startswith("triton_")} == {
        "triton_infer_request_duration_us": own["nv_inference_request_duration_us", ()],
        "triton_infer_queue_duration_us": own["nv_inference_queue_duration_us", ()],
        "triton_infer_compute_duration_us": compute_us,
        "triton_infer_total_request_count": own["nv_inference_request_success", ()] + failures,
        "triton_infer_success_count": own["nv_inference_request_success", ()],
        "triton_infer_failure_count": failures,
    }
    assert samples(text, gpu_uuid="GPU-1")["triton_gpu_utilization", ()] == 0.5
    assert not [name for name in families(text_of(totals)) if name.startswith("triton_")]
