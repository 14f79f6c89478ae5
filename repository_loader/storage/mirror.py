"""A remote repository as a folder of this node: of links to models in the cache, each whole or not there."""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from repository_loader.storage.location import is_remote, read_location
from repository_loader.storage.model_cache import ModelCache
from repository_loader.storage.model_source import ModelSource, fetch_all, source_of
from repository_loader.storage.remote_store import RemoteFile, RemoteStore, StorageError
from repository_loader.storage.stores import open_store
from repository_loader.subfolders import CONFIG_FILE, broken_links, is_text, subfolders
from repository_loader.waits import waiting

_INDEX: Final = ".index.json"
_LEFT_BEHIND: Final = ("lost+found", "__pycache__", "__MACOSX")
_SAVE_S: Final = 1.0
_PARALLEL_MODELS: Final = 4


@dataclass(frozen=True, slots=True)
class RepositoryFolder:
    """A repository to read.

    `address` is its path, or its address as messages show it. `models` are the names of the folders in it, each with
    whether it may be a model: a hidden one, and one that a file system, Python or an archive left behind, has to have a
    `config.pbtxt`. `warnings` say of what an earlier state is used, and which links lead to nothing.
    """

    address: str
    path: str
    models: Mapping[str, bool]
    warnings: tuple[str, ...] = ()
    mirror: "Mirror | None" = None

    def fetch(self, names: Collection[str]) -> "Fetched":
        """Have models in the folder as the repository has them now; blocks. Those of a local one are there."""
        return Fetched() if self.mirror is None else self.mirror.fetch(names)


@dataclass(frozen=True, slots=True)
class Fetched:
    """What became of models to fetch.

    `failures` are those that could never be fetched, with the reasons; `warnings` say of what an earlier state is used.
    """

    failures: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def local_folder(repository: str, cache_dir: str) -> RepositoryFolder:
    """Return the folder of a repository, itself or for a remote one its mirror, and which models it has; blocks.

    Of a remote one no model is fetched yet. A model changes in the mirror at once and as a whole, when all of it has
    been fetched. What cannot be had leaves there what was.

    Raises:
        StorageError: a remote repository cannot be read and never was.
        LocationError: its address cannot be.
        OSError: the folder cannot be listed.
    """
    if not is_remote(repository):
        path = os.path.abspath(repository)
        names = subfolders(path)
        return RepositoryFolder(
            path,
            path,
            {name: not _is_hidden(name) or os.path.isfile(os.path.join(path, name, CONFIG_FILE)) for name in names},
            tuple(f"{name!a} is a link to nothing, and no model; ignored" for name in broken_links(path)),
        )
    try:
        root = Path(cache_dir).expanduser().absolute()
    except RuntimeError as error:
        raise StorageError(f"the model cache {cache_dir} cannot be made: this user has no home folder") from error
    return Mirror(repository, ModelCache(root)).look()


