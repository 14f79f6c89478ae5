"""What a mirror needs of a store: a listing, and one file at a time."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

MAX_FILES: Final = 200_000
"""Files that a repository may have."""


class StorageError(Exception):
    """A store that does not answer, or answers something else than it promised; the message names the repository."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository: its path there, its size, and what changes whenever its content does (an ETag)."""

    path: str
    size_bytes: int
    version: str


class RemoteStore(Protocol):
    """One repository in a store; every method blocks, for bounded times without a byte."""

    def files(self) -> list[RemoteFile]:
        """Return every file.

        Raises:
            StorageError: there is no answer, or no file at all.
        """

    def fetch(self, file: RemoteFile, target: Path) -> None:
        """Write a file to a path that does not exist yet; threads may fetch side by side.

        Raises:
            StorageError: there is no answer, or the file is another than was listed.
        """


def checked(uri: str, files: Iterable[RemoteFile]) -> list[RemoteFile]:
    """Return a listing whose paths stay inside a folder, without what stores keep in place of folders.

    Raises:
        StorageError: it is empty: a store that has lost everything must not unload everything.
    """
    found = {file.path: file for file in files if file.path}
    if len(found) > MAX_FILES:
        raise StorageError(f"the model repository {uri} has more than {MAX_FILES} files")
    folders = {path[:end] for path in found for end in _separators(path)}
    kept = [file for path, file in found.items() if path not in folders and not _is_marker(file)]
    for file in kept:
        if "\0" in file.path or any(part in ("", ".", "..") for part in file.path.split("/")):
            raise StorageError(f"the model repository {uri} has a file with an unusable name: {file.path!r}")
    if not kept:
        raise StorageError(f"the model repository {uri} has no files")
    return sorted(kept, key=lambda file: file.path)


def _separators(path: str) -> list[int]:
    return [index for index, character in enumerate(path) if character == "/"]


def _is_marker(file: RemoteFile) -> bool:
    """Whether an empty object stands for an empty version folder, as consoles of stores make them."""
    _, separator, rest = file.path.partition("/")
    return not file.size_bytes and (not separator or (rest.isdigit() and "/" not in rest))
