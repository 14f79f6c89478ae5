"""The statistics count what was asked, and the metrics say the same."""

import os
import queue
import signal
from collections import Counter
from http.client import HTTPException
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from tests.app.metrics.scraped import families
from tests.docs.test_metrics_page import metrics_of_the_page
from tests.e2e.shared.conftest import isolated
from tests.e2e.shared.test_faults import Load
from tests.serving import Client, Server, infer_path, tensor, title_of, wait_until

PHASES = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
COUNTERS = {
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
}
GAUGES = {
    "nv_inference_pending_request_count",
    "nv_model_load_duration_secs",
    "nv_cpu_utilization",
    "nv_cpu_memory_total_bytes",
    "nv_cpu_memory_used_bytes",
}

Samples = dict[tuple[str, str, str], float]


def row(rows: int) -> list[dict[str, Any]]:
    return [tensor(name, "INT32", [rows, 16], [1] * 16 * rows) for name in ("INPUT0", "INPUT1")]


def mode(word: str) -> dict[str, Any]:
    return tensor("MODE", "BYTES", [1, 1], [word])


def scrape(server: Server, model: str) -> Samples:
    """Return the samples of one model by name, version and reason.

    Triton's counters have no suffix; the parser gives them all one.
    """
    return {
        (sample.name.removesuffix("_total"), sample.labels["version"], sample.labels.get("reason", "")): sample.value
        for family in text_string_to_metric_families(server.metrics_text())
        for sample in family.samples
        if sample.labels.get("model") == model
    }


def added(before: dict[str, Any], after: dict[str, Any], phase: str) -> tuple[int, int]:
    old, new = before["inference_stats"][phase], after["inference_stats"][phase]
    return new["count"] - old["count"], new["ns"] - old["ns"]


def test_statistics_count_every_request_exactly(server: Server) -> None:
    before = server.statistics("simple")
    sizes = [1, 1, 1, 2, 2, 8] * 5
    with server.client() as client:
        for rows in sizes:
            assert client.infer("simple", *row(rows)).status == 200
    after = server.statistics("simple")
    assert after["inference_count"] - before["inference_count"] == sum(sizes)
    assert after["execution_count"] - before["execution_count"] == len(sizes)
    for phase in PHASES:
        count, ns = added(before, after, phase)
        assert count == (0 if phase in ("fail", "cache_hit", "cache_miss") else len(sizes)), phase
        assert ns > 0 if phase in ("success", "compute_infer") else ns >= 0
    assert after["last_inference"] > before["last_inference"]
    counts = {entry["batch_size"]: entry["compute_infer"]["count"] for entry in after["batch_stats"]}
    past = {entry["batch_size"]: entry["compute_infer"]["count"] for entry in before["batch_stats"]}
    assert {size: count - past.get(size, 0) for size, count in counts.items() if size in sizes} == {1: 15, 2: 10, 8: 5}


def test_batch_statistics_sum_to_the_executions(server: Server) -> None:
    with server.client() as client:
        assert client.infer("simple", *row(3)).status == 200
    statistics = server.statistics("simple")
    batches = statistics["batch_stats"]
    assert [entry["batch_size"] for entry in batches] == sorted(entry["batch_size"] for entry in batches)
    for phase in ("compute_input", "compute_infer", "compute_output"):
        assert sum(entry[phase]["count"] for entry in batches) == statistics["execution_count"]
        assert all(entry[phase]["ns"] >= 0 for entry in batches)
    rows = sum(entry["batch_size"] * entry["compute_infer"]["count"] for entry in batches)
    assert rows == statistics["inference_count"]


def test_statistics_have_all_fields_and_no_others(server: Server) -> None:
    statistics = server.statistics("simple")
    assert set(statistics) == {
        "name",
        "version",
        "last_inference",
        "inference_count",
        "execution_count",
        "inference_stats",
        "response_stats",
        "batch_stats",
        "memory_usage",
    }
    assert tuple(statistics["inference_stats"]) == PHASES


def test_statistics_of_all_models_list_the_ready_versions(server: Server) -> None:
    listed = {(each["name"], each["version"]) for each in server.get("/v2/models/stats").json["model_stats"]}
    index = server.post("/v2/repository/index", {"ready": True}).json
    assert listed == {(each["name"], each["version"]) for each in index}


