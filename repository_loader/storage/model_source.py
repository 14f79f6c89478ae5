"""Where a model's files are, by content: with it, any node gets the same folder by itself."""

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from repository_loader.storage.location import read_location
from repository_loader.storage.model_cache import DIRECTORY_VARIABLE, ModelCache, tree_of
from repository_loader.storage.remote_store import RemoteFile, RemoteStore, StorageError
from repository_loader.storage.stores import open_store

MAX_PARALLEL_FETCHES: Final = 8
_FILE: Final = ".source.json"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The folder of a model in a remote repository.

    `files` are `(path in the model's folder, sha256, size in bytes, version in the store)`, by path.
    """

    uri: str
    model: str
    files: tuple[tuple[str, str, int, str], ...]

    @property
    def tree(self) -> str:
        """The name of the model's folder in every cache."""
        return tree_of(self.model, {path: digest for path, digest, _, _ in self.files})

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"uri": self.uri, "model": self.model, "files": [list(file) for file in self.files]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ModelSource":
        """Rebuild what `to_dict` took apart."""
        files = tuple((str(path), str(digest), int(size), str(at)) for path, digest, size, at in data["files"])
        return cls(str(data["uri"]), str(data["model"]), files)

    def only(self, path: str) -> "ModelSource":
        """Return one file of it."""
        return replace(self, files=tuple(file for file in self.files if file[0] == path))

    def build(self, cache: ModelCache) -> Path:
        """Make the model's folder of contents that the cache has."""
        files = {path: digest for path, digest, _, _ in self.files}
        return cache.build(self.model, files, json.dumps(self.to_dict()).encode())


def source_of(model_path: str) -> ModelSource | None:
    """Return where a model's folder came from, None for one that is in no cache."""
    try:
        with open(os.path.join(os.path.dirname(model_path), _FILE), "rb") as file:
            return ModelSource.from_dict(json.loads(file.read()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def provide(source: ModelSource, model_path: str) -> tuple[str, int]:
    """Have a model's folder on this node, and return its path and a descriptor that keeps it until it is closed.

    `model_path` is where another node has it; this one has it in the same cache folder, unless its environment names
    another. Blocks until every file is here and has the content that was promised.

    Raises:
        StorageError: a file cannot be had, or is another one.
    """
    root = os.environ.get(DIRECTORY_VARIABLE) or str(Path(model_path).parents[2])
    cache = ModelCache(Path(root).absolute())
    try:
        descriptor = _hold(source, cache)
    except OSError as error:
        raise StorageError(f"the model cache {cache.root} cannot be used: {error.strerror or error}") from error
    return str(cache.folder(source.tree, source.model)), descriptor


def _hold(source: ModelSource, cache: ModelCache) -> int:
    try:
        return cache.hold(source.tree)
    except FileNotFoundError:
        with cache.locked(source.tree), cache.filling():
            _fetch_model(source, cache)
            descriptor = cache.hold(source.tree)  # before it may be evicted
    cache.evict()
    return descriptor


def _fetch_model(source: ModelSource, cache: ModelCache) -> None:
    missing = [file for file in source.files if not cache.has(file[1])]
    if missing:
        location = read_location(source.uri)
        files = [RemoteFile(f"{source.model}/{path}", size, version) for path, _, size, version in missing]
        digests = fetch_all(open_store(location, cache), cache, files)
        for (path, wanted, _, _), file in zip(missing, files, strict=True):
            if digests[file.path] != wanted:
                raise StorageError(
                    f"'{source.model}/{path}' of {location.shown} is not what was promised: its SHA-256 is "
                    f"{digests[file.path]}, not {wanted}"
                )
    source.build(cache)


def fetch_all(store: RemoteStore, cache: ModelCache, files: list[RemoteFile]) -> dict[str, str]:
    """Bring files into the cache; returns their digests by path.

    Raises:
        StorageError: one of them cannot be had.
    """

    def fetch(file: RemoteFile) -> str:
        with cache.scratch() as scratch:
            target = scratch / "file"
            store.fetch(file, target)
            return cache.keep(target)

    try:
        with ThreadPoolExecutor(MAX_PARALLEL_FETCHES, "fetch") as threads:
            return dict(zip((file.path for file in files), threads.map(fetch, files), strict=True))
    except OSError as error:
        raise StorageError(f"the model cache {cache.root} cannot be written: {error.strerror}") from error
