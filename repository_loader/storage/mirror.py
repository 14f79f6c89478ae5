"""A remote repository as a folder of this node: of links to models in the cache, each whole or not there."""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from repository_loader.storage.location import is_remote, read_location
from repository_loader.storage.model_cache import ModelCache
from repository_loader.storage.model_source import ModelSource, fetch_all
from repository_loader.storage.remote_store import RemoteFile, RemoteStore, StorageError
from repository_loader.storage.stores import open_store

_INDEX: Final = ".index.json"
_SAVE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class RepositoryFolder:
    """A repository to read.

    `failures` are models that could never be fetched, with the reasons; `warnings` say of what else an earlier state
    is used.
    """

    path: str
    failures: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def local_folder(repository: str, cache_dir: str) -> RepositoryFolder:
    """Return the folder of a repository: itself, or for a remote one its mirror, brought up to date; blocks.

    A model changes in the mirror at once and as a whole, when all of it has been fetched. What cannot be had leaves
    there what was.

    Raises:
        StorageError: a remote repository cannot be read and never was.
        LocationError: its address cannot be.
    """
    if not is_remote(repository):
        return RepositoryFolder(os.path.abspath(repository))
    try:
        root = Path(cache_dir).expanduser().absolute()
    except RuntimeError as error:
        raise StorageError(f"the model cache {cache_dir} cannot be made: this user has no home folder") from error
    return Mirror(repository, ModelCache(root)).refresh()


class Mirror:
    """One remote repository."""

    def __init__(self, repository: str, cache: ModelCache) -> None:
        self._location = read_location(repository)
        self._cache = cache
        self._name = hashlib.sha256(self._location.uri.encode()).hexdigest()[:40]
        self._folder = cache.repositories / self._name

    def refresh(self) -> RepositoryFolder:
        """Fetch what has changed; processes and threads take turns.

        Raises:
            StorageError: nothing can be had, and nothing is here.
        """
        try:
            with self._cache.locked(f"repository-{self._name}"):
                return self._refreshed()
        except OSError as error:
            raise StorageError(f"the model cache {self._cache.root} cannot be written: {error.strerror}") from error

    def _refreshed(self) -> RepositoryFolder:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        index = self._read_index()
        try:
            store = open_store(self._location, self._cache)
            listed = _by_model(store.files())
        except StorageError as error:
            if not index:
                raise
            return RepositoryFolder(str(self._folder), {}, (f"{error}; what was read before is used",))
        failures: dict[str, str] = {}
        warnings: list[str] = []
        changed, saved_s = False, float("-inf")
        for model, files in listed.items():
            known = index.get(model)
            if known is not None and _same(known, files):
                continue
            try:
                index[model] = self._take(store, model, files, known)
                changed = True
                if time.monotonic() - saved_s > _SAVE_S:  # a process that dies now leaves less to be fetched again
                    self._write_index(index)
                    saved_s = time.monotonic()
            except StorageError as error:
                if known is None:
                    failures[model] = str(error)
                else:
                    warnings.append(f"{error}; model '{model}' stays as it was read before")
        for link in self._folder.iterdir():  # of a process that died one may be there which the index does not have
            if link.is_symlink() and link.name not in listed:
                link.unlink()
        for model in index.keys() - listed.keys():
            del index[model]
            changed = True
        if changed:
            self._write_index(index)
            self._cache.evict()
        return RepositoryFolder(str(self._folder), failures, tuple(warnings))

    def _take(self, store: RemoteStore, model: str, files: list[RemoteFile], known: ModelSource | None) -> ModelSource:
        """Fetch a model's new files, and have its link point to all of them."""
        before = {(path, size, version): digest for path, digest, size, version in known.files} if known else {}
        start = len(model) + 1
        with self._cache.filling():
            fetched = {
                file.path: digest
                for file in files
                if (digest := before.get((file.path[start:], file.size_bytes, file.version), ""))
                and self._cache.has(digest)
            }
            missing = [file for file in files if file.path not in fetched]
            fetched |= fetch_all(store, self._location, self._cache, missing)
            source = ModelSource(
                self._location.uri,
                model,
                tuple((file.path[start:], fetched[file.path], file.size_bytes, file.version) for file in files),
            )
            folder = source.build(self._cache)
            with self._cache.scratch() as scratch:  # before anybody may evict it
                (scratch / "link").symlink_to(folder)
                (scratch / "link").rename(self._folder / model)
        return source

    def _read_index(self) -> dict[str, ModelSource]:
        """Return the models that are linked, by name."""
        try:
            rows = json.loads((self._folder / _INDEX).read_bytes())
            found = {name: ModelSource.from_dict(row) for name, row in rows.items()}
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return {name: source for name, source in found.items() if (self._folder / name).is_dir()}

    def _write_index(self, index: Mapping[str, ModelSource]) -> None:
        """Keep what is linked, if there is room; what is not in the index is fetched again."""
        with contextlib.suppress(OSError), self._cache.scratch() as scratch:
            text = json.dumps({name: source.to_dict() for name, source in index.items()})
            (scratch / "index").write_text(text)
            (scratch / "index").rename(self._folder / _INDEX)


def _by_model(files: list[RemoteFile]) -> dict[str, list[RemoteFile]]:
    """Return the files by the folder they are in; those beside the folders are no models'."""
    models: dict[str, list[RemoteFile]] = {}
    for file in files:
        model, separator, _ = file.path.partition("/")
        if separator:
            models.setdefault(model, []).append(file)
    return models


def _same(known: ModelSource, files: list[RemoteFile]) -> bool:
    """Whether a listing is that of the model which is linked."""
    start = len(known.model) + 1
    return [(path, size, version) for path, _, size, version in known.files] == [
        (file.path[start:], file.size_bytes, file.version) for file in files
    ]
