"""What one scrape of the metrics port returns."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from app.metrics.custom_metrics import CustomMetrics
from app.metrics.directory_metrics import write_directory
from app.metrics.eagleray_metrics import scaled_version, write_own
from app.metrics.exposition import Exposition, Histograms
from app.metrics.model_labels import model_labels
from app.metrics.node_metrics import NodeMetrics
from app.metrics.triton_metrics import write_aliases, write_models
from app.service.models import Models
from app.service.statistics import Statistics
from deployments.control.directory import ModelEntry
from deployments.core.counts import OF_VERSIONS, SCALING, RowsByKind, Totals
from deployments.core.metrics_options import DEFAULT_OPTIONS, MetricsOptions
from deployments.core.pauses import Pauses
from deployments.replica.process_memory import without_collections

_ENTRIES_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class Shown:
    """Which metrics are shown."""

    latencies: MetricsOptions = DEFAULT_OPTIONS
    cpu: bool = True
    gpu: bool = True
    aliases: bool = False


class Scrape:
    """Renders what the processes of the node have counted: every ingress of the node says the same."""

    def __init__(self, statistics: Statistics, models: Models, shown: Shown) -> None:
        self._statistics = statistics
        self._models = models
        self._shown = shown
        self._histograms: Histograms = {}
        self._running: asyncio.Task[bytes] | None = None
        self._next: asyncio.Task[bytes] | None = None

    async def text(self) -> bytes:
        """Return the text of now; the loop goes on meanwhile. Those who ask while one is made share the next."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running), name="scrape")
        return await asyncio.shield(self._next)

    async def _after(self, before: asyncio.Task[bytes] | None) -> bytes:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        return await self._make()

    async def _make(self) -> bytes:
        with without_collections():
            totals = await self._statistics.of_node()
            models = dict(self._models.directory.models)
            out = Exposition(Pauses(), self._histograms)
            text = await asyncio.to_thread(render, totals, model_labels(models), self._shown, models, out)
        self._histograms = out.histograms_written
        return text


def render(
    totals: Totals,
    labels_of: Callable[[str, int], str],
    shown: Shown,
    models: Mapping[str, ModelEntry],
    out: Exposition | None = None,
) -> bytes:
    """Return the text of counted rows; blocks, and pauses so that a loop in another thread goes on."""
    if out is None:
        out = Exposition(Pauses())
    write(out, totals, labels_of, shown, models)
    return out.text()


def write(
    out: Exposition,
    totals: Totals,
    labels_of: Callable[[str, int], str],
    shown: Shown,
    models: Mapping[str, ModelEntry],
) -> None:
    """Write every family."""
    known = _without_long_gone(models, out.pause)
    rows = totals.by_kind(out.pause)
    if models:  # before anything is known of them, all are told of
        rows = _rows_of(known, rows, out.pause)
    write_models(out, rows, labels_of, shown.latencies)
    if shown.aliases:
        write_aliases(out, rows, labels_of)
    out.collect(NodeMetrics(rows, cpu=shown.cpu, gpu=shown.gpu, aliases=shown.aliases))
    write_own(out, rows, labels_of)
    write_directory(out, labels_of, known)
    out.collect(CustomMetrics(totals, frozenset(out.names)))


def _without_long_gone(models: Mapping[str, ModelEntry], pause: Callable[[], None]) -> Mapping[str, ModelEntry]:
    """Return the models without the versions that were unloaded an hour ago or earlier."""
    known: dict[str, ModelEntry] = {}
    for number, (name, entry) in enumerate(models.items()):
        versions = {version: state for version, state in entry.versions.items() if not state.long_gone}
        if len(versions) == len(entry.versions):
            known[name] = entry
        elif versions:
            known[name] = replace(entry, versions=versions)
        if number % _ENTRIES_AT_ONCE == 0:
            pause()
    return known


def _rows_of(models: Mapping[str, ModelEntry], rows: RowsByKind, pause: Callable[[], None]) -> RowsByKind:
    """Return the rows without those of versions that are not there; where models come and go, such are many."""
    versions = {(name, version) for name, entry in models.items() for version in entry.versions}
    whole = {"", *(name for name, entry in models.items() if not entry.versions)}
    kept = dict(rows)
    for kind in OF_VERSIONS & rows.keys():
        kept[kind] = [row for row in rows[kind] if row[0][1:3] in versions or row[0].name in whole]
        pause()
    kept[SCALING] = [row for row in rows.get(SCALING, ()) if scaled_version(row[0].name) in versions]
    return kept
