"""The models of remote repositories on a node's disk, named by what is in them.

    blobs/<sha256>                  one file's content, read only
    models/<tree>/<model>/…         a model's folder, of hard links to blobs; <tree> is a digest of names and contents
    models/<tree>/.source.json      where it came from, see `ModelSource`
    models/<tree>/.held             locked by every process that uses the model
    repositories/<name>/<model>     links to such folders: a remote repository as a folder
    tmp/                            what is not complete

A model that changes gets another folder, so that what runs is never touched. Whatever stands under its final name is
complete: everything is made in `tmp` and renamed.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from repository_loader.storage.remote_store import StorageError

DIRECTORY_VARIABLE: Final = "EAGLERAY_MODEL_CACHE_DIR"
DEFAULT_CACHE_DIR: Final = "~/.cache/eagleray/models"
_FREE_SHARE: Final = 0.2
_EVICTION: Final = "eviction.lock"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class ModelCache:
    """The cache of a node; any number of processes use it at a time."""

    def __init__(self, root: Path) -> None:
        """Open the cache, and make it if it is not there.

        Raises:
            StorageError: the folder cannot be made.
        """
        self.root = root
        self.blobs, self.models, self.repositories = root / "blobs", root / "models", root / "repositories"
        self._tmp = root / "tmp"
        try:
            for folder in (self.blobs, self.models, self.repositories, self._tmp):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"the model cache {root} cannot be made: {error.strerror}") from error

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Have what a name stands for to oneself; the lock of a process that dies ends with it."""
        with (self._tmp / f"{name}.lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def filling(self) -> Iterator[None]:
        """Put contents and models in here: nothing is evicted meanwhile."""
        with (self._tmp / _EVICTION).open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Give a new folder on the cache's disk, which is removed afterwards; it is locked as long as it is used."""
        folder, descriptor = self._locked_folder()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)

    def _locked_folder(self) -> tuple[Path, int]:
        while True:
            folder = self._tmp / f"{os.getpid()}-{secrets.token_hex(8)}"
            folder.mkdir(mode=0o700)
            # Another process may take it for that of one that has died until it is locked.
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(folder, _FOLDER)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                if folder.is_dir():
                    return folder, descriptor
                os.close(descriptor)

    def keep(self, file: Path) -> str:
        """Take a complete file in, by its content; returns its digest."""
        digest = sha256_of(file)
        if not self.has(digest):
            file.chmod(0o400)
            file.rename(self.blobs / digest)
        return digest

    def has(self, digest: str) -> bool:
        """Whether a content is here."""
        return (self.blobs / digest).exists()

    def folder(self, tree: str, model: str) -> Path:
        """Return the place of a model's folder, whether it is there or not."""
        return self.models / tree / model

    def build(self, model: str, files: Mapping[str, str], source: bytes) -> Path:
        """Make a model's folder of contents that are here (digests by path), unless it is there; returns it.

        Raises:
            StorageError: the disk is full, or takes no such names.
        """
        target = self.folder(tree_of(model, files), model)
        try:
            if not target.is_dir():
                self._make(target, files)
            with self.scratch() as scratch:
                (scratch / "source").write_bytes(source)
                (scratch / "source").rename(target.parent / ".source.json")
        except OSError as error:
            raise StorageError(f"the model cache {self.root} cannot take model '{model}': {error.strerror}") from error
        return target

    def _make(self, target: Path, files: Mapping[str, str]) -> None:
        tree = target.parent
        with self.scratch() as scratch:
            made = scratch / tree.name
            for path, digest in files.items():
                file = made / target.name / path
                file.parent.mkdir(parents=True, exist_ok=True)
                os.link(self.blobs / digest, file)
            (made / ".held").touch()
            try:
                made.rename(tree)
            except OSError:
                if not target.is_dir():  # no other process was as quick
                    raise

    def hold(self, tree: str) -> int:
        """Return a descriptor that keeps a model's folder from being evicted until it is closed.

        Raises:
            FileNotFoundError: it is not there.
        """
        descriptor = os.open(self.models / tree / ".held", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.utime(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if not os.fstat(descriptor).st_nlink:  # evicted before the lock was there
                raise FileNotFoundError(tree)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def evict(self) -> None:
        """While less than a fifth of the disk is free, remove models that nobody uses, the longest unused first.

        In any case remove what processes that died have left half. What cannot be removed just now stays.
        """
        with contextlib.suppress(OSError):  # as where no more files may be open
            self._evict()

    def _evict(self) -> None:
        self._remove_halves()
        with (self._tmp / _EVICTION).open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # somebody fills the cache, and will look himself
                return
            linked = set()
            for link in self.repositories.glob("*/*"):
                with contextlib.suppress(OSError):  # it is none, or is gone
                    linked.add(os.path.dirname(os.readlink(link)))
            for folder in sorted(self.models.iterdir(), key=_last_used_s):
                if self._roomy():
                    return
                if str(folder) not in linked:
                    self._remove(folder)

    def _remove_halves(self) -> None:
        for folder in self._tmp.iterdir():
            with contextlib.suppress(OSError):  # it is none, is gone, or is used
                descriptor = os.open(folder, _FOLDER)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(descriptor)

    def _roomy(self) -> bool:
        usage = shutil.disk_usage(self.root)
        return usage.free >= _FREE_SHARE * usage.total

    def _remove(self, folder: Path) -> None:
        """Remove a model that nobody holds, and the contents that no other model has."""
        with contextlib.suppress(OSError), (folder / ".held").open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with self.scratch() as scratch:
                folder.rename(scratch / "gone")
        for blob in self.blobs.iterdir():
            if blob.stat().st_nlink == 1:
                blob.unlink()


def tree_of(model: str, files: Mapping[str, str]) -> str:
    """Return the digest of a model's folder: of its name, and of names and contents in it."""
    digest = hashlib.sha256(f"{model}\n".encode())
    for path in sorted(files):
        digest.update(f"{files[path]} {len(path.encode())} {path}\n".encode())
    return digest.hexdigest()[:40]


def sha256_of(path: Path) -> str:
    """Return the digest of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _last_used_s(folder: Path) -> float:
    try:
        return (folder / ".held").stat().st_mtime
    except OSError:
        return 0.0
