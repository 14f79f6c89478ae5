"""deploy/grafana: the dashboards are those of the table, on metrics that are exported, and compose starts them."""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
import yaml

from deploy.grafana.dashboards import FOLDER, Dashboard, grafana_json, load
from tests.deploy.test_prometheus import OF_PROMETHEUS, exported, metrics_of
from tests.serving import run

DASHBOARDS = load()
by_name = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)


def panels(dashboard: Dashboard) -> list[dict[str, Any]]:
    return list(json.loads(grafana_json(dashboard))["panels"])


def test_there_is_a_dashboard_of_each_kind() -> None:
    assert {each.name for each in DASHBOARDS} == {"overview", "model", "ensemble", "cluster", "gpu"}
    assert {path.stem for path in (FOLDER / "json").iterdir()} == {each.name for each in DASHBOARDS}


@by_name
def test_its_file_is_current(dashboard: Dashboard) -> None:
    kept = (FOLDER / f"json/{dashboard.name}.json").read_text()
    assert kept == grafana_json(dashboard), "run `python -m deploy.grafana.dashboards`"


@by_name
def test_it_asks_for_metrics_that_are_exported(dashboard: Dashboard) -> None:
    for panel in panels(dashboard):
        for target in panel.get("targets", ()):
            asked = metrics_of(target["expr"]) - {"ALERTS"}
            assert not asked - exported() - OF_PROMETHEUS, panel["title"]
            assert "@" not in target["expr"]


@by_name
def test_its_panels_do_not_overlap_and_its_variables_are_defined(dashboard: Dashboard) -> None:
    document = json.loads(grafana_json(dashboard))
    defined = {variable["name"] for variable in document["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", grafana_json(dashboard)))
    assert used == defined
    places = [panel["gridPos"] for panel in document["panels"]]
    for a, b in combinations(places, 2):
        assert (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
    assert all(place["x"] + place["w"] <= 24 for place in places)


@by_name
def test_grafana_knows_every_field(dashboard: Dashboard) -> None:
    """By the types of its own SDK, which are made of its schemas: what they do not know is gone when it comes back."""
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = importlib.import_module("grafana_foundation_sdk.cog.encoder").JSONEncoder
    importlib.import_module("grafana_foundation_sdk.cog.plugins").register_default_plugins()

    def lost(document: Any) -> set[str]:
        back = json.loads(json.dumps(models.Dashboard.from_json(document), cls=encoder))
        return {re.sub(r"\[\d+\]", "", each) for each in _lost(document, back)}

    document = json.loads(grafana_json(dashboard))
    assert lost(document) <= {".templating.list.definition"}, "which Grafana's own editor writes"
    for part in (document["panels"][1], document["panels"][1]["fieldConfig"]["defaults"]):
        part["bogus"] = 1
    assert lost(document) >= {".panels.bogus", ".panels.fieldConfig.defaults.bogus"}


def _lost(before: Any, after: Any, path: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from _lost(value, after[key], f"{path}.{key}") if key in after else (f"{path}.{key}",)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _lost(one, other, f"{path}[{place}]")
    elif before != after:
        yield path


def test_the_compose_file_is_one() -> None:
    """By the schema of the compose specification, as its package has it."""
    pytest.importorskip("check_jsonschema")
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec")
    done = run(*command, str(FOLDER.parent / "compose.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_starts_prometheus_and_grafana_on_them() -> None:
    folder = FOLDER.parent
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    assert set(services) == {"prometheus", "grafana"}
    mounted: dict[str, str] = {}
    for service in services.values():
        for volume in service["volumes"]:
            if isinstance(volume, str) and volume.startswith("./"):
                source, target, _ = volume.split(":")
                assert (folder / source).is_dir()
                mounted[target] = source
            elif isinstance(volume, dict):  # links in Ray's folder name it by its whole path
                assert volume["source"] == volume["target"] == "${RAY_TMPDIR:-/tmp}/ray"
    (provider, _) = yaml.safe_load((FOLDER / "provisioning/dashboards/eagleray.yaml").read_text())["providers"]
    assert mounted[provider["options"]["path"]] == "./grafana/json"
    (source,) = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    listens = next(each for each in services["prometheus"]["command"] if "listen-address" in each)
    assert source["url"].removeprefix("http://") == listens.partition("=")[2]
    assert (folder / "prometheus/prometheus.yml").is_file()
