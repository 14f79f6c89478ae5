import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_file_that_the_page_names_exists() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    named = re.findall(r"`((?:app|deployments|protocol|repository_loader|eagleray)/[\w/]+\.py)`", page)
    assert len(named) > 15
    assert [path for path in named if not (ROOT / path).is_file()] == []
