"""Prometheus text, family by family.

Families are prometheus-client's. Its own text has no counter without the suffix `_total`, which Triton's counters do
not have, and takes long: of 300 models, 41,000 samples, it takes 50 ms or more to make its samples and 200 ms to write
them, where this takes 20 ms. So what there is of each model version is given as text and value; only what a node has of
its own, and what models count, are samples of prometheus-client's. Tests read all with its parser.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from typing import Final, Literal

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample as LabelledSample

Kind = Literal["counter", "gauge", "histogram", "summary"]
Sample = tuple[str, float]
"""Labels, as `labels` returns them, and a value."""
Histograms = dict[tuple[str, str], tuple[list[int], float, Sequence[str], str]]
"""Counts, sum, bounds and text by name and labels."""
_LABELS: Final = "\0"
_LINES_AT_ONCE: Final = 1000
_SAMPLES_AT_ONCE: Final = 100


class Exposition:
    """Takes families in the order in which they are written; `pause` is called now and then.

    Most of the text are histograms, and most of these are as they were at the scrape before. What that has written of
    them, `before`, is written again; `histograms_written` is the `before` of the next scrape.
    """

    def __init__(self, pause: Callable[[], None], before: "Histograms | None" = None) -> None:
        self.names: list[str] = []
        self.lines: list[str] = []
        self.pause = pause
        self.histograms_written: Histograms = {}
        self._before: Histograms = {} if before is None else before

    def collect(self, collector: Collector) -> None:
        """Write the families of a collector of prometheus-client's."""
        for metric in collector.collect():
            self._head(metric)
            for start in range(0, len(metric.samples), _SAMPLES_AT_ONCE):
                self.lines += map(_line, metric.samples[start : start + _SAMPLES_AT_ONCE])
                self.pause()

    def family(self, name: str, kind: Kind, text: str, samples: Iterable[Sample] = ()) -> None:
        """Write a family of counters or gauges; one without samples has its head only, as Triton's."""
        self._head(Metric(name, text, kind))
        start = f"{name}{{"
        rest = iter(samples)
        while some := [
            f"{start}{labels}}} {value if type(value) is int else number(value)}"
            if labels
            else f"{name} {number(value)}"
            for labels, value in islice(rest, _SAMPLES_AT_ONCE)
        ]:
            self.lines += some
            self.pause()

    def histograms(
        self, name: str, text: str, bounds: Sequence[str], rows: Iterable[tuple[str, list[int], float]]
    ) -> None:
        """Write a family of histograms with common bounds: labels, counts by bucket (the last without bound), sum."""
        self._head(Metric(name, text, "histogram"))
        for labels, counts, total in rows:
            self.histogram(name, labels, bounds, counts, total)

    def histogram(self, name: str, labels: str, bounds: Sequence[str], counts: list[int], total: float) -> None:
        """Write one histogram of a family whose head is written."""
        key = (name, labels)
        known = self._before.get(key)
        if known is None or known[0] != counts or known[1] != total or known[2] != bounds:
            template = _histogram(name, tuple(bounds), bool(labels))
            sums = tuple(accumulate(counts))
            text = template.replace(_LABELS, labels.replace("%", "%%")) % (*sums, number(total), sums[-1])
            known = (counts, total, bounds, text)
        self.histograms_written[key] = known
        self.lines.append(known[3])
        self.pause()

    def summaries(
        self, name: str, text: str, rows: Iterable[tuple[str, list[tuple[float, float]], int, float]]
    ) -> None:
        """Write a family of summaries: labels, pairs of quantile and value, count, sum."""
        self._head(Metric(name, text, "summary"))
        for labels, quantiles, count, total in rows:
            self.lines += [
                f'{name}{{{labels},quantile="{number(quantile)}"}} {number(value)}' for quantile, value in quantiles
            ]
            self.lines += (f"{name}_sum{{{labels}}} {number(total)}", f"{name}_count{{{labels}}} {count}")
            self.pause()

    def _head(self, metric: Metric) -> None:
        self.names.append(metric.name)
        text = f"# HELP {metric.name} {one_line(metric.documentation)}"
        self.lines += (text, f"# TYPE {metric.name} {metric.type}")

    def text(self) -> bytes:
        """Return all of it."""
        parts = []
        for start in range(0, len(self.lines), _LINES_AT_ONCE):
            parts.append("\n".join(self.lines[start : start + _LINES_AT_ONCE]).encode() + b"\n")
            self.pause()
        return b"".join(parts)


def _line(sample: LabelledSample) -> str:
    pairs = labels(sample.labels.items())
    return f"{sample.name}{{{pairs}}} {number(sample.value)}" if pairs else f"{sample.name} {number(sample.value)}"


@lru_cache(maxsize=1024)
def _histogram(name: str, bounds: tuple[str, ...], labelled: bool) -> str:
    """Return the lines of a histogram, for its counts, its sum and its count."""
    before, after = (f"{_LABELS},", f"{{{_LABELS}}}") if labelled else ("", "")
    lines = [f'{name}_bucket{{{before}le="{bound}"}} %d' for bound in (*bounds, "+Inf")]
    return "\n".join((*lines, f"{name}_sum{after} %s", f"{name}_count{after} %d"))


def labels(pairs: Iterable[tuple[str, str]]) -> str:
    """Return labels as they stand between the braces."""
    return ",".join(f'{key}="{escape(value)}"' for key, value in pairs)


def label_names(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Return pairs whose first parts can be names of labels."""
    for key, value in pairs:
        yield "".join(each if each.isascii() and (each.isalnum() or each == "_") else "_" for each in key), value


def number(value: float) -> str:
    """Return a value in its shortest form."""
    if isinstance(value, int):
        return str(value)
    text = f"{value:.15g}"
    if float(text) != value:
        text = f"{value:.17g}"
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text, text)


def escape(value: str) -> str:
    """Return the value of a label as it stands between quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def one_line(text: str) -> str:
    """Return the text of a HELP line."""
    return text.replace("\\", "\\\\").replace("\n", "\\n")