def test_versions_are_counted_apart(server: Server) -> None:
    before = [server.statistics("digits", version)["inference_count"] for version in (1, 2)]
    image = tensor("IMAGE", "FP32", [1, 64], [0] * 64)
    for version in ("1", "1", "1", "2", ""):
        assert server.infer("digits", image, version=version).status == 200
    after = [server.statistics("digits", version)["inference_count"] for version in (1, 2)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [3, 2]


def test_failures_are_counted_and_refused_requests_are_not(server: Server) -> None:
    before, metrics = server.statistics("failing"), scrape(server, "failing")
    for word in ("fine", "error", "raise", "error"):
        server.infer("failing", mode(word))
    assert server.infer("failing", mode("fine") | {"shape": [1, 2]}).status == 400
    after, metrics_after = server.statistics("failing"), scrape(server, "failing")
    assert added(before, after, "success")[0] == 1
    assert added(before, after, "fail")[0] == 3
    for reason, count in (("BACKEND", 3), ("REJECTED", 0), ("CANCELED", 0), ("OTHER", 0)):
        key = ("nv_inference_request_failure", "1", reason)
        assert metrics_after[key] - metrics[key] == count


def test_pipeline_counts_for_itself_and_for_each_step(server: Server) -> None:
    names = ("digits_pipeline", "digits_preprocess", "digits_postprocess")
    before = [server.statistics(name)["inference_stats"]["success"]["count"] for name in names]
    image = tensor("IMAGE_BYTES", "BYTES", [1, 1], ["no image"])
    assert server.infer("digits_pipeline", image).status == 400
    after = [server.statistics(name)["inference_stats"]["success"]["count"] for name in names]
    assert after == before
    failures = [server.statistics(name)["inference_stats"]["fail"]["count"] for name in names[:2]]
    assert all(count >= 1 for count in failures)


@pytest.mark.parametrize("model", ["simple", "failing", "digits_pipeline"])
def test_metrics_agree_with_the_statistics(server: Server, model: str) -> None:
    body = {
        "simple": row(2),
        "failing": [mode("fine")],
        "digits_pipeline": [tensor("IMAGE_BYTES", "BYTES", [1, 1], ["no image"])],
    }
    for _ in range(3):
        server.infer(model, *body[model])
    statistics, samples = server.statistics(model), scrape(server, model)
    phases = statistics["inference_stats"]
    assert samples["nv_inference_count", "1", ""] == statistics["inference_count"]
    assert samples["nv_inference_exec_count", "1", ""] == statistics["execution_count"]
    assert samples["nv_inference_request_success", "1", ""] == phases["success"]["count"]
    failures = [value for (name, _, _), value in samples.items() if name == "nv_inference_request_failure"]
    assert len(failures) == 4
    assert sum(failures) == phases["fail"]["count"]
    assert samples["nv_inference_pending_request_count", "1", ""] == 0
    assert samples["nv_inference_queue_duration_us", "1", ""] == phases["queue"]["ns"] // 1000
    for phase in ("compute_input", "compute_infer", "compute_output"):
        assert samples[f"nv_inference_{phase}_duration_us", "1", ""] == phases[phase]["ns"] // 1000
    duration_us = samples["nv_inference_request_duration_us", "1", ""]
    assert duration_us == (phases["success"]["ns"] + phases["fail"]["ns"]) // 1000


def test_metrics_are_of_tritons_names_and_kinds(server: Server) -> None:
    text = server.metrics_text()
    families = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert {name: families.get(name) for name in COUNTERS} == dict.fromkeys(COUNTERS, "counter")
    assert {name: families.get(name) for name in GAUGES} == dict.fromkeys(GAUGES, "gauge")
    assert not [line for line in text.splitlines() if line.startswith("nv_") and "_total{" in line]


def test_the_page_of_metrics_lists_what_a_server_exports(server: Server) -> None:
    documented = metrics_of_the_page()
    exported = {
        family.name.removesuffix("_total"): family.type
        for family in text_string_to_metric_families(server.metrics_text())
        if family.name.startswith(("nv_", "eagleray_", "triton_"))
    }
    assert exported == {name: kind for name, (kind, _) in documented.items()}


def test_cpu_metrics_are_true(server: Server) -> None:
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(server.metrics_text())
        for sample in family.samples
        if sample.name.startswith("nv_cpu")
    }
    assert 0 <= values["nv_cpu_utilization"] <= 1
    assert 0 < values["nv_cpu_memory_used_bytes"] < values["nv_cpu_memory_total_bytes"]


