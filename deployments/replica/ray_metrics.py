"""Tells Ray's own metrics what Eagleray counts, under the names that the Serve pages of Ray's dashboard show.

Serve counts what passes its proxies and handles; requests of Eagleray's clients do not. A model stands there as an
application, a version as its deployment, whatever it is placed in.
"""

import asyncio
import logging
from collections import Counter as Sums
from collections.abc import Iterator
from typing import Final

from ray.util.metrics import Counter, Gauge, Histogram

from deployments.core.counts import CLIENT, CLIENT_ERROR, MODEL, STATE, Label, ModelCounts, ModelState
from deployments.core.duration_buckets import BOUNDS_NS
from deployments.core.pauses import Pauses
from deployments.core.request_meter import FIRST_BUCKET, INFLIGHT, OK, WIRES, code_name
from deployments.replica.node_counters import NodeCounters
from repository_loader.plan import app_name

logger = logging.getLogger(__name__)

_TAGS: Final = ("application", "deployment", "replica", "route")
_ROUTE: Final = ("application", "route", "method")
_METHODS: Final = ("POST", "ModelInfer", "ModelStreamInfer")
"""By which clients ask, by wire form."""
_KINDS: Final = frozenset({CLIENT, CLIENT_ERROR, MODEL, STATE})
_PENDING: Final = [field[0] for field in ModelCounts._fields_].index("pending_count")
_COUNTERS: Final = {CLIENT: slice(FIRST_BUCKET, None), CLIENT_ERROR: slice(None)}
_EXECUTING: Final = [field[0] for field in ModelState._fields_].index("executing_count")
_READY: Final = [field[0] for field in ModelState._fields_].index("ready_count")
_MAX_OBSERVATIONS: Final = 20
_BOUNDS_MS: Final = [bound / 1e6 for bound in BOUNDS_NS]
_MIDDLES_MS: Final = [
    (low + high) / 2 for low, high in zip([0.0, *_BOUNDS_MS], [*_BOUNDS_MS, 2 * _BOUNDS_MS[-1]], strict=True)
]


