"""Where models' own metrics are counted: in rows that other processes read, or, without such, for nobody."""

import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from deployments.core.counts import (
    CUSTOM_BUCKET,
    CUSTOM_COUNTER,
    CUSTOM_GAUGE,
    CUSTOM_HELD,
    CUSTOM_SUM,
    BucketCount,
    CustomGauge,
    CustomNumber,
    Label,
    Rows,
    Totals,
)

logger = logging.getLogger(__name__)

MAX_ROWS: Final = 10_000
MAX_BYTES: Final = 4 << 20
"""What all metrics of one process may take; a histogram takes a row for each bucket."""

Labels = tuple[tuple[str, str], ...]


class NumberRow:
    """A counter."""

    def __init__(self, row: CustomNumber) -> None:
        self._row = row

    def add(self, value: float) -> None:
        """Count."""
        self._row.value += value


class GaugeRow:
    """A gauge; what nobody owns any more is not shown."""

    def __init__(self, row: CustomGauge) -> None:
        self._row = row

    def own(self) -> None:
        """Show it, from zero on when nobody did."""
        if not self._row.owners:
            self._row.set_ns, self._row.base, self._row.added = 0, 0.0, 0.0
        self._row.owners += 1

    def disown(self) -> None:
        """Show it no longer, unless others do."""
        self._row.owners -= 1

    def add(self, value: float) -> None:
        """Go up or down."""
        self._row.added += value

    def set(self, value: float) -> None:
        """Be this value."""
        self._row.set_ns, self._row.base, self._row.added = time.monotonic_ns(), value, 0.0


class HistogramRow:
    """A histogram: its sum, and its observations by bucket; one that nobody owns gives way to one of other buckets."""

    def __init__(self, total: CustomNumber, buckets: Sequence[BucketCount], held: CustomGauge) -> None:
        self._total = total
        self._buckets = buckets
        self._held = held

    def own(self) -> None:
        """Say that it is counted in."""
        self._held.owners += 1

    def disown(self) -> None:
        """Say so no longer."""
        self._held.owners -= 1

    def observe(self, bucket: int, value: float) -> None:
        """Count an observation; the last bucket is that of all greater than the last bound."""
        self._buckets[bucket].count += 1
        self._total.value += value


class MetricRows:
    """The rows of one process, made when they are first asked for."""

    def __init__(self) -> None:
        self.folder = ""
        self._make_rows: Callable[[], Rows] | None = None
        self._rows: Rows | None = None
        self._known: set[Label] = set()
        self._bytes = 0
        self._full = False

    def export_to(self, make_rows: Callable[[], Rows], folder: str) -> None:
        """Have rows from now on be those that are made with the first, and that any thread may ask for."""
        self._make_rows, self.folder = make_rows, folder
        self._rows, self._known, self._bytes, self._full = None, set(), 0, False

    def counter(self, name: str, description: str, labels: Labels) -> NumberRow:
        """Return the row of a counter."""
        return NumberRow(self._row(CUSTOM_COUNTER, _identity(name, description, labels)))

    def gauge(self, name: str, description: str, labels: Labels) -> GaugeRow:
        """Return the row of a gauge."""
        return GaugeRow(self._row(CUSTOM_GAUGE, _identity(name, description, labels)))

    def histogram(self, name: str, description: str, labels: Labels, bounds: tuple[float, ...]) -> HistogramRow:
        """Return the rows of a histogram."""
        identity = _identity(name, description, labels, bounds)
        buckets = [self._row(CUSTOM_BUCKET, identity, number) for number in range(len(bounds) + 1)]
        return HistogramRow(self._row(CUSTOM_SUM, identity), buckets, self._row(CUSTOM_HELD, identity))

    def _row(self, kind: str, identity: str, number: int = 0) -> Any:
        label = Label(kind, identity, 0, number)
        if self._rows is None:
            if self._make_rows is None:
                return Totals().row(label)
            self._rows = self._make_rows()
        if label not in self._known:
            if len(self._known) >= MAX_ROWS or self._bytes + len(identity) > MAX_BYTES:
                if not self._full:
                    self._full = True
                    logger.warning("further metrics of this process's models are not shown: there are too many")
                return Totals().row(label)
            self._known.add(label)
            self._bytes += len(identity)
        return self._rows.row(label)


def _identity(name: str, description: str, labels: Labels, bounds: tuple[float, ...] = ()) -> str:
    text = json.dumps([name, description, labels, bounds], separators=(",", ":"), ensure_ascii=False)
    return text.encode().decode()  # raises UnicodeEncodeError of what no page can show
