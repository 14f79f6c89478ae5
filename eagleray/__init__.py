"""The door to Eagleray: what other programs and other processes look up by name, they look up here.

Eagleray's packages have plain names (`app`, `deployments` …), and Ray puts the folder in which a command was started in
front of its workers' `sys.path`. Whoever takes one of ours from here has Python look for those names beside this
package and nowhere else, so that no file of the user's hides them. Classes that processes hand to each other by name
say `__module__ = "eagleray"`. Importing this package alone claims nothing: other people's processes do that too.
"""

import importlib
import signal
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

HOME = str(Path(__file__).resolve().parent.parent)

_OFFERED = {
    "build": "app.builder",
    "Ingress": "app.ingress.ingress",
    "ModelReplica": "deployments.replica.model_replica",
    "RepositoryController": "deployments.control.repository_controller",
    "complete_on_node": "deployments.control.node_completion",
    "calm_serve_controller": "deployments.serve_controller",
}
_SHARED = ("deployments", "repository_loader", "protocol")


class _OurPackages:
    """Finds the packages that were claimed, at the head of `sys.meta_path`."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()

    def claim(self, *names: str) -> None:
        """Find these packages here from now on.

        Raises:
            ImportError: another package of such a name has been imported already.
        """
        for name in names:
            present = getattr(sys.modules.get(name), "__file__", None)
            if present is not None and not Path(present).resolve().is_relative_to(HOME):
                raise ImportError(
                    f"Eagleray's package '{name}' in {HOME} is hidden by {present}, which was imported before it; "
                    "take that one off this Python's search path"
                )
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        self._names |= frozenset(names)
        for finder in list(sys.meta_path):
            if reveal := getattr(finder, "reveal_all", None):  # `ImportedAhead`
                reveal()

    def disclaim(self) -> None:
        """Find nothing here any more."""
        sys.meta_path.remove(self)
        self._names = frozenset()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a claimed package is; None leaves a name to the other finders."""
        return PathFinder.find_spec(fullname, [HOME]) if path is None and fullname in self._names else None


_packages = _OurPackages()


def import_replica() -> None:
    """Import what a replica is made of, and leave the names of the packages to others, as if it had not been."""
    _packages.claim(*_SHARED)
    try:
        importlib.import_module(_OFFERED["ModelReplica"])
    finally:
        _packages.disclaim()


def __getattr__(name: str) -> Any:
    """Import what is offered when it is asked for; a replica of a model never needs `app`, and a model may have one."""
    if name not in _OFFERED:
        raise AttributeError(f"module 'eagleray' has no attribute '{name}'")
    module = _OFFERED[name]
    _packages.claim(*_SHARED, module.partition(".")[0])
    if name == "build":
        importlib.import_module("app.other_ray").require_ray()
    return getattr(importlib.import_module(module), name)


def main() -> None:
    """Run the command line."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a traceback through imports tells a user nothing
    try:
        _packages.claim(*_SHARED, "app")
        from app.cli.first_process import run_below_first

        run_below_first()
        from app.cli.main import main as run
    except ImportError as error:
        sys.exit(f"error: {error}")
    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
