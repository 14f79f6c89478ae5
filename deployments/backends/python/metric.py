"""`pb_utils.MetricFamily`: metrics that a model counts itself, kept in this process until they are scraped."""

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from weakref import WeakValueDictionary

from deployments.backends.python.errors import TritonModelException

COUNTER = 0
GAUGE = 1
HISTOGRAM = 2

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of one metric; `bucket_counts` are cumulative, one for each bound, and empty unless a histogram."""

    labels: Labels
    value: float
    buckets: tuple[float, ...] = ()
    bucket_counts: tuple[int, ...] = ()
    count: int = 0


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family and its samples; `kind` is COUNTER, GAUGE or HISTOGRAM."""

    name: str
    description: str
    kind: int
    samples: tuple[Sample, ...]


class _Cell:
    """The value that all metrics of one family with equal labels share; gone with the last of them."""

    def __init__(self, family: "_Family", labels: Labels, buckets: tuple[float, ...]) -> None:
        self.family = family
        self.labels = labels
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.value = 0.0

    def sample(self) -> Sample:
        cumulative, total = [], 0
        for count in self.counts:
            total += count
            cumulative.append(total)
        return Sample(self.labels, self.value, self.buckets, tuple(cumulative[:-1]), total)


class _Family:
    """What all `MetricFamily` objects of one name share; gone with the last of them and of their metrics."""

    def __init__(self, name: str, description: str, kind: int) -> None:
        self.name = name
        self.description = description
        self.kind = kind
        self.cells: WeakValueDictionary[Labels, _Cell] = WeakValueDictionary()


_lock = threading.Lock()
_families: WeakValueDictionary[str, _Family] = WeakValueDictionary()


def collect() -> list[Family]:
    """Return the state of every metric of every model in this process; any thread may call it."""
    with _lock:
        return [
            Family(
                family.name,
                family.description,
                family.kind,
                tuple(cell.sample() for cell in list(family.cells.values())),
            )
            for family in list(_families.values())
        ]


class Metric:
    """One metric of a family, told apart by its labels. Methods may be called from any thread."""

    def __init__(self, cell: _Cell) -> None:
        self._cell = cell

    def increment(self, value: float) -> None:
        """Add to a counter or gauge.

        Raises:
            TritonModelException: the metric is a histogram, or a counter would decrease.
        """
        kind = self._cell.family.kind
        if kind == HISTOGRAM:
            raise TritonModelException("Failed to increment metric value: histograms do not support increment.")
        if kind == COUNTER and value < 0:
            raise TritonModelException(
                "Failed to increment metric value: counters can only be incremented by values >= 0."
            )
        with _lock:
            self._cell.value += value

    def set(self, value: float) -> None:
        """Set a gauge.

        Raises:
            TritonModelException: the metric is no gauge.
        """
        if self._cell.family.kind != GAUGE:
            raise TritonModelException("Failed to set metric value: only gauges support set.")
        with _lock:
            self._cell.value = float(value)

    def observe(self, value: float) -> None:
        """Put one observation into a histogram.

        Raises:
            TritonModelException: the metric is no histogram.
        """
        cell = self._cell
        if cell.family.kind != HISTOGRAM:
            raise TritonModelException("Failed to observe metric value: only histograms support observe.")
        with _lock:
            cell.counts[bisect_left(cell.buckets, value)] += 1
            cell.value += value

    def value(self) -> float:
        """Return the value of a counter or gauge.

        Raises:
            TritonModelException: the metric is a histogram.
        """
        if self._cell.family.kind == HISTOGRAM:
            raise TritonModelException("Failed to get metric value: histograms do not have a single value.")
        return self._cell.value


class MetricFamily:
    """A name, a description and a kind; families of equal name and kind are one."""

    COUNTER = COUNTER
    GAUGE = GAUGE
    HISTOGRAM = HISTOGRAM

    def __init__(self, name: str, description: str, kind: int) -> None:
        if kind not in (COUNTER, GAUGE, HISTOGRAM):
            raise TritonModelException("Unknown metric kind.")
        with _lock:
            family = _families.get(name)
            if family is None:
                family = _families[name] = _Family(name, description, kind)
        if family.kind != kind:
            raise TritonModelException(f"Metric family '{name}' already exists with another kind.")
        self._family = family

    def Metric(self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None) -> Metric:
        """Return the metric with these labels; a histogram needs ascending `buckets`, other kinds take none.

        Raises:
            TritonModelException: buckets are missing, not ascending, or given for another kind.
        """
        bounds = _checked_buckets(self._family.kind, buckets)
        key = tuple(sorted((labels or {}).items()))
        with _lock:
            cell = self._family.cells.get(key)
            if cell is None:
                cell = self._family.cells[key] = _Cell(self._family, key, bounds)
        return Metric(cell)


def _checked_buckets(kind: int, buckets: Sequence[float] | None) -> tuple[float, ...]:
    if kind != HISTOGRAM:
        if buckets is not None:
            raise TritonModelException("Unexpected buckets found: only histograms take buckets.")
        return ()
    if buckets is None:
        raise TritonModelException("Missing required parameter buckets for a histogram.")
    bounds = tuple(float(bound) for bound in buckets)
    if any(right <= left for left, right in pairwise(bounds)):
        raise TritonModelException("Histogram buckets must be in ascending order.")
    return bounds
