"""`python -m deploy.grafana.dashboards`: makes Grafana's dashboards (`json/`) of `panels.yml`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

FOLDER: Final = Path(__file__).parent
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH: Final = 24
_HEIGHT: Final = 8
_STAT_HEIGHT: Final = 4
_QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
_STEPS: Final = (
    'label_replace(max by (step) (eagleray_ensemble_step{model="$ensemble"}), "model", "$1", "step", "(.+)")'
)
_MACROS: Final = {
    "@on": 'instance=~"$node"',
    "@of": 'instance=~"$node",model=~"$model",version=~"$version"',
    "@gpus": 'instance=~"$node",gpu_uuid=~"$gpu"',
    "@i": "$__rate_interval",
    "@steps": f"and on (model) {_STEPS}",
}
_VARIABLES: Final = {
    "node": 'label_values(up{job="eagleray"}, instance)',
    "model": "label_values(eagleray_model_state, model)",
    "version": 'label_values(eagleray_model_state{model=~"$model"}, version)',
    "ensemble": "label_values(eagleray_ensemble_step, model)",
    "gpu": 'label_values(nv_gpu_utilization{instance=~"$node"}, gpu_uuid)',
}
_ONE: Final = {"ensemble"}
"""Variables that have one value at a time."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; `queries` are PromQL by legend, in which labels stand in double braces."""

    title: str
    kind: str
    unit: str
    text: str
    stacked: bool
    steps: dict[float, str]
    queries: dict[str, str]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard, its panels by the titles of its rows."""

    name: str
    variables: list[str]
    rows: dict[str, list[Panel]]


def load() -> list[Dashboard]:
    """Read all dashboards."""
    table = yaml.safe_load((FOLDER / "panels.yml").read_text())
    return [
        Dashboard(
            name, each["variables"], {title: [_panel(panel) for panel in row] for title, row in each["rows"].items()}
        )
        for name, each in table.items()
    ]


def _panel(given: dict[str, Any]) -> Panel:
    queries = dict(given.get("queries", {}))
    for legend, quantile in _QUANTILES.items() if "quantiles" in given else ():
        queries[legend] = f"histogram_quantile({quantile}, sum by (le) (rate({given['quantiles']}[@i])))"
    for legend, query in queries.items():
        for macro, text in _MACROS.items():
            query = query.replace(macro, text)
        queries[legend] = query
    text, steps = given.get("text", ""), given.get("steps", {0: "green"})
    kind = given.get("kind", "timeseries")
    return Panel(given["title"], kind, given["unit"], text, given.get("stacked", False), steps, queries)


def grafana_json(dashboard: Dashboard) -> str:
    """Return a dashboard's file."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in dashboard.rows.items():
        panels.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1}})
        y += 1
        stats = all(panel.kind == "stat" for panel in row)
        width, height = (_WIDTH // len(row), _STAT_HEIGHT) if stats else (_WIDTH // 2, _HEIGHT)
        across = _WIDTH // width
        for place, panel in enumerate(row):
            at = {"x": place % across * width, "y": y + place // across * height, "w": width, "h": height}
            panels.append(_grafana_panel(panel) | {"gridPos": at})
        y += -(-len(row) // across) * height
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    document = {
        "uid": f"eagleray-{dashboard.name}",
        "title": f"Eagleray: {dashboard.name}",
        "tags": ["eagleray"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["eagleray"], "title": "Eagleray", "asDropdown": True}],
        "templating": {"list": [source, *map(_variable, dashboard.variables)]},
        "panels": [{"id": number} | panel for number, panel in enumerate(panels, 1)],
    }
    return json.dumps(document, indent=1) + "\n"


def _variable(name: str) -> dict[str, Any]:
    several = name not in _ONE
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": _VARIABLES[name], "refId": name},
        "definition": _VARIABLES[name],
        "refresh": 2,
        "sort": 1,
        "multi": several,
        "includeAll": several,
        **({"allValue": ".*", "current": {"text": "All", "value": "$__all"}} if several else {}),
    }


def _grafana_panel(panel: Panel) -> dict[str, Any]:
    steps = [{"value": value or None, "color": color} for value, color in panel.steps.items()]
    field = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "timeseries":
        field["custom"] = {
            "fillOpacity": 20 if panel.stacked else 0,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none"},
            "thresholdsStyle": {"mode": "line" if len(steps) > 1 else "off"},
        }
    more = {"format": "heatmap"} if panel.kind == "heatmap" else {}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": field, "overrides": []},
        "options": _MANY if any("{{model}}" in legend for legend in panel.queries) else _OPTIONS[panel.kind],
        "targets": [
            {"refId": chr(ord("A") + place), "expr": query, "legendFormat": legend, "datasource": _SOURCE, **more}
            for place, (legend, query) in enumerate(panel.queries.items())
        ],
    }


_MANY: Final = {
    "legend": {"displayMode": "table", "placement": "right", "calcs": ["max"], "sortBy": "Max", "sortDesc": True},
    "tooltip": {"mode": "multi", "sort": "desc"},
}
"""Of curves that may be many: those with the highest stand first."""
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "timeseries": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"},
    "heatmap": {"calculate": False, "yAxis": {"unit": "s"}, "color": {"scheme": "Oranges", "mode": "scheme"}},
}


def main() -> None:
    """Write the files."""
    for dashboard in load():
        (FOLDER / "json" / f"{dashboard.name}.json").write_text(grafana_json(dashboard))


if __name__ == "__main__":
    main()
