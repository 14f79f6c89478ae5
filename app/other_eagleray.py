"""Two Eagleray on one machine, of which some of Ray's processes would run one, and some the other."""

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from eagleray import HOME


def other_eagleray() -> str:
    """Return a sentence on the other Eagleray, "" when there is none.

    Ray puts the folder in which a driver or a cluster was started first on the search path of its workers: what is
    there hides what is installed.
    """
    folder = os.getcwd()
    if there := _found_in(folder):
        return (
            f"Ray's workers would run the Eagleray in {there}, which stands in this folder, in place of the one in "
            f"{HOME}; start it in another folder"
        )
    if not Path(folder).samefile(HOME):
        return ""
    elsewhere = [found for entry in sys.path if entry and (found := _found_in(entry))]
    return (
        f"Ray's workers would run the Eagleray in {HOME}, where the cluster was started, in place of the one in "
        f"{elsewhere[0]}, which is installed; start it in another folder, or uninstall that one"
        if elsewhere
        else ""
    )


def _found_in(folder: str) -> str:
    """Return the place of a package `eagleray` in a folder, "" when there is none but this one."""
    found = PathFinder.find_spec("eagleray", [folder])
    origin = found.origin if found is not None else None
    return "" if origin is None or Path(origin).resolve().is_relative_to(HOME) else str(Path(origin).parent)
