"""Prometheus text of the metrics that models count themselves, from the rows of all processes of a node."""

import logging
from collections.abc import Iterable
from typing import Any, Final, cast

import orjson

from app.metrics.exposition import escape, number, one_line
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


class _Family:
    def __init__(self, kind: str, description: str) -> None:
        self.kind = kind
        self.description = description
        self.lines: dict[str, list[str]] = {}


def render_custom(totals: Totals, taken: Iterable[str]) -> list[str]:
    """Return the lines of the families, by name; those named in `taken` are left out.

    Processes that made a family in two kinds, or a histogram with two sets of buckets, cannot both be shown: the first
    in order is.
    """
    families: dict[str, _Family] = {}
    reserved = set(taken)
    for label in sorted(label for label in totals.rows if label.kind in _TYPES):
        name, description, pairs, bounds = orjson.loads(label.name)
        row = totals.rows[label]
        if name in reserved or (isinstance(row, CustomGauge) and not row.owners):
            continue
        family = families.setdefault(name, _Family(label.kind, description))
        labels = ",".join(f'{key}="{escape(value)}"' for key, value in pairs)
        if family.kind != label.kind or labels in family.lines:
            logger.debug("a second metric '%s' is not shown", name)
        elif label.kind == CUSTOM_SUM:
            family.lines[labels] = _histogram(totals, label, name, labels, bounds)
        else:
            family.lines[labels] = [f"{_sample(name, labels)} {_value(row)}"]
    lines: list[str] = []
    for name in sorted(families):
        family = families[name]
        lines.append(f"# HELP {name} {one_line(family.description)}")
        lines.append(f"# TYPE {name} {_TYPES[family.kind]}")
        for samples in family.lines.values():
            lines += samples
    return lines


def _value(row: Any) -> str:
    value = row.base + row.added if isinstance(row, CustomGauge) else cast(CustomNumber, row).value
    return number(value)


def _histogram(totals: Totals, label: Label, name: str, labels: str, bounds: list[float]) -> list[str]:
    lines, count = [], 0
    before = f"{labels}," if labels else ""
    for place, bound in enumerate([*map(number, bounds), "+Inf"]):
        bucket = totals.rows.get(Label(CUSTOM_BUCKET, label.name, 0, place))
        count += cast(BucketCount, bucket).count if bucket is not None else 0
        lines.append(f'{name}_bucket{{{before}le="{bound}"}} {count}')
    total = cast(CustomNumber, totals.rows[label]).value
    return [*lines, f"{_sample(f'{name}_sum', labels)} {number(total)}", f"{_sample(f'{name}_count', labels)} {count}"]


def _sample(name: str, labels: str) -> str:
    return f"{name}{{{labels}}}" if labels else name
