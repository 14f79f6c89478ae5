"""Draws a dashboard as SVG, from the answers of a Prometheus: its panels as Grafana lays them out."""

import math
import re
from collections.abc import Callable, Iterator
from html import escape
from typing import Any, Final

from deploy.grafana.dashboards import Dashboard, Panel

Series = list[dict[str, Any]]
Ask = Callable[[str], Series]
"""Answers a query over the time that the picture shows."""

_COLORS: Final = ("#3b7dd8", "#e07b39", "#3a9d5d", "#c8479a", "#8c6bd1", "#b5a332", "#4aa8b5", "#d14b4b")
_COLUMN: Final = 44
_PANEL_HEIGHT: Final = 170
_STAT_HEIGHT: Final = 84
_GAP: Final = 8
_LEGENDS: Final = 6
_LINE: Final = 12
_NAMED: Final = {"green": "#3a9d5d", "orange": "#e07b39", "red": "#d14b4b"}
_PREFIXES: Final = ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1, " "))


def draw(dashboard: Dashboard, ask: Ask, caption: str) -> str:
    """Return the picture."""
    width = 24 * _COLUMN + _GAP
    parts: list[str] = []
    y = 34.0
    for title, row in dashboard.rows.items():
        parts.append(f'<text x="{_GAP}" y="{y + 14:g}" font-size="13" font-weight="bold">{escape(title)}</text>')
        y += 22
        stats = all(panel.kind == "stat" for panel in row)
        columns, height = (len(row), _STAT_HEIGHT) if stats else (2, _PANEL_HEIGHT)
        across = (width - _GAP) / columns
        for place, panel in enumerate(row):
            x, top = _GAP + place % columns * across, y + place // columns * (height + _GAP)
            parts.append(
                f'<g transform="translate({x:g},{top:g})">{"".join(_panel(panel, ask, across - _GAP, height))}</g>'
            )
        y += -(-len(row) // columns) * (height + _GAP)
    head = f'<text x="{_GAP}" y="22" font-size="16">Eagleray: {dashboard.name}</text>'
    foot = f'<text x="{_GAP}" y="{y + 14:g}" fill="#666">{escape(caption)}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y + 24:g}" viewBox="0 0 {width} {y + 24:g}" '
        f'font-family="sans-serif" font-size="11" fill="#222"><rect width="100%" height="100%" fill="#f4f5f7"/>'
        f"{head}\n" + "\n".join(parts) + f"\n{foot}</svg>\n"
    )


def _panel(panel: Panel, ask: Ask, width: float, height: float) -> Iterator[str]:
    yield f'<rect width="{width:g}" height="{height}" rx="3" fill="#fff" stroke="#ddd"/>'
    yield f'<text x="8" y="15" font-weight="bold">{escape(panel.title)}</text>'
    series = [
        (_legend(legend, found["metric"]), _points(found["values"]))
        for legend, query in panel.queries.items()
        for found in ask(query)
    ]
    series = [each for each in series if any(math.isfinite(value) for _, value in each[1])]
    if len(series) > _LEGENDS and panel.kind == "timeseries":  # the largest first
        series.sort(key=lambda each: -max(value for _, value in each[1] if math.isfinite(value)))
    if not series:
        yield f'<text x="{width / 2:g}" y="{height / 2:g}" fill="#999" text-anchor="middle">no data</text>'
    elif panel.kind == "stat":
        yield from _stat(panel, series[0][1], width, height)
    elif panel.kind == "heatmap":
        yield from _heatmap(series, width, height)
    else:
        yield from _curves(panel, series, width, height)


def _legend(legend: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)}}", lambda match: labels.get(match[1], ""), legend)


def _points(values: list[list[Any]]) -> list[tuple[float, float]]:
    return [(float(at), float(value)) for at, value in values]


def _stat(panel: Panel, points: list[tuple[float, float]], width: float, height: float) -> Iterator[str]:
    last = [value for _, value in points if math.isfinite(value)][-1]
    color = [name for start, name in panel.steps.items() if last >= start][-1]
    yield (
        f'<text x="{width / 2:g}" y="{height / 2 + 14:g}" font-size="24" text-anchor="middle" '
        f'fill="{_NAMED[color]}">{_text(last, panel.unit)}</text>'
    )


