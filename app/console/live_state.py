"""What the console and `eagleray top` show of all models: states and counters of the whole cluster, as one document.

Counters only grow, and rates and quantiles of a time are for whoever has two documents. One document serves everybody
who asks within a second or more: so long that making it costs this process about 1 % of a processor's time.
"""

import asyncio
import gzip
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, cast

import orjson

from app.service.service import Service
from app.service.statistics import NodeTotals
from deployments.control.directory import UNAVAILABLE, ModelEntry
from deployments.core.counts import (
    BATCH_REASON,
    BATCH_SIZE,
    CLIENT,
    CPU,
    GPU,
    STATE,
    Counts,
    CpuState,
    GpuState,
    ModelCounts,
    ModelState,
    Totals,
)
from deployments.core.duration_buckets import BOUNDS_NS
from deployments.core.pauses import Pauses
from deployments.core.request_meter import FAILED, FIRST_BUCKET, INFLIGHT

_MIN_AGE_S: Final = 1.0
_MAX_AGE_S: Final = 30.0
_SHARE: Final = 0.01
_KINDS: Final = frozenset({CLIENT, BATCH_SIZE, BATCH_REASON, STATE})

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StateDocument:
    """JSON, and the same compressed; `made_s` is when it was made, by the loop's clock, `good_s` for how long it is."""

    content: bytes
    compressed: bytes
    made_s: float
    good_s: float


