"""What one scrape of the metrics port returns."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from app.metrics.custom_metrics import render_custom
from app.metrics.exposition import Exposition
from app.metrics.model_labels import ModelLabels
from app.metrics.pauses import Pauses
from app.metrics.triton_metrics import write_models, write_node
from app.service.models import Models
from app.service.statistics import Statistics
from deployments.core.counts import SHADOW, ShadowCounts, Totals
from deployments.core.metrics_options import DEFAULT_OPTIONS, MetricsOptions


@dataclass(frozen=True, slots=True)
class Shown:
    """Which metrics are shown."""

    latencies: MetricsOptions = DEFAULT_OPTIONS
    cpu: bool = True
    gpu: bool = True


class Scrape:
    """Renders what the processes of the node have counted: every ingress of the node says the same."""

    def __init__(self, statistics: Statistics, models: Models, shown: Shown) -> None:
        self._statistics = statistics
        self._models = models
        self._shown = shown
        self._labels = ModelLabels()

    async def text(self) -> bytes:
        """Return the text; the loop goes on meanwhile."""
        totals = await self._statistics.of_node()
        labels_of = self._labels.of(self._models.directory.models)
        return await asyncio.to_thread(render, totals, labels_of, self._shown)


def render(totals: Totals, labels_of: Callable[[str, int], str], shown: Shown) -> bytes:
    """Return the text of counted rows; blocks."""
    out = Exposition(Pauses())
    write_models(out, totals, labels_of, shown.latencies)
    _write_shadows(out, totals, labels_of)
    write_node(out, totals, cpu=shown.cpu, gpu=shown.gpu)
    out.lines += render_custom(totals, out.names)
    return out.text()


def _write_shadows(out: Exposition, totals: Totals, labels_of: Callable[[str, int], str]) -> None:
    samples = []
    for label in sorted(label for label in totals.rows if label.kind == SHADOW):
        row, labels = cast(ShadowCounts, totals.rows[label]), labels_of(label.name, label.version)
        for outcome in ("success", "failure", "dropped"):
            samples.append((f'{labels},outcome="{outcome}"', getattr(row, f"{outcome}_count")))
    text = "Number of copies of requests that a version got for comparison, by outcome"
    out.family("eagleray_shadow_request_count", "counter", text, samples)