def _curves(
    panel: Panel, series: list[tuple[str, list[tuple[float, float]]]], width: float, height: float
) -> Iterator[str]:
    times = sorted({at for _, points in series for at, _ in points})
    below = dict.fromkeys(times, 0.0)
    curves = []
    for legend, points in series:
        known = {at: value for at, value in points if math.isfinite(value)}
        if panel.stacked:
            under = [(at, below[at]) for at in reversed(times)]
            below = {at: below[at] + known.get(at, 0.0) for at in times}
            curves.append((legend, list(below.items()), under))
        else:
            curves.append((legend, sorted(known.items()), []))
    limits = [limit for limit in panel.steps if limit]
    most = max((value for _, points, _ in curves for _, value in points), default=0)
    most = _round_up(max([most, *(limit for limit in limits if limit <= 4 * most)]))
    left, top, right, bottom = 52.0, 26.0, width - 10, height - 34.0
    span = (times[-1] - times[0]) or 1

    def at(point: tuple[float, float]) -> str:
        x = left + (right - left) * (point[0] - times[0]) / span
        return f"{x:.0f},{bottom - (bottom - top) * min(point[1], most) / most:.1f}"

    for part in (0, 0.5, 1):
        y = bottom - (bottom - top) * part
        yield f'<path d="M{left:g},{y:.1f}H{right:g}" stroke="#e6e6e6"/>'
        value = _text(most * part, panel.unit)
        yield f'<text x="{left - 4:g}" y="{y + 4:.1f}" text-anchor="end" fill="#666">{value}</text>'
    for limit in limits:
        if limit <= most:
            y = bottom - (bottom - top) * limit / most
            yield f'<path d="M{left:g},{y:.1f}H{right:g}" stroke="#d14b4b" stroke-dasharray="4 3"/>'
    for number, (_, points, floor) in reversed(list(enumerate(curves))):
        color = _COLORS[number % len(_COLORS)]
        line = " ".join(map(at, points))
        if floor:
            yield f'<polygon points="{line} {" ".join(map(at, floor))}" fill="{color}" fill-opacity=".25"/>'
        yield f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.4"/>'
    x = left
    for number, (legend, _, _) in enumerate(curves[:_LEGENDS]):
        label = legend if number < _LEGENDS - 1 or len(curves) == _LEGENDS else f"and {len(curves) - number} more"
        size = 22 + sum(8.2 if each.isupper() else 6.4 for each in label)
        if x + size > right:
            break
        yield f'<rect x="{x:g}" y="{height - 16}" width="8" height="8" fill="{_COLORS[number % len(_COLORS)]}"/>'
        yield f'<text x="{x + 12:g}" y="{height - 8}">{escape(label)}</text>'
        x += size


def _heatmap(series: list[tuple[str, list[tuple[float, float]]]], width: float, height: float) -> Iterator[str]:
    """Draw the counts of a histogram's buckets, each without those below it."""
    buckets = sorted(
        ((float(le.replace("+Inf", "inf")), dict(points)) for le, points in series), key=lambda each: each[0]
    )
    times = sorted(buckets[-1][1])
    cells, before = [], dict.fromkeys(times, 0.0)
    for bound, counts in buckets:
        cells.append((bound, {at: max(0.0, counts.get(at, 0.0) - before[at]) for at in times}))
        before = {at: counts.get(at, before[at]) for at in times}
    filled = [place for place, (_, counts) in enumerate(cells) if any(counts.values())]
    cells = cells[max(0, filled[0] - 1) : filled[-1] + 2] if filled else cells
    most = max((count for _, counts in cells for count in counts.values()), default=0) or 1
    left, top, bottom = 52.0, 26.0, height - 14.0
    across, up = (width - 10 - left) / len(times), (bottom - top) / len(cells)
    for row, (bound, counts) in enumerate(cells):
        y = bottom - (row + 1) * up
        name = "more" if math.isinf(bound) else _text(bound, "s")
        if row % math.ceil(_LINE / up) == 0:
            yield f'<text x="{left - 4:g}" y="{y + up / 2 + 4:.1f}" text-anchor="end" fill="#666">{name}</text>'
        for column, at in enumerate(times):
            if counts[at]:
                opacity = 0.15 + 0.85 * counts[at] / most
                yield (
                    f'<rect x="{left + column * across:.0f}" y="{y:.1f}" width="{across + 0.5:.1f}" '
                    f'height="{up:.1f}" fill="#e07b39" fill-opacity="{opacity:.2f}"/>'
                )


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten."""
    if value <= 0:
        return 1
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999)


def _text(value: float, unit: str) -> str:
    """Return a value with its unit, in three digits."""
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit in ("s", "ms"):
        seconds = value / 1000 if unit == "ms" else value
        for scale, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if seconds >= scale:
                return f"{seconds / scale:.3g} {name}"
        return "0"
    suffix = {"bytes": "B", "Bps": "B/s", "watt": "W", "reqps": "/s", "ops": "/s"}.get(unit, "")
    scale, prefix = next(((scale, prefix) for scale, prefix in _PREFIXES if value >= scale), (1, " "))
    return f"{value / scale:.3g}{prefix}{suffix}".rstrip()
