"""deploy/prometheus: rules that promtool tests, on metrics that are exported, each alert with what to do about it."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.test_metrics_page import PAGE, metrics_of_the_page
from tests.serving import run

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/prometheus"
CASES = sorted((Path(__file__).parent / "rules").glob("*.yml"))
RULES = [
    rule
    for path in sorted(FOLDER.glob("rules/*.yml"))
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
OF_PROMETHEUS = {"up"}
_METRIC = re.compile(r"(?<![\w:$\"])(?:nv|eagleray|triton|up)(?:_\w+)?(?![\w:\"(=])")

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian's package prometheus has it)"
)


def exported() -> set[str]:
    """Every name of a sample that a server may export."""
    found = set()
    for name, (kind, _) in metrics_of_the_page().items():
        found |= {name, f"{name}_total"} if kind == "counter" else {name}
        found |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else set()
    return found


def metrics_of(expression: str) -> set[str]:
    return set(_METRIC.findall(expression))


@needs_promtool
def test_promtool_takes_the_configurations_and_their_rules() -> None:
    for name in ("prometheus.yml", "prometheus-cluster.yml"):
        found = run("promtool", "check", "config", str(FOLDER / name))
        assert found.returncode == 0, found.stdout + found.stderr


@needs_promtool
@pytest.mark.parametrize("name", ["prometheus.yml", "prometheus-cluster.yml"])
def test_the_key_is_found_where_the_page_puts_it_wherever_the_folder_is(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "prometheus"
    shutil.copytree(FOLDER, folder)
    (folder / "eagleray-key").write_text("key")
    configuration = folder / name
    configuration.write_text(configuration.read_text().replace("# authorization:", "authorization:"))
    assert "\n    authorization:" in configuration.read_text()
    found = run("promtool", "check", "config", str(configuration))
    assert found.returncode == 0, found.stdout + found.stderr


@needs_promtool
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_alerts_fire_when_they_should_and_not_else(path: Path) -> None:
    found = run("promtool", "test", "rules", str(path))
    assert found.returncode == 0, found.stdout + found.stderr


def test_every_alert_is_seen_to_fire_by_a_test() -> None:
    fired = set(re.findall(r'alertname="(\w+)"', "".join(path.read_text() for path in CASES)))
    assert fired == set(ALERTS)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert", rule.get("record")))
def test_rules_ask_for_metrics_that_are_exported(rule: dict[str, Any]) -> None:
    asked = metrics_of(rule["expr"])
    recorded = {other["record"] for other in RULES if "record" in other and other["record"] in rule["expr"]}
    assert (asked or recorded) and not asked - exported() - OF_PROMETHEUS


def test_the_page_says_what_to_do_about_each_alert() -> None:
    headings = re.findall(r"^### (\w+)\n\n\w", (ROOT / "docs/alerts.md").read_text(), re.MULTILINE)
    assert headings == list(ALERTS)
    for name, alert in ALERTS.items():
        assert alert["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(alert["annotations"]) == {"summary", "description", "runbook"}
        assert alert["annotations"]["runbook"] == f"docs/alerts.md#{name.lower()}"


def test_a_cluster_is_scraped_by_the_documented_job() -> None:
    (documented,) = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[0])["scrape_configs"]
    job = yaml.safe_load((FOLDER / "prometheus-cluster.yml").read_text())["scrape_configs"][0]
    assert {key: documented[key] for key in job} == job