class LiveState:
    """Makes the document when somebody asks and the last one is old; `clock_s` is monotonic."""

    def __init__(self, service: Service, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._clock_s = clock_s
        self._last: StateDocument | None = None
        self._making: asyncio.Task[StateDocument] | None = None

    async def document(self) -> StateDocument:
        """Return the document.

        Raises:
            Unavailable: nothing is known of any model yet.
        """
        last = self._last
        if last is not None and self._clock_s() - last.made_s < last.good_s:
            return last
        if self._making is None:
            self._making = asyncio.create_task(self._make(), name="state for the console")
            self._making.add_done_callback(self._made)
        return await asyncio.shield(self._making)

    def _made(self, making: asyncio.Task[StateDocument]) -> None:
        self._making = None

    async def _make(self) -> StateDocument:
        self._service.models.require_known()
        began_s, at_ms = self._clock_s(), round(time.time() * 1000)
        nodes = await self._service.statistics.of_nodes()
        rows, server = self._rows(), self._server()
        self._last = await asyncio.to_thread(_write, server, rows, nodes, began_s, at_ms)
        return self._last

    def _server(self) -> Row:
        metadata = self._service.metadata.server()
        return {"name": metadata["name"], "version": metadata["version"], "ready": self._service.health.server_ready()}

    def _rows(self) -> list[Row]:
        """Return what the directory says of each model version, as the repository index does."""
        rows: list[Row] = []
        metadata, models = self._service.metadata, self._service.models
        for name, entry in sorted(models.directory.models.items()):
            plain_name = models.plain_name(name)
            if not entry.versions:
                state = UNAVAILABLE if entry.reason else ""
                rows.append(_row(name, plain_name, 0, entry) | {"state": state, "reason": entry.reason})
            for number, version in sorted(entry.versions.items()):
                state, reason = metadata.state(name, number, version)
                rows.append(
                    _row(name, plain_name, number, entry)
                    | {
                        "state": state,
                        "reason": reason,
                        "placement": version.placement,
                        "device": version.device,
                        "replicas": version.replicas,
                        "load_s": round(version.seconds, 3),
                    }
                )
        return rows


def _row(name: str, plain_name: str, version: int, entry: ModelEntry) -> Row:
    return {
        "id": name,
        "name": plain_name,
        "version": version,
        "backend": entry.backend,
    }


def _write(server: Row, rows: list[Row], nodes: list[NodeTotals], began_s: float, at_ms: int) -> StateDocument:
    """Make the document of what was counted at `at_ms`; blocks, and pauses so that a loop in another thread goes on."""
    pause, spent_s = Pauses(), time.thread_time()
    machines = [_machine(node) for node in nodes]
    own, *others = (node.totals for node in nodes)
    for other in others:
        own.add_totals(other)
    counted = _by_version(own, pause)
    for row in rows:
        row |= counted.get((row["id"], row["version"]), {})
    pause()
    document = {
        "at_ms": at_ms,
        "server": server,
        "bounds_us": [bound // 1000 for bound in BOUNDS_NS],
        "nodes": machines,
        "models": rows,
    }
    content = orjson.dumps(document)
    pause()
    compressed = gzip.compress(content, 1)
    spent_s = time.thread_time() - spent_s + sum(node.spent_s for node in nodes)
    return StateDocument(content, compressed, began_s, min(max(_MIN_AGE_S, spent_s / _SHARE), _MAX_AGE_S))


def _machine(node: NodeTotals) -> Row:
    machine: Row = {"id": node.node_id, "address": node.address, "gpus": []}
    for label, row in node.totals.rows.items():
        if label.kind == CPU:
            cpu = cast(CpuState, row)
            machine |= {"cpu": cpu.utilization_ppm / 1e6, "memory": [cpu.used_bytes, cpu.total_bytes]}
        elif label.kind == GPU:
            gpu = cast(GpuState, row)
            busy = {"busy": gpu.utilization_ppm / 1e6, "memory": [gpu.used_bytes, gpu.total_bytes]}
            machine["gpus"].append({"number": label.number, "uuid": label.name, "power_w": gpu.power_mw / 1e3} | busy)
    machine["gpus"].sort(key=itemgetter("number"))
    return machine


def _by_version(totals: Totals, pause: Callable[[], None]) -> dict[tuple[str, int], Row]:
    found: dict[tuple[str, int], Row] = {}
    for label, counts in totals.rows.items():
        if label.kind not in _KINDS:
            continue
        row = found.setdefault((label.name, label.version), {})
        if label.kind == CLIENT:
            _add_client(row, counts.values())
        elif label.kind == BATCH_SIZE:
            row.setdefault("batch_sizes", {})[str(label.number)] = counts.values()[0]
        elif label.kind == BATCH_REASON:
            _add_reasons(row, counts)
        elif label.kind == STATE:
            state = cast(ModelState, counts)
            row |= {"executing": state.executing_count, "oldest_us": state.oldest_age_ns // 1000}
            row |= {"ready": state.ready_count, "loading": state.loading_count, "unready": state.unavailable_count}
        pause()
    for version, counts in totals.models().items():
        _add_model(found.setdefault(version, {}), counts)
    return found


def _add_model(row: Row, counts: ModelCounts) -> None:
    row["success"] = counts.success_count
    row["failed"] = counts.rejected_count + counts.backend_count + counts.other_count  # without clients that gave up
    row["inferences"], row["batches"] = counts.inference_count, counts.execution_count
    row["request_us"], row["queue_us"] = counts.success_ns // 1000, counts.queue_ns // 1000
    compute_ns = counts.compute_input_ns + counts.compute_infer_ns + counts.compute_output_ns
    row["compute_us"], row["computed"] = compute_ns // 1000, counts.compute_count
    row["cache_hits"], row["pending"] = counts.cache_hit_count, counts.pending_count


def _add_client(row: Row, values: list[int]) -> None:
    """Add what clients got in one wire form; `latency` is their successes by bucket, without the empty last ones."""
    row["in_flight"] = row.get("in_flight", 0) + values[INFLIGHT]
    row["client_errors"] = row.get("client_errors", 0) + values[FAILED]
    row["latency"] = _trimmed(_sums(row.get("latency", ()), values[FIRST_BUCKET:]))


def _add_reasons(row: Row, counts: Counts) -> None:
    names = (str(field[0]) for field in counts._fields_)
    row["batch_reasons"] = {name: count for name, count in zip(names, counts.values(), strict=True) if count}


def _sums(known: Iterable[int], more: list[int]) -> list[int]:
    sums = list(more)
    for place, count in enumerate(known):
        sums[place] += count
    return sums


def _trimmed(counts: list[int]) -> list[int]:
    while counts and not counts[-1]:
        counts.pop()
    return counts
