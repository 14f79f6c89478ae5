"""`docs/metrics.md` lists what is exported."""

import re
from pathlib import Path

from tests.app.metrics.scraped import families
from tests.app.metrics.test_triton_metrics import everything, text_of

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
_ROW = re.compile(r"^\| `(\w+)` \| (\w+) \|([^|]*)\| [^|]+ \|$", re.MULTILINE)


def metrics_of_the_page() -> dict[str, tuple[str, set[str]]]:
    """Return the type and the labels of each metric."""
    return {
        name: (
            kind,
            set(labels.strip().replace("model version", "`model`, `version`").replace("`", "").split(", ")) - {""},
        )
        for name, kind, labels in _ROW.findall(PAGE.read_text())
    }


def test_the_page_lists_every_metric_with_its_type_and_labels() -> None:
    exported = {
        name.removesuffix("_total"): (family.type, {key for each in family.samples for key in each.labels})
        for name, family in families(text_of(everything())).items()
    }
    assert metrics_of_the_page() == exported
