"""No file imports another that imports it in turn, not even within a function or for its types alone."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_ROOMS = ("protocol", "repository_loader", "deployments", "app")


def _imported(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def test_no_file_imports_another_in_a_circle() -> None:
    files = {
        ".".join(file.relative_to(_ROOT).with_suffix("").parts): file
        for room in _ROOMS
        for file in (_ROOT / room).rglob("*.py")
    }
    assert len(files) > 200
    order = TopologicalSorter({name: _imported(file) & files.keys() for name, file in files.items()}).static_order()
    assert len(list(order)) == len(files)  # CycleError names the circle