class Mirror:
    """One remote repository; any number of processes and threads have one of it at a time."""

    def __init__(self, repository: str, cache: ModelCache) -> None:
        self._location = read_location(repository)
        self._cache = cache
        self._name = hashlib.sha256(self._location.uri.encode()).hexdigest()[:40]
        self._folder = cache.repositories / self._name
        self._store: RemoteStore | None = None
        self._listed: Mapping[str, list[RemoteFile]] = {}

    def look(self) -> RepositoryFolder:
        """Ask the store which models there are; what it has no longer leaves the folder.

        Raises:
            StorageError: it does not say, and nothing is here.
        """
        try:
            store = open_store(self._location, self._cache)
            self._listed = _by_model(store.files())
        except StorageError as error:
            with self._index() as index:
                if not index:
                    raise
                models = {name: _may_be_model(name, (file[0] for file in known.files)) for name, known in index.items()}
            return self._as_folder(models, (f"{error}; what was read before is used",))
        self._store = store
        with self._index() as index:
            for link in self._folder.iterdir():  # of a process that died one may be there which the index does not have
                if link.is_symlink() and link.name not in self._listed:
                    link.unlink()
            for model in index.keys() - self._listed.keys():
                del index[model]
        models = {
            name: _may_be_model(name, (file.path[len(name) + 1 :] for file in files))
            for name, files in self._listed.items()
        }
        return self._as_folder(models)

    def _as_folder(self, models: Mapping[str, bool], warnings: tuple[str, ...] = ()) -> RepositoryFolder:
        return RepositoryFolder(self._location.shown, str(self._folder), models, warnings, self)

    def fetch(self, names: Collection[str]) -> Fetched:
        """Have models in the folder as they were listed; where the store did not answer, as they were read before.

        One that takes long holds up nobody but those who want the same.

        Raises:
            StorageError: the cache cannot be written.
        """
        failures: dict[str, str] = {}
        warnings: list[str] = []
        if self._store is None:
            return Fetched()
        taken: dict[str, ModelSource] = {}
        saved_s = float("-inf")
        with self._index() as index:
            before = dict(index)
        changed = [name for name in names if name not in before or not _same(before[name], self._listed[name])]
        with ThreadPoolExecutor(_PARALLEL_MODELS, "fetch-model") as threads:
            found = threads.map(lambda model: self._taken(model, before.get(model)), changed)
            for model, source in zip(changed, found, strict=True):
                if isinstance(source, ModelSource):
                    taken[model] = source
                elif model in before:
                    warnings.append(f"{source}; model '{model}' stays as it was read before")
                else:
                    failures[model] = str(source)
                if time.monotonic() - saved_s > _SAVE_S:  # a process that dies now leaves less to be fetched again
                    self._save(taken)
                    saved_s = time.monotonic()
        if taken:
            self._save(taken)
            self._cache.evict()
        return Fetched(failures, tuple(warnings))

    def _save(self, taken: Mapping[str, ModelSource]) -> None:
        with self._index() as index:
            index.update(taken)

    @contextlib.contextmanager
    def _index(self) -> Iterator[dict[str, ModelSource]]:
        """Give what is linked, by name, and write it if it is changed; processes and threads take turns."""
        with self._writing(), self._cache.locked(f"repository-{self._name}"):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            index = self._read_index()
            before = dict(index)
            yield index
            if index != before:
                self._write_index(index)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"the model cache {self._cache.root} cannot be written: {error.strerror}") from error

    def _taken(self, model: str, known: ModelSource | None) -> ModelSource | StorageError:
        """Fetch a model, or return why it cannot be had."""
        assert self._store is not None
        try:
            with waiting(f"fetching model '{model}' from {self._location.shown}"):
                return self._take(self._store, model, self._listed[model], known)
        except StorageError as error:
            return error

    def _take(self, store: RemoteStore, model: str, files: list[RemoteFile], known: ModelSource | None) -> ModelSource:
        """Fetch a model's new files, and have its link point to all of them, unless somebody has done so meanwhile."""
        if odd := next((file.path for file in files if not is_text(file.path)), ""):
            raise StorageError(f"{odd!a} of {self._location.shown} has a name that is not UTF-8 text")
        with self._writing(), self._cache.locked(f"{self._name}-{hashlib.sha256(model.encode()).hexdigest()[:40]}"):
            here = source_of(os.path.realpath(self._folder / model))
            if here is not None and here.uri == self._location.uri and _same(here, files):
                return here
            return self._link(store, model, files, known)

    def _link(self, store: RemoteStore, model: str, files: list[RemoteFile], known: ModelSource | None) -> ModelSource:
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
            fetched |= fetch_all(store, self._cache, missing)
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
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # another version may write it otherwise
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


def _is_hidden(name: str) -> bool:
    """Whether a folder is there for others than who lists it, or was left behind by what nobody has asked for it."""
    return name.startswith(".") or name in _LEFT_BEHIND


def _may_be_model(name: str, paths: Iterable[str]) -> bool:
    return not _is_hidden(name) or CONFIG_FILE in paths


def _same(known: ModelSource, files: list[RemoteFile]) -> bool:
    """Whether a listing is that of the model which is linked."""
    start = len(known.model) + 1
    return [(path, size, version) for path, _, size, version in known.files] == [
        (file.path[start:], file.size_bytes, file.version) for file in files
    ]
