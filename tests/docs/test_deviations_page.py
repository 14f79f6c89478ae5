from pathlib import Path

import pytest

from protocol.deviations import DEVIATIONS, Deviation

PAGE = (Path(__file__).parents[2] / "docs" / "deviations.md").read_text()


@pytest.mark.parametrize("deviation", DEVIATIONS, ids=lambda deviation: deviation.subject[:40])
def test_the_page_names_every_deviation(deviation: Deviation) -> None:
    assert f"| {deviation.subject} |" in PAGE
    assert deviation.ours in PAGE
    assert deviation.reason in PAGE
