"""The modules of a room import each other in one direction."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.serving import ROOT


def _imports(package: str) -> dict[str, set[str]]:
    """Module → the modules of the same package that it imports, inside functions and for type checking too."""
    found: dict[str, set[str]] = {}
    for path in Path(ROOT, *package.split(".")).glob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        names = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
        found[f"{package}.{path.stem}"] = {name for name in names if name.startswith(package + ".")}
    return found


@pytest.mark.parametrize("package", ["app.http", "app.ingress", "app.edge"])
def test_no_module_imports_itself_round_a_corner(package: str) -> None:
    TopologicalSorter(_imports(package)).prepare()
