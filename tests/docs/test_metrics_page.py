"""`docs/metrics.md` lists what is exported."""

import re
from pathlib import Path

import yaml
from ray._private.ray_constants import PROMETHEUS_SERVICE_DISCOVERY_FILE
from ray.dashboard.modules.metrics.dashboards.serve_dashboard_panels import SERVE_GRAFANA_PANELS
from ray.dashboard.modules.metrics.dashboards.serve_deployment_dashboard_panels import SERVE_DEPLOYMENT_GRAFANA_PANELS

from app.metrics.model_labels import model_labels
from app.metrics.scrape import Shown, render
from deployments.control.directory import ModelEntry
from tests.app.metrics.scraped import families
from tests.app.metrics.test_eagleray_metrics import MODELS, own
from tests.app.metrics.test_triton_metrics import ALL, everything

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
_ROW = re.compile(r"^\| `(\w+)` \| (\w+) \|([^|]*)\| [^|]+ \|$", re.MULTILINE)


def metrics_of_the_page() -> dict[str, tuple[str, set[str]]]:
    """Return the type and the labels of each metric, without the `_total` of a counter, as the parser names it."""
    return {
        name.removesuffix("_total"): (
            kind,
            set(labels.strip().replace("model version", "`model`, `version`").replace("`", "").split(", ")) - {""},
        )
        for name, kind, labels in _ROW.findall(PAGE.read_text())
    }


def test_the_page_lists_every_metric_with_its_type_and_labels() -> None:
    totals = everything()
    totals.add_list(own().to_list())
    models = {label.name: ModelEntry() for label in totals.rows} | MODELS
    text = render(totals, model_labels({}), Shown(ALL, aliases=True), models).decode()
    exported = {
        name.removesuffix("_total"): (family.type, {key for each in family.samples for key in each.labels})
        for name, family in families(text).items()
    }
    assert metrics_of_the_page() == exported


def test_the_documented_job_scrapes_each_node_of_rays_file_once() -> None:
    """With the file as Ray writes it: agents of the nodes, and the head's autoscaler and dashboard."""
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (job,) = yaml.safe_load(text)["scrape_configs"]
    assert job["file_sd_configs"] == [{"files": [f"/tmp/ray/{PROMETHEUS_SERVICE_DISCOVERY_FILE}"]}]
    drop, port, name = job["relabel_configs"]
    found = ["10.0.0.1:51000", "10.0.0.2:51000", "[fd00::3]:51000", "10.0.0.1:44217", "127.0.0.1:44227"]
    kept = [each for each in found if not re.fullmatch(drop["regex"], each)]
    replacement = port["replacement"].replace("$1", r"\1")
    targets = {re.fullmatch(port["regex"], each).expand(replacement) for each in kept}  # type: ignore[union-attr]
    assert targets == {"10.0.0.1:8002", "10.0.0.2:8002", "[fd00::3]:8002"}
    assert (drop["action"], name["target_label"], name["replacement"]) == ("drop", "job", "eagleray")


def test_rays_serve_dashboards_ask_for_what_rays_metrics_are_told() -> None:
    told = set(re.findall(r"`ray_(serve_\w+?)(?:_total)?`", PAGE.read_text()))
    assert len(told) == 14
    asked = " ".join(
        target.expr for panel in [*SERVE_DEPLOYMENT_GRAFANA_PANELS, *SERVE_GRAFANA_PANELS] for target in panel.targets
    )
    assert not [name for name in told if f"ray_{name}" not in asked]
