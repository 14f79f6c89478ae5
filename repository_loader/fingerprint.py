"""What the files of a model looked like: size and time of change of each, so that a change is known by looking."""

import hashlib
import itertools
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from repository_loader.storage.model_source import source_of
from repository_loader.subfolders import CONFIG_FILE
from repository_loader.versions import read_version_names

_CONFIGS = "configs" + os.sep
_UNREADABLE = (-1, -1)
_NO_FILE = (-2, -2)
_TOO_DEEP = (-3, -3)
_MAX_DEPTH = 100

FileStamp = tuple[int, int]
"""Size in bytes, and the time of the last change in nanoseconds or a part of the content's digest."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The stamps of a model's files by their paths in its folder; `problem` says why nobody should read them."""

    files: Mapping[str, FileStamp] = field(default_factory=dict)
    problem: str = ""

    @property
    def whole(self) -> str:
        """Changes with any file."""
        return _digest(sorted(self.files.items()))

    def of_version(self, version: int) -> str:
        """Changes with the files of one version, and with those that all versions share; not with configurations.

        A configuration is compared by what it says.
        """
        others = tuple(
            f"{name}{os.sep}"
            for name in {path.partition(os.sep)[0] for path in self.files if os.sep in path}
            if name != str(version) and read_version_names([name]).numbers
        )
        ignored = (*others, _CONFIGS)
        return _digest(
            sorted(item for item in self.files.items() if item[0] != CONFIG_FILE and not item[0].startswith(ignored))
        )


def take_fingerprint(model_path: str, max_files: int = 1_000_000) -> Fingerprint:
    """Look at every file below a model's folder, through links; what cannot be read has a stamp of its own.

    A pipe is never read to its end, nor some devices, and a link may lead to all files of the machine.
    A folder in a cache has the stamps of what is in the remote repository, which are the same on every node.
    """
    source = source_of(model_path)
    if source is not None:
        return Fingerprint({path: (size, int(digest[:15], 16)) for path, digest, size, _ in source.files})
    files = dict(itertools.islice(_stamps(model_path, "", ()), max_files + 1))
    if len(files) > max_files:
        return Fingerprint(files, f"there are more than {max_files}")
    if _TOO_DEEP in files.values():
        return Fingerprint(files, f"there are folders in more than {_MAX_DEPTH} others")
    unfit = next((path for path, stamp in files.items() if stamp == _NO_FILE), None)
    return Fingerprint(files, "" if unfit is None else f"'{unfit}' is a pipe or a device")


def _stamps(root: str, below: str, above: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, FileStamp]]:
    folder = os.path.join(root, below)
    if len(above) > _MAX_DEPTH:
        yield below, _TOO_DEEP
        return
    try:
        status = os.stat(folder)
        folder_id = (status.st_dev, status.st_ino)
        if folder_id in above:  # a link that leads back
            return
        entries = list(os.scandir(folder))
    except OSError:
        yield below, _UNREADABLE
        return
    for entry in entries:
        path = os.path.join(below, entry.name)
        if entry.name == "__pycache__":  # written by whoever imports the model
            continue
        try:
            if entry.is_dir():
                yield from _stamps(root, path, (*above, folder_id))
                continue
            found = entry.stat()
        except OSError:
            yield path, _UNREADABLE
        else:
            is_file = not (stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode))
            yield path, (found.st_size, found.st_mtime_ns) if is_file else _NO_FILE


def _digest(stamps: list[tuple[str, FileStamp]]) -> str:
    return hashlib.sha256(repr(stamps).encode("utf-8", "surrogateescape")).hexdigest()[:16]
