"""Every query of every dashboard finds data in a real Prometheus: of a real server, or of what no test machine has."""

import math
import re
from pathlib import Path

from app.metrics.model_labels import model_labels
from app.metrics.scrape import Shown, render
from deploy.grafana.dashboards import load as dashboards
from tests.app.metrics.test_eagleray_metrics import MODELS, own
from tests.app.metrics.test_triton_metrics import ALL, everything
from tests.deploy.test_prometheus import FOLDER
from tests.e2e.shared.conftest import isolated
from tests.prometheus import Prometheus, load, needs_prometheus, prometheus, samples
from tests.serving import Server, wait_until

RULES = FOLDER / "rules/*.yml"
MADE_UP = re.compile("nv_gpu|nv_energy|eagleray_(autoscaler|canary|shadow|lane_retries)")
"""What the shared server does not have: GPUs, models that scale, canaries, shadows, and replicas that die."""


def queries(*, made_up: bool) -> dict[tuple[str, str, str], str]:
    """Return the queries by dashboard, panel and legend, for all nodes and models."""
    return {
        (dashboard.name, panel.title, legend): re.sub(
            r"\$(node|model|version|gpu)\b", ".*", query.replace("$__rate_interval", "30s")
        ).replace("$ensemble", "digits_pipeline")
        for dashboard in dashboards()
        for row in dashboard.rows.values()
        for panel in row
        for legend, query in panel.queries.items()
        if bool(MADE_UP.search(query)) == made_up
    }


def without_data(source: Prometheus, asked: dict[tuple[str, str, str], str]) -> list[tuple[str, str, str]]:
    return [
        name
        for name, query in asked.items()
        if not any(math.isfinite(float(series["value"][1])) for series in source.query(query))
    ]


def all_answer(source: Prometheus, asked: dict[tuple[str, str, str], str]) -> None:
    left = list(asked)

    def look() -> bool:
        left[:] = without_data(source, {name: asked[name] for name in left})
        return not left

    try:
        wait_until(look, "data for every query", timeout_s=90, poll_s=0.5)
    except AssertionError as error:
        raise AssertionError(f"{error}: {left}") from None


@needs_prometheus
@isolated
def test_every_panel_shows_data_while_the_examples_serve(server: Server, tmp_path: Path) -> None:
    asked = queries(made_up=False)
    assert len(asked) > 60
    with prometheus(tmp_path, server.metrics_address, RULES) as source, load(server):
        all_answer(source, asked)


@needs_prometheus
def test_panels_of_what_is_not_here_show_data_of_samples_that_are_made_up(tmp_path: Path) -> None:
    """Made up are the values; names and labels are those of the code that writes a scrape."""
    totals = everything()
    totals.add_list(own().to_list())
    text = render(totals, model_labels(MODELS), Shown(ALL), MODELS)
    asked = queries(made_up=True)
    assert {name for name, _, _ in asked} == {"gpu", "cluster", "model"}
    with samples(lambda: text) as address, prometheus(tmp_path, address, RULES) as source:
        all_answer(source, asked)
