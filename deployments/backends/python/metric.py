"""`pb_utils.MetricFamily`: metrics that a model counts itself, in rows that the node's `/metrics` is made from."""

import math
import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import Final
from weakref import WeakValueDictionary

from deployments.backends.python.errors import TritonModelException
from deployments.backends.python.metric_rows import (
    MAX_ROWS,
    GaugeRow,
    HistogramRow,
    Labels,
    MetricRows,
    NumberRow,
)
from deployments.backends.python.text import text_argument
from deployments.core.counts import Rows


class MetricKind(IntEnum):
    """What a family counts."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


COUNTER, GAUGE, HISTOGRAM = MetricKind
MAX_LABELS: Final = 32
MAX_BUCKETS: Final = 128
MAX_TEXT: Final = 1024
_FAMILY_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class _Cell:
    """The value that all metrics of one name with equal labels share; gone with the last of them and of their families.

    It starts at zero; its `row`, which others read, goes on from where it was.
    """

    def __init__(self, family: "_Family", labels: Labels, buckets: tuple[float, ...]) -> None:
        self.family = family
        self.buckets = buckets
        self.value = 0.0
        self.row: NumberRow | GaugeRow | HistogramRow
        if family.kind == COUNTER:
            self.row = _rows.counter(family.name, family.description, labels)
        elif family.kind == GAUGE:
            self.row = gauge = _rows.gauge(family.name, family.description, labels)
            gauge.own()
        else:
            self.row = histogram = _rows.histogram(family.name, family.description, labels, buckets)
            histogram.own()

    def __del__(self) -> None:
        row = getattr(self, "row", None)
        if isinstance(row, GaugeRow | HistogramRow):
            row.disown()


class _Family:
    """What all `MetricFamily` objects of one name share; gone with the last of them and of their metrics."""

    def __init__(self, name: str, description: str, kind: int) -> None:
        self.name = name
        self.description = description
        self.kind = kind
        self.cells: WeakValueDictionary[Labels, _Cell] = WeakValueDictionary()


_lock = threading.RLock()  # a cell may be collected while another is made
_families: WeakValueDictionary[str, _Family] = WeakValueDictionary()
_rows = MetricRows()


def export_to(make_rows: Callable[[], Rows], folder: str = "") -> None:
    """Have metrics that are made from now on be counted in rows, which are made with the first of them.

    A process does it once, before it loads models. `folder` is where the rows of the node's processes lie.
    """
    _rows.export_to(make_rows, folder)


def exported_to() -> str:
    """Return the folder, for a process of a model's own, which has rows of its own; "" without one."""
    return _rows.folder


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
        cell = self._cell
        assert not isinstance(cell.row, HistogramRow)
        with _lock:
            cell.value += value
            cell.row.add(value)

    def set(self, value: float) -> None:
        """Set a gauge.

        Raises:
            TritonModelException: the metric is no gauge.
        """
        cell = self._cell
        if not isinstance(cell.row, GaugeRow):
            raise TritonModelException("Failed to set metric value: only gauges support set.")
        with _lock:
            cell.value = float(value)
            cell.row.set(cell.value)

    def observe(self, value: float) -> None:
        """Put one observation into a histogram.

        Raises:
            TritonModelException: the metric is no histogram.
        """
        cell = self._cell
        if not isinstance(cell.row, HistogramRow):
            raise TritonModelException("Failed to observe metric value: only histograms support observe.")
        with _lock:
            cell.row.observe(bisect_left(cell.buckets, value), value)

    def value(self) -> float:
        """Return the value of a counter or gauge.

        Raises:
            TritonModelException: the metric is a histogram.
        """
        if self._cell.family.kind == HISTOGRAM:
            raise TritonModelException("Failed to get metric value: histograms do not have a single value.")
        return self._cell.value


class MetricFamily:
    """A name, a description and a kind; families of equal name and kind are one.

    Metrics that were made of it stay as long as it does, whether or not the model keeps them, as in Triton.
    """

    COUNTER = COUNTER
    GAUGE = GAUGE
    HISTOGRAM = HISTOGRAM

    def __init__(self, name: str, description: str, kind: int) -> None:
        name, description = text_argument("'name'", name), text_argument("'description'", description)
        if kind not in (COUNTER, GAUGE, HISTOGRAM):
            raise TritonModelException("Unknown metric kind.")
        if len(name) > MAX_TEXT or _FAMILY_NAME.fullmatch(name) is None:
            raise TritonModelException(f"Failed to create metric family: invalid metric name '{name[:MAX_TEXT]}'.")
        if len(description) > MAX_TEXT:
            raise TritonModelException(f"Failed to create metric family: description over {MAX_TEXT} characters.")
        with _lock:
            family = _families.get(name)
            if family is None:
                family = _families[name] = _Family(name, description, kind)
        if family.kind != kind:
            raise TritonModelException(f"Metric family '{name}' already exists with another kind.")
        self._family = family
        self._made: set[_Cell] = set()

    def Metric(self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None) -> Metric:
        """Return the metric with these labels; a histogram needs ascending `buckets`, other kinds take none.

        Raises:
            TritonModelException: buckets are missing, not ascending, or given for another kind; labels are no labels.
        """
        bounds = _checked_buckets(self._family.kind, buckets)
        key = _checked_labels({} if labels is None else labels)
        with _lock:
            cell = self._family.cells.get(key)
            if cell is None:
                cell = self._family.cells[key] = _Cell(self._family, key, bounds)
            if len(self._made) < MAX_ROWS:  # more are not shown
                self._made.add(cell)
        return Metric(cell)


def _checked_labels(labels: Mapping[str, str]) -> Labels:
    if not isinstance(labels, Mapping):
        raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
    if len(labels) > MAX_LABELS:
        raise TritonModelException(f"Failed to create metric: more than {MAX_LABELS} labels.")
    for name, value in labels.items():
        if not isinstance(name, str) or len(name) > MAX_TEXT or _LABEL_NAME.fullmatch(name) is None or name == "le":
            raise TritonModelException(f"Failed to create metric: invalid label name '{str(name)[:MAX_TEXT]}'.")
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            raise TritonModelException(f"Failed to create metric: label '{name}' is no string of at most {MAX_TEXT}.")
    if sum(len(name) + len(value) for name, value in labels.items()) > 4 * MAX_TEXT:
        raise TritonModelException(f"Failed to create metric: labels over {4 * MAX_TEXT} characters.")
    return tuple(sorted(labels.items()))


def _checked_buckets(kind: int, buckets: Sequence[float] | None) -> tuple[float, ...]:
    if kind != HISTOGRAM:
        if buckets is not None:
            raise TritonModelException("Failed to create metric. Unexpected buckets found; only histograms have some.")
        return ()
    if buckets is None:
        raise TritonModelException("Failed to create metric. Missing required buckets.")
    try:
        bounds = tuple(float(bound) for bound in buckets)
    except (TypeError, ValueError):
        raise TritonModelException("Failed to create metric. Buckets must be a list of numbers.") from None
    if bounds and bounds[-1] == math.inf:
        bounds = bounds[:-1]  # which every histogram has besides
    if not all(map(math.isfinite, bounds)):
        raise TritonModelException("Histogram buckets must be finite.")
    if len(bounds) > MAX_BUCKETS:
        raise TritonModelException(f"Histograms may have {MAX_BUCKETS} buckets.")
    if any(right <= left for left, right in pairwise(bounds)):
        raise TritonModelException("Histogram buckets must be in ascending order.")
    return bounds