def test_metrics_tell_what_clients_got(server: Server) -> None:
    def seen() -> dict[tuple[str, ...], float]:
        return {
            (each.name, *(each.labels[name] for name in ("protocol", "code") if name in each.labels)): each.value
            for family in text_string_to_metric_families(server.metrics_text())
            for each in family.samples
            if each.labels.get("model") == "simple" and "le" not in each.labels
        }

    before = seen()
    for _ in range(4):
        assert server.infer("simple", *row(1)).status == 200
    assert server.infer("simple", row(1)[0]).status == 400
    added = {key: value - before.get(key, 0) for key, value in seen().items() if "http" in key}
    assert added.pop(("eagleray_request_duration_seconds_sum", "http")) > 0
    assert {key: value for key, value in added.items() if value and "inflight" not in key[0]} == {
        ("eagleray_request_duration_seconds_count", "http"): 4,
        ("eagleray_responses_total", "http", "200"): 4,
        ("eagleray_responses_total", "http", "400"): 1,
    }


@isolated
def test_a_model_that_ends_after_its_clients_deadline_has_succeeded_though_its_client_gave_up(server: Server) -> None:
    """As in Triton, where a deadline cancels a request, and a request that runs is not stopped."""

    def seen() -> dict[tuple[str, str], float]:
        return {
            (each.name.removesuffix("_total"), each.labels.get("reason", each.labels.get("code", ""))): each.value
            for family in text_string_to_metric_families(server.metrics_text())
            for each in family.samples
            if each.labels.get("model") == "slow" and each.labels.get("protocol", "grpc") == "grpc"
        }

    def added() -> dict[tuple[str, str], float]:
        now = seen()
        names = ("nv_inference_request_success", "nv_inference_request_failure", "eagleray_responses")
        names += ("eagleray_cancelled_requests",)
        return {key: now[key] - before.get(key, 0) for key in now if key[0] in names and now[key] != before.get(key, 0)}

    before = seen()
    seconds = tritonclient.grpc.InferInput("SECONDS", [1], "FP32")
    seconds.set_data_from_numpy(np.array([1.5], np.float32))
    address = server.wait_for(r"gRPC\s+(\S+)")[1]
    late = pytest.raises(InferenceServerException, match="Deadline Exceeded")
    with tritonclient.grpc.InferenceServerClient(address) as client, late:
        client.infer("slow", [seconds], client_timeout=0.5)
    expected = {("nv_inference_request_success", ""): 1, ("eagleray_cancelled_requests", ""): 1}
    wait_until(lambda: added() == expected, "what became of the request")


def test_each_error_is_counted_once_with_a_model_only_if_one_had_the_request(server: Server) -> None:
    def answers() -> Counter[tuple[str, ...]]:
        found: Counter[tuple[str, ...]] = Counter()
        for each in families(server.metrics_text())["eagleray_responses"].samples:
            found[each.labels.get("model", ""), each.labels["protocol"], each.labels["code"]] += int(each.value)
        return found

    def grpc_errors(model: str) -> None:
        unary, streamed = (tritonclient.grpc.InferInput("INPUT0", [1, 16], "INT32") for _ in range(2))
        unary.set_data_from_numpy(np.ones((1, 16), np.int32))
        streamed.set_data_from_numpy(np.ones((1, 16), np.int32))
        heard: queue.Queue[Any] = queue.Queue()
        with tritonclient.grpc.InferenceServerClient(server.wait_for(r"gRPC\s+(\S+)")[1]) as client:
            with pytest.raises(InferenceServerException):
                client.infer(model, [unary])
            client.start_stream(lambda result, error: heard.put(error))
            client.async_stream_infer(model, [streamed])
            assert heard.get(timeout=60) is not None
            client.stop_stream()

    before = answers()
    assert server.post("/v2/models/nobody/infer", {"inputs": []}).status == 404
    assert server.get("/v2/models/nobody").status == 404
    assert server.post("/v2/models/nobody/generate", {}).status == 404
    with server.client() as client:
        assert client.request("POST", infer_path("simple"), b"{}", {"Content-Encoding": "gzip"}).status == 400
        assert (
            client.request("POST", infer_path("simple"), b"{}", {"Inference-Header-Content-Length": "x"}).status == 400
        )
    assert server.infer("simple", row(1)[0]).status == 400
    assert server.post("/v2/models/failing/generate", {"MODE": "error"}).status >= 400
    grpc_errors("nobody")
    grpc_errors("simple")
    added = answers() - before
    assert added.pop(("", "http", "404")) == 3
    assert added.pop(("", "http", "400")) == 2
    assert added.pop(("simple", "http", "400")) == 1
    assert sum(added.pop(key) for key in list(added) if key[:2] == ("failing", "http")) == 1
    assert sum(added.pop(key) for key in list(added) if key[:2] == ("", "grpc")) == 1
    assert sum(added.pop(key) for key in list(added) if key[:2] == ("", "grpc_stream")) == 1
    assert sum(added.pop(key) for key in list(added) if key[:2] == ("simple", "grpc")) == 1
    assert sum(added.pop(key) for key in list(added) if key[:2] == ("simple", "grpc_stream")) == 1
    assert not added


