"""What operators need beyond Triton's metrics: latencies as clients see them, queues, batches, replicas, lanes."""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Final

from app.metrics.exposition import Exposition, Sample, labels
from deployments.core.counts import (
    BATCH_REASON,
    BATCH_SIZE,
    CLIENT,
    CLIENT_ERROR,
    LANES,
    LOAD_FAILURE,
    QUEUE,
    RETRY,
    SCALING,
    SHADOW,
    STATE,
    RowsByKind,
)
from deployments.core.duration_buckets import BOUNDS_S
from deployments.core.request_meter import CANCELLED, FIRST_BUCKET, INFLIGHT, OK, SUM_NS, WIRES, code_name
from repository_loader.plan import model_of

_BATCH_BOUNDS: Final = tuple(str(1 << power) for power in range(11))
_REASONS: Final = ("full", "preferred", "delay", "next_differs", "none_waits", "stopping")
_STATES: Final = ("ready", "loading", "unavailable")
LabelsOf = Callable[[str, int], str]


def write_own(out: Exposition, rows: RowsByKind, labels_of: LabelsOf) -> None:
    """Write the families whose names begin with `eagleray_`, but for those of the directory."""
    _write_clients(out, rows, labels_of)
    _write_queues(out, rows, labels_of)
    _write_batches(out, rows, labels_of)
    _write_replicas(out, rows, labels_of)
    _write_cluster(out, rows, labels_of)


def _write_clients(out: Exposition, rows: RowsByKind, labels_of: LabelsOf) -> None:
    clients = [
        (f'{labels_of(label.name, label.version)},protocol="{WIRES[label.number]}"', label.number, row.values())
        for label, row in rows.get(CLIENT, ())
    ]
    out.histograms(
        "eagleray_request_duration_seconds",
        "Time from a client's request to its last response, in the ingress, of requests that have succeeded",
        BOUNDS_S,
        ((labels, values[FIRST_BUCKET:], values[SUM_NS] / 1e9) for labels, _, values in clients),
    )
    answered: list[Sample] = [
        (f'{labels},code="{OK[wire]}"', sum(values[FIRST_BUCKET:])) for labels, wire, values in clients
    ]
    for label, row in rows.get(CLIENT_ERROR, ()):
        protocol, code = code_name(label.number)
        whose = f"{labels_of(label.name, label.version)}," if label.name else ""
        answered.append((f'{whose}protocol="{protocol}",code="{code}"', row.count))
    text = "Number of answers that clients got, by code; without a model, errors whose requests no model had"
    out.family("eagleray_responses_total", "counter", text, answered)
    cancelled = ((labels, values[CANCELLED]) for labels, _, values in clients)
    text = "Number of requests that clients gave up before they were answered"
    out.family("eagleray_cancelled_requests_total", "counter", text, cancelled)
    under_way = ((labels, values[INFLIGHT]) for labels, _, values in clients)
    text = "Number of clients' requests under way, when last looked at"
    out.family("eagleray_inflight_requests", "gauge", text, under_way)


def _write_queues(out: Exposition, rows: RowsByKind, labels_of: LabelsOf) -> None:
    waited = [(labels_of(label.name, label.version), row.values()) for label, row in rows.get(QUEUE, ())]
    out.histograms(
        "eagleray_queue_duration_seconds",
        "Time that requests have waited for an instance of their model",
        BOUNDS_S,
        ((labels, values[1:], values[0] / 1e9) for labels, values in waited if any(values)),
    )
    states = [(labels_of(label.name, label.version), row) for label, row in rows.get(STATE, ())]
    text = "Age of the request that waits the longest, when last looked at"
    oldest = ((labels, row.oldest_age_ns / 1e9) for labels, row in states)
    out.family("eagleray_oldest_request_age_seconds", "gauge", text, oldest)
    text = "Number of requests in a model's instances, when last looked at"
    out.family("eagleray_executing_requests", "gauge", text, ((labels, row.executing_count) for labels, row in states))


