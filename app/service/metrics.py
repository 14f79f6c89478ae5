"""Prometheus text of `/metrics`: Triton's `nv_*` families from the statistics of a node, then those of models' own.

prometheus-client renders no counter without the suffix `_total`, which Triton's counters do not have; hence the small
writer here. Nothing in it is of one process: a scrape reaches any ingress of the node.
"""

from typing import Final

import psutil

from app.service.custom_metrics import render_custom
from deployments.core.counts import Totals
from deployments.core.statistics_document import documents

_COUNTERS: Final = (
    ("nv_inference_request_success", "Number of successful inference requests, all batch sizes"),
    ("nv_inference_request_failure", "Number of failed inference requests, all batch sizes"),
    ("nv_inference_count", "Number of inferences performed (does not include cached requests)"),
    ("nv_inference_exec_count", "Number of model executions performed (does not include cached requests)"),
    ("nv_inference_request_duration_us", "Cumulative inference request duration in microseconds"),
    ("nv_inference_queue_duration_us", "Cumulative inference queuing duration in microseconds"),
    ("nv_inference_compute_input_duration_us", "Cumulative compute input duration in microseconds"),
    ("nv_inference_compute_infer_duration_us", "Cumulative compute inference duration in microseconds"),
    ("nv_inference_compute_output_duration_us", "Cumulative inference compute output duration in microseconds"),
    ("nv_cache_num_hits_per_model", "Number of cache hits per model"),
    ("nv_cache_num_misses_per_model", "Number of cache misses per model"),
    ("nv_cache_hit_duration_per_model", "Total cache hit duration per model, in microseconds"),
    ("nv_cache_miss_duration_per_model", "Total cache miss duration per model, in microseconds"),
)
_REASONS: Final = ("REJECTED", "CANCELED", "BACKEND", "OTHER")

Sample = tuple[str, float]


def render(totals: Totals, cpu: bool) -> bytes:
    """Return the text of one scrape; a version that no living process has loaded has no load duration."""
    families: dict[str, list[Sample]] = {name: [] for name, _ in _COUNTERS}
    pending: list[Sample] = []
    load: list[Sample] = []
    shadow: list[Sample] = []
    for snapshot in documents(totals):
        labels = f'model="{_escape(snapshot["name"])}",version="{_escape(snapshot["version"])}"'
        stats, metrics = snapshot["inference_stats"], snapshot["metrics"]
        families["nv_inference_request_success"].append((labels, stats["success"]["count"]))
        for reason in _REASONS:
            row = (f'{labels},reason="{reason}"', metrics["failures"].get(reason, 0))
            families["nv_inference_request_failure"].append(row)
        families["nv_inference_count"].append((labels, snapshot["inference_count"]))
        families["nv_inference_exec_count"].append((labels, snapshot["execution_count"]))
        families["nv_inference_request_duration_us"].append((labels, metrics["request_duration_ns"] // 1000))
        families["nv_inference_queue_duration_us"].append((labels, stats["queue"]["ns"] // 1000))
        for part in ("input", "infer", "output"):
            row = (labels, stats[f"compute_{part}"]["ns"] // 1000)
            families[f"nv_inference_compute_{part}_duration_us"].append(row)
        hits, misses = stats["cache_hit"], stats["cache_miss"]
        if hits["count"] or misses["count"]:
            families["nv_cache_num_hits_per_model"].append((labels, hits["count"]))
            families["nv_cache_num_misses_per_model"].append((labels, misses["count"]))
            families["nv_cache_hit_duration_per_model"].append((labels, hits["ns"] // 1000))
            families["nv_cache_miss_duration_per_model"].append((labels, misses["ns"] // 1000))
        pending.append((labels, metrics["pending_count"]))
        shadow += [(f'{labels},outcome="{outcome}"', count) for outcome, count in metrics["shadow"].items()]
        if metrics["load_duration_ns"]:
            load.append((labels, metrics["load_duration_ns"] / 1e9))
    lines: list[str] = []
    for name, text in _COUNTERS:
        _family(lines, name, text, "counter", families[name])
    _family(lines, "nv_inference_pending_request_count", "Instantaneous number of pending requests", "gauge", pending)
    _family(lines, "nv_model_load_duration_secs", "Model load time in seconds", "gauge", load)
    if shadow:
        text = "Number of copies of requests that a version got for comparison, by outcome"
        _family(lines, "eagleray_shadow_request_count", text, "counter", shadow)
    if cpu:
        memory = psutil.virtual_memory()
        _family(lines, "nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", "gauge", [("", cpu_utilization())])
        _family(lines, "nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", "gauge", [("", memory.total)])
        _family(lines, "nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", "gauge", [("", memory.used)])
    taken = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
    lines += render_custom(totals, taken)
    return "\n".join(lines).encode() + b"\n"


def cpu_utilization() -> float:
    """Return the share of all CPUs used since the last call, from 0 to 1."""
    return float(psutil.cpu_percent(interval=None)) / 100.0


def _family(lines: list[str], name: str, text: str, kind: str, samples: list[Sample]) -> None:
    lines.append(f"# HELP {name} {text}")
    lines.append(f"# TYPE {name} {kind}")
    lines += [f"{name}{{{labels}}} {value:.17g}" if labels else f"{name} {value:.17g}" for labels, value in samples]


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
