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
    CUSTOM_SUM,
    BucketCount,
    CustomGauge,
    CustomNumber,
    Label,
    Totals,
)

logger = logging.getLogger(__name__)

_TYPES: Final = {CUSTOM_COUNTER: "counter", CUSTOM_GAUGE: "gauge", CUSTOM_SUM: "histogram"}


class CustomMetrics(Collector):
    """Collects the families by name; those named in `taken` are left out.

    Processes that made a family in two kinds, or a histogram with two sets of buckets, cannot both be shown: the first
    in order is.
    """

    def __init__(self, totals: Totals, taken: Collection[str] = ()) -> None:
        self._rows = totals.rows
        self._taken = taken

    def collect(self) -> Iterator[Metric]:
        """Return the families that have samples."""
        made = ((label, *orjson.loads(label.name)) for label in self._rows if label.kind in _TYPES)
        for name, each in groupby(sorted(made, key=lambda one: (one[1], one[0])), lambda one: one[1]):
            if name not in self._taken:
                try:
                    family = self._family(name, each)
                except (TypeError, ValueError):
                    logger.exception("the metric '%s' of a model cannot be shown", name)
                    continue
                if family is not None:
                    yield family

    def _family(self, name: str, each: Iterator[Any]) -> Metric | None:
        family: Metric | None = None
        known: set[tuple[tuple[str, str], ...]] = set()
        for label, _, description, pairs, bounds in each:
            row = self._rows[label]
            if isinstance(row, CustomGauge) and not row.owners:
                continue
            if family is None:
                family = Metric(name, description, _TYPES[label.kind])
            key = tuple(map(tuple, pairs))
            if family.type != _TYPES[label.kind] or key in known:
                logger.debug("a second metric '%s' is not shown", name)
                continue
            known.add(key)
            if label.kind == CUSTOM_SUM:
                self._add_histogram(family, label, dict(pairs), bounds)
            else:
                family.add_sample(name, dict(pairs), _value(row))
        return family

    def _add_histogram(self, family: Metric, label: Label, labels: dict[str, str], bounds: list[float]) -> None:
        count = 0
        for place, bound in enumerate([*map(number, bounds), "+Inf"]):
            bucket = self._rows.get(Label(CUSTOM_BUCKET, label.name, 0, place))
            count += cast(BucketCount, bucket).count if bucket is not None else 0
            family.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, count)
        family.add_sample(f"{family.name}_sum", labels, cast(CustomNumber, self._rows[label]).value)
        family.add_sample(f"{family.name}_count", labels, count)


def _value(row: Any) -> float:
    value = row.base + row.added if isinstance(row, CustomGauge) else cast(CustomNumber, row).value
    return float(value)
