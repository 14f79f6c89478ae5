"""The metrics that models count themselves, from the rows of all processes of a node."""

import logging
from collections.abc import Collection, Iterator
from itertools import groupby
from typing import Any, Final, cast

import orjson
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.metrics.exposition import number
from deployments.core.counts import (
    CUSTOM_BUCKET,
    CUSTOM_COUNTER,
    CUSTOM_GAUGE,
    CUSTOM_HELD,
    CUSTOM_SUM,
    BucketCount,
    CustomGauge,
    Label,
    Totals,
)

logger = logging.getLogger(__name__)

_TYPES: Final = {CUSTOM_COUNTER: "counter", CUSTOM_GAUGE: "gauge", CUSTOM_SUM: "histogram"}


class CustomMetrics(Collector):
    """Collects the families by name; those named in `taken` are left out.

    Metrics add up whose families have one name and kind, and of their descriptions the first is shown. Processes that
    made a family in two kinds, or a histogram with two sets of buckets, cannot both be shown: the first in order is,
    of histograms the first that a model still has.
    """

    def __init__(self, totals: Totals, taken: Collection[str] = ()) -> None:
        self._rows = totals.rows
        self._taken = taken

    def collect(self) -> Iterator[Metric]:
        """Return the families that have samples."""
        made = ((label, *orjson.loads(label.name)) for label in self._rows if label.kind in _TYPES)
        in_order = sorted(made, key=lambda one: (one[1], not self._is_held(one[0]), one[0]))
        for name, each in groupby(in_order, lambda one: one[1]):
            if name not in self._taken:
                try:
                    family = self._family(name, each)
                except (TypeError, ValueError):
                    logger.exception("the metric '%s' of a model cannot be shown", name)
                    continue
                if family is not None:
                    yield family

    def _is_held(self, label: Label) -> bool:
        """Whether it is no histogram, or one that a model has."""
        held = self._rows.get(Label(CUSTOM_HELD, label.name, 0, 0))
        return label.kind != CUSTOM_SUM or (held is not None and cast(CustomGauge, held).owners > 0)

    def _family(self, name: str, each: Iterator[Any]) -> Metric | None:
        family: Metric | None = None
        shown: dict[tuple[tuple[str, str], ...], tuple[list[float], list[Label]]] = {}
        for label, _, description, pairs, bounds in each:
            row = self._rows[label]
            if isinstance(row, CustomGauge) and not row.owners:
                continue
            if family is None:
                family = Metric(name, description, _TYPES[label.kind])
            if family.type == _TYPES[label.kind]:
                first_bounds, labels = shown.setdefault(tuple(map(tuple, pairs)), (bounds, []))
                if first_bounds == bounds:
                    labels.append(label)
                    continue
            logger.debug("a second metric '%s' is not shown", name)
        for key, (bounds, labels) in shown.items():
            assert family is not None
            if family.type == "histogram":
                self._add_histogram(family, labels, dict(key), bounds)
            else:
                family.add_sample(name, dict(key), self._value(labels))
        return family

    def _add_histogram(self, family: Metric, rows: list[Label], labels: dict[str, str], bounds: list[float]) -> None:
        count = 0
        for place, bound in enumerate([*map(number, bounds), "+Inf"]):
            buckets = [self._rows.get(Label(CUSTOM_BUCKET, row.name, 0, place)) for row in rows]
            count += sum([cast(BucketCount, bucket).count for bucket in buckets if bucket is not None])
            family.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, count)
        family.add_sample(f"{family.name}_sum", labels, self._value(rows))
        family.add_sample(f"{family.name}_count", labels, count)

    def _value(self, labels: list[Label]) -> float:
        total: Any = type(self._rows[labels[0]])()
        for label in labels:
            total.add(self._rows[label].values())
        return float(total.base + total.added if isinstance(total, CustomGauge) else total.value)