class RayMetrics:
    """Adds to Ray's metrics what this process's rows have gained, at each interval; never called for a request.

    Ray takes the values of a histogram one by one. It is told at most 20 for each version, protocol and interval, in
    the proportions of the buckets: quantiles stay, counts do not, which the counters have.

    Args:
        app: the Serve application of this process; whether its own deployments are there, Serve tells.
    """

    def __init__(self, counters: NodeCounters, replica: str, app: str, interval_s: float) -> None:
        self._counters = counters
        self._replica = replica
        self._app = app
        self._interval_s = interval_s
        self._requests = Counter("serve_deployment_request_counter", "Requests that were answered", _TAGS)
        self._errors = Counter("serve_deployment_error_counter", "Requests that failed", (*_TAGS, "exception_type"))
        self._latency_ms = Histogram(
            "serve_deployment_processing_latency_ms", "Time from request to response", _BOUNDS_MS, _TAGS
        )
        self._queued = Gauge("serve_deployment_queued_queries", "Requests that wait", _TAGS[:3])
        self._running = Gauge("serve_replica_processing_queries", "Requests in instances", _TAGS[:3])
        self._healthy = Gauge("serve_deployment_replica_healthy", "Processes that serve a version", _TAGS[:3])
        self._fronts = {protocol: _Front(protocol) for protocol in ("http", "grpc")}
        self._seen: dict[Label, list[int]] = {}

    async def run(self) -> None:
        """Tell for ever."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await asyncio.to_thread(self.tell)
            except RuntimeError as error:  # a thread cannot be started
                logger.warning("Ray's metrics are told later what is counted here: %s", error)

    def tell(self) -> None:
        """Tell Ray what has changed; blocks, and pauses so that the loop goes on."""
        pause = Pauses()
        ongoing: Sums[str] = Sums()
        queued: Sums[tuple[str, int]] = Sums()
        before, self._seen = self._seen, {}
        for label, values in self._counters.own(_KINDS):
            if label.kind == MODEL:
                queued[label.name, label.version] += values[_PENDING]
            else:
                self._take(label, values, before.get(label))
            if label.kind == CLIENT:
                ongoing[_protocol(label.number)] += values[INFLIGHT]
            pause()
        for version, count in queued.items():
            self._queued.set(count, self._tags(*version))
        for protocol, count in ongoing.items():
            self._fronts[protocol].ongoing.set(count, {"replica": self._replica})

    def _tags(self, name: str, version: int) -> dict[str, str]:
        return {"application": name, "deployment": f"v{version}", "replica": self._replica}

    def _take(self, label: Label, values: list[int], before: list[int] | None) -> None:
        tags = self._tags(label.name, label.version)
        if label.kind == STATE:
            self._running.set(values[_EXECUTING], tags)  # each time: Ray forgets one that nobody sets
            if self._app != app_name(label.name):
                self._healthy.set(values[_READY], tags)
            return
        self._seen[label] = values
        if before == values:
            return
        if before is not None and sum(values[_COUNTERS[label.kind]]) < sum(before[_COUNTERS[label.kind]]):
            before = None  # given back meanwhile, and made anew
        tags["route"] = f"/v2/models/{label.name}/infer"
        gained = [new - old for new, old in zip(values, before or [0] * len(values), strict=True)]
        if not any(gained):  # a row that is new; Ray takes no 0
            return
        if label.kind == CLIENT_ERROR:
            wire, code = code_name(label.number)
            self._errors.inc(gained[0], {**tags, "exception_type": code})
            self._requests.inc(gained[0], tags)
            self._fronts[wire.partition("_")[0]].fail(label.name, WIRES.index(wire), gained[0], code)
        elif any(buckets := gained[FIRST_BUCKET:]):
            self._requests.inc(sum(buckets), tags)
            front, route = self._fronts[_protocol(label.number)], _route(label.name, label.number)
            front.requests.inc(sum(buckets), {**route, "status_code": OK[label.number]})
            for value_ms in sampled(buckets):
                self._latency_ms.observe(value_ms, tags)
                front.latency_ms.observe(value_ms, {**route, "status_code": OK[label.number]})


class _Front:
    """What Serve counts of a proxy, of one protocol."""

    def __init__(self, protocol: str) -> None:
        tags = (*_ROUTE, "status_code")
        self.requests = Counter(f"serve_num_{protocol}_requests", "Requests that were answered", tags)
        self._errors = Counter(f"serve_num_{protocol}_error_requests", "Requests that failed", (*_ROUTE, "error_code"))
        text = "Time from request to response"
        self.latency_ms = Histogram(f"serve_{protocol}_request_latency_ms", text, _BOUNDS_MS, tags)
        self.ongoing = Gauge(f"serve_num_ongoing_{protocol}_requests", "Requests under way", ("replica",))

    def fail(self, model: str, wire: int, count: int, code: str) -> None:
        """Count requests that got an error."""
        route = _route(model, wire)
        self.requests.inc(count, {**route, "status_code": code})
        self._errors.inc(count, {**route, "error_code": code})


def _protocol(wire: int) -> str:
    return WIRES[wire].partition("_")[0]


def _route(model: str, wire: int) -> dict[str, str]:
    """Return whose requests they are, and how they came."""
    method = _METHODS[wire]
    if not wire:
        return {"application": model, "route": f"/v2/models/{model}/infer", "method": method}
    return {"application": model, "route": model, "method": f"/inference.GRPCInferenceService/{method}"}


def sampled(buckets: list[int]) -> Iterator[float]:
    """Yield the middles of buckets, in milliseconds, each about as often as its share says."""
    total = sum(buckets)
    wanted = min(total, _MAX_OBSERVATIONS)
    counted = told = 0
    for bucket, middle_ms in zip(buckets, _MIDDLES_MS, strict=True):
        counted += bucket
        due = -(-counted * wanted // total) if bucket else told
        for _ in range(due - told):
            yield middle_ms
        told = max(told, due)