def test_metrics_tell_the_state_of_each_version(server: Server) -> None:
    def states(family: str) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for each in families(server.metrics_text())[family].samples:
            if each.value:
                found.setdefault(each.labels["model"], set()).add(each.labels["state"])
        return found

    index = {each["name"]: each["state"] for each in server.post("/v2/repository/index").json if each.get("state")}
    cluster = states("eagleray_model_state")
    assert all(cluster[name] == {"READY"} for name in ("simple", "failing", "digits"))
    assert all(index[name] in cluster[name] for name in cluster)
    assert wait_until(lambda: "ready" in states("eagleray_replicas").get("simple", ()), "the state of a model")


def test_rays_metrics_show_the_models(server: Server) -> None:
    """As Prometheus finds them: at the agent of the node."""
    assert server.infer("simple", *row(1)).status == 200
    agents = [each for each in server.descendants() if title_of(each).startswith("ray::DashboardAgent")]
    ports = {each.laddr.port for agent in agents for each in agent.net_connections() if each.status == "LISTEN"}

    def page(port: int) -> str:
        try:
            with Client(f"127.0.0.1:{port}", timeout_s=10) as client:
                text = client.get("/metrics").body.decode()
        except (OSError, HTTPException, UnicodeDecodeError):
            return ""
        return text if "# TYPE ray_" in text else ""

    def shown() -> set[str]:
        return {
            each.name
            for port in ports
            for family in text_string_to_metric_families(page(port))
            for each in family.samples
            if each.labels.get("application") == "simple" and each.labels.get("deployment") == "v1"
        }

    wanted = {
        "ray_serve_deployment_request_counter_total",
        "ray_serve_deployment_processing_latency_ms_bucket",
        "ray_serve_deployment_queued_queries",
    }
    assert wait_until(lambda: wanted <= shown(), "Ray's metrics of a model", timeout_s=90)


@isolated
def test_replicas_of_one_model_are_counted_together(server: Server) -> None:
    before = server.statistics("two_replicas")["inference_count"]
    for _ in range(10):
        assert server.infer("two_replicas", tensor("SECONDS", "FP32", [1], [0])).status == 200
    assert server.statistics("two_replicas")["inference_count"] - before == 10


@isolated
def test_counters_never_fall_and_miss_nothing_when_a_replica_is_killed(server: Server) -> None:
    before, scraped = scrape(server, "lone"), [scrape(server, "lone")]

    def again() -> Samples:
        scraped.append(scrape(server, "lone"))
        return scraped[-1]

    with Load(server, "lone", client_count=4, pause_s=0.01).running() as load:
        (pid,) = wait_until(lambda: len(load.answers) > 100 and load.pids(), "answers")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: again() and load.pids() - {pid}, "answers of the next replica", timeout_s=60)
    after = again()
    falling = [
        (key, earlier[key], later[key])
        for earlier, later in pairwise(scraped)
        for key in earlier
        if key[0] in COUNTERS and later[key] < earlier[key]
    ]
    assert falling == []
    statuses = Counter(answer.status for answer in load.answers)
    assert set(statuses) <= {200, 500}  # 500: it was the only one in the replica
    added = {key: after[key] - before.get(key, 0) for key in after}
    refused = sum(value for key, value in added.items() if key[0] == "nv_inference_request_failure")
    assert refused == statuses[500]
    # What the replica counted in the moment of its death may not have been answered.
    assert statuses[200] <= added["nv_inference_request_success", "1", ""] <= statuses[200] + 4
    assert server.statistics("lone")["inference_count"] == after["nv_inference_count", "1", ""]
