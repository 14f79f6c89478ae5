"""The folders in a folder: those of a repository may be models, those of a model versions."""

import os
from typing import Final

CONFIG_FILE: Final = "config.pbtxt"
"""The name of a model's configuration in its folder."""


def subfolders(path: str) -> list[str]:
    """Return the names of the folders in a folder, in order; what cannot be looked at (a stale mount) may be one.

    Raises:
        OSError: it cannot be listed.
    """
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if _may_be_folder(entry))


def broken_links(path: str) -> list[str]:
    """Return the names of the links in a folder that lead to nothing, in order; raises as `subfolders`."""
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_symlink() and _leads_to_nothing(entry))


def _leads_to_nothing(link: os.DirEntry[str]) -> bool:
    try:
        link.stat()
    except FileNotFoundError:
        return True
    except OSError:  # which `subfolders` takes for a folder
        return False
    return False


def is_text(name: str) -> bool:
    """Whether a name is UTF-8 text on the disk, and may be told to others."""
    return name.isascii() or not any("\ud800" <= char <= "\udfff" for char in name)


def _may_be_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return True
