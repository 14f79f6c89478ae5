"""docs/faults.md names a test for each fault, and the tests exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text()
FAULTS = (*range(1, 8), 9, *range(11, 19), *range(20, 25))


def test_every_fault_has_a_row() -> None:
    shown = {
        int(number) for row in re.findall(r"^\| (R[^|]+) \|", PAGE, re.MULTILINE) for number in re.findall(r"\d+", row)
    }
    assert shown == set(FAULTS)


def test_the_tests_exist() -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE)
    assert len(named) > 10
    for file, function in named:
        body = ast.parse((ROOT / "tests/e2e" / file).read_text()).body
        assert function in {node.name for node in body if isinstance(node, ast.FunctionDef)}, f"{file}::{function}"
    files = re.findall(r"`((?:\w+/)+test_\w+\.py)`", PAGE)
    assert files and all((ROOT / "tests" / file).is_file() for file in files)
