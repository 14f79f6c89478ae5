"""`docs/metrics.md` lists what is exported."""

import re
from pathlib import Path

from app.metrics.model_labels import ModelLabels
from app.metrics.scrape import Shown, render
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
    text = render(totals, ModelLabels().of({}), Shown(ALL, aliases=True), MODELS).decode()
    exported = {
        name.removesuffix("_total"): (family.type, {key for each in family.samples for key in each.labels})
        for name, family in families(text).items()
    }
    assert metrics_of_the_page() == exported