def _write_batches(out: Exposition, rows: RowsByKind, labels_of: LabelsOf) -> None:
    sizes = (
        (labels_of(*version), *_batch_sizes((label.number, row.count) for label, row in each))
        for version, each in groupby(rows.get(BATCH_SIZE, ()), lambda each: each[0][1:3])
    )
    out.histograms("eagleray_batch_size", "Rows of the batches that have run", _BATCH_BOUNDS, sizes)
    reasons = (
        (f'{labels_of(label.name, label.version)},reason="{reason}"', getattr(row, reason))
        for label, row in rows.get(BATCH_REASON, ())
        if any(row.values())
        for reason in _REASONS
    )
    text = "Number of batches of dynamic batchers, by why each left when it did"
    out.family("eagleray_batches_total", "counter", text, reasons)


def _batch_sizes(counted: Iterable[tuple[int, int]]) -> tuple[list[int], int]:
    """Return how many batches fell into each bucket, and the rows of all of them, by sizes and how many have these."""
    counts, total = [0] * (len(_BATCH_BOUNDS) + 1), 0
    for size, count in counted:
        counts[min((size - 1).bit_length() if size > 0 else 0, len(_BATCH_BOUNDS))] += count
        total += size * count
    return counts, total


def _write_replicas(out: Exposition, rows: RowsByKind, labels_of: LabelsOf) -> None:
    replicas = (
        (f'{labels_of(label.name, label.version)},state="{state}"', getattr(row, f"{state}_count"))
        for label, row in rows.get(STATE, ())
        for state in _STATES
    )
    text = "Number of the node's processes that hold a version, by their state"
    out.family("eagleray_replicas", "gauge", text, replicas)
    failures = ((labels_of(label.name, label.version), row.count) for label, row in rows.get(LOAD_FAILURE, ()))
    out.family("eagleray_load_failures_total", "counter", "Number of loads that failed", failures)


def _write_cluster(out: Exposition, rows: RowsByKind, labels_of: LabelsOf) -> None:
    retries = ((labels_of(label.name, label.version), row.count) for label, row in rows.get(RETRY, ()))
    text = "Number of requests that another replica was asked again for"
    out.family("eagleray_lane_retries_total", "counter", text, retries)
    sent: list[Sample] = []
    for _, row in rows.get(LANES, ()):
        sent += [('path="socket"', row.socket_bytes), ('path="shared_memory"', row.shared_bytes)]
    text = "Bytes of requests and responses that processes of the node sent over lanes"
    out.family("eagleray_lane_bytes_total", "counter", text, sent)
    lanes = (("", row.open_count) for _, row in rows.get(LANES, ()))
    out.family("eagleray_lanes", "gauge", "Number of open lanes that lead to replicas", lanes)
    scaled = [(_scaled_labels(label.name, labels_of), row) for label, row in rows.get(SCALING, ())]
    decisions: list[Sample] = []
    for pairs, row in scaled:
        decisions += [(f'{pairs},direction="up"', row.up_count), (f'{pairs},direction="down"', row.down_count)]
    text = "Number of decisions of the autoscaler; on the node that the controller is on"
    out.family("eagleray_autoscaler_decisions_total", "counter", text, decisions)
    text = "Number of replicas that the autoscaler wants; on the node that the controller is on"
    out.family(
        "eagleray_autoscaler_wanted_replicas", "gauge", text, ((pairs, row.wanted_count) for pairs, row in scaled)
    )
    shadows = (
        (f'{labels_of(label.name, label.version)},outcome="{outcome}"', getattr(row, f"{outcome}_count"))
        for label, row in rows.get(SHADOW, ())
        for outcome in ("success", "failure", "dropped")
    )
    text = "Number of copies of requests that a version got for comparison, by outcome"
    out.family("eagleray_shadow_requests_total", "counter", text, shadows)


def _scaled_labels(name: str, labels_of: LabelsOf) -> str:
    """Return the labels of what is scaled: those of its version too."""
    application, deployment = name.split("/", 1)
    pairs = labels((("application", application), ("deployment", deployment)))
    return f"{labels_of(*scaled_version(name))},{pairs}"


def scaled_version(name: str) -> tuple[str, int]:
    """Return the model version of what is scaled, as the names of Serve hold it."""
    application, deployment = name.split("/", 1)
    return model_of(application), int(deployment.removeprefix("v").partition("-")[0])
