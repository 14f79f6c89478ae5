"""The folders in a folder: those of a repository may be models, those of a model versions."""

import os


def subfolders(path: str) -> list[str]:
    """Return the names of the folders in a folder, in order; what cannot be looked at (a stale mount) may be one.

    Raises:
        OSError: it cannot be listed.
    """
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if _may_be_folder(entry))


def is_text(name: str) -> bool:
    """Whether a name is UTF-8 text on the disk, and may be told to others."""
    return name.isascii() or not any("\ud800" <= char <= "\udfff" for char in name)


def _may_be_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return True
