"""docs/scaling.md shows what its commands print."""

import re
from pathlib import Path

from benchmarks.simulation import COLUMNS, SIZES

FOLDER = Path(__file__).parents[2] / "docs"
PAGE = (FOLDER / "scaling.md").read_text()


def test_table_is_that_of_the_simulation() -> None:
    assert f"| {' | '.join(COLUMNS)} |" in PAGE
    for nodes, replicas, models in SIZES:
        assert f"| {nodes:,} | {replicas:,} | {models:,} |" in PAGE


def test_plot_is_there() -> None:
    (plot,) = re.findall(r"!\[.*\]\((.+\.svg)\)", PAGE)
    assert (FOLDER / plot).read_text().count("<polyline") == 3
