"""Tells Ray's own metrics what Eagleray counts, under the names that the Serve pages of Ray's dashboard show.

Serve counts what passes its handles; requests of Eagleray's clients do not. A model stands there as an application, a
version as its deployment, whatever it is placed in.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from ray.util.metrics import Counter, Gauge, Histogram

from deployments.core.counts import CLIENT, CLIENT_ERROR, MODEL, STATE, Label, ModelCounts, ModelState
from deployments.core.duration_buckets import BOUNDS_NS
from deployments.core.pauses import Pauses
from deployments.core.request_meter import FIRST_BUCKET, code_name
from deployments.replica.node_counters import NodeCounters

_TAGS: Final = ("application", "deployment", "replica", "route")
_KINDS: Final = frozenset({CLIENT, CLIENT_ERROR, MODEL, STATE})
_GAUGES: Final = frozenset({MODEL, STATE})
_PENDING: Final = [field[0] for field in ModelCounts._fields_].index("pending_count")
_EXECUTING: Final = [field[0] for field in ModelState._fields_].index("executing_count")
_MAX_OBSERVATIONS: Final = 20
_BOUNDS_MS: Final = [bound / 1e6 for bound in BOUNDS_NS]
_MIDDLES_MS: Final = [
    (low + high) / 2 for low, high in zip([0.0, *_BOUNDS_MS], [*_BOUNDS_MS, 2 * _BOUNDS_MS[-1]], strict=True)
]


class RayMetrics:
    """Adds to Ray's metrics what this process's rows have gained, at each interval; never called for a request.

    Ray takes the values of a histogram one by one. It is told at most 20 for each version, protocol and interval, in
    the proportions of the buckets: quantiles stay, counts do not, which the counters have.
    """

    def __init__(self, counters: NodeCounters, replica: str, interval_s: float) -> None:
        self._counters = counters
        self._replica = replica
        self._interval_s = interval_s
        self._requests = Counter("serve_deployment_request_counter", "Requests that were answered", _TAGS)
        self._errors = Counter("serve_deployment_error_counter", "Requests that failed", (*_TAGS, "exception_type"))
        self._latency_ms = Histogram(
            "serve_deployment_processing_latency_ms", "Time from request to response", _BOUNDS_MS, _TAGS
        )
        self._queued = Gauge("serve_deployment_queued_queries", "Requests that wait", _TAGS[:3])
        self._running = Gauge("serve_replica_processing_queries", "Requests in instances", _TAGS[:3])
        self._seen: dict[Label, list[int]] = {}

    async def run(self) -> None:
        """Tell for ever."""
        while True:
            await asyncio.sleep(self._interval_s)
            await asyncio.to_thread(self.tell)

    def tell(self) -> None:
        """Tell Ray what has changed; blocks, and pauses so that the loop goes on."""
        pause = Pauses()
        for label, values in self._counters.own(_KINDS):
            self._take(label, values)
            pause()

    def _take(self, label: Label, values: list[int]) -> None:
        tags = {"application": label.name, "deployment": f"v{label.version}", "replica": self._replica}
        if label.kind in _GAUGES:
            gauge, place = (self._queued, _PENDING) if label.kind == MODEL else (self._running, _EXECUTING)
            gauge.set(values[place], tags)  # each time: Ray forgets one that nobody sets
            return
        before, self._seen[label] = self._seen.get(label), values
        if before == values:
            return
        tags["route"] = f"/v2/models/{label.name}/infer"
        gained = [new - old for new, old in zip(values, before or [0] * len(values), strict=True)]
        if label.kind == CLIENT_ERROR:
            self._errors.inc(gained[0], {**tags, "exception_type": code_name(label.number)[1]})
            self._requests.inc(gained[0], tags)
        elif any(buckets := gained[FIRST_BUCKET:]):
            self._requests.inc(sum(buckets), tags)
            for value_ms in sampled(buckets):
                self._latency_ms.observe(value_ms, tags)


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
