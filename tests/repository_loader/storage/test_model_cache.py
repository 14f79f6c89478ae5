"""The cache of what was fetched: who holds what, and what is removed when."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from repository_loader.package import ModelPackage
from repository_loader.repository import load_repositories
from repository_loader.snapshot import LoaderOptions
from repository_loader.storage import mirror, model_source
from repository_loader.storage.model_cache import DIRECTORY_VARIABLE, ModelCache
from repository_loader.storage.model_source import provide
from repository_loader.storage.remote_store import StorageError
from tests.repeating import repeating
from tests.repository_loader.storage.web_site import write_archive


def fetched(site: tuple[Path, str, list[int]], cache: Path) -> ModelPackage:
    """Return a model that was fetched."""
    write_archive(site[0] / "models.tgz", "a")
    options = LoaderOptions(cache_dir=str(cache))
    return load_repositories([f"{site[1]}/models.tgz"], options, None).models["a"].packages[0]


def test_a_cache_that_cannot_be_used_is_named_and_keeps_no_file_open(
    tmp_path: Path, site: tuple[Path, str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = fetched(site, tmp_path / "here")
    there = tmp_path / "there"
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(there))
    assert package.source is not None
    lock = there / "tmp" / f"{package.source.tree}.lock"
    lock.mkdir(parents=True)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(StorageError, match=f"^the model cache {there} cannot be used: Is a directory$"):
        provide(package.source, package.model_path)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_model_is_there_though_nothing_can_be_evicted_just_now(
    tmp_path: Path, site: tuple[Path, str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy(ModelCache):
        def _remove_halves(self) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(mirror, "ModelCache", Busy)
    monkeypatch.setattr(model_source, "ModelCache", Busy)
    package = fetched(site, tmp_path / "here")
    assert package.source is not None
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "there"))
    folder, held = provide(package.source, package.model_path)
    assert Path(folder, "1/model.py").is_file()
    os.close(held)


def test_a_folder_that_is_removed_while_it_is_to_be_held_is_not_there(
    tmp_path: Path, site: tuple[Path, str, list[int]]
) -> None:
    package = fetched(site, tmp_path)
    assert package.source is not None
    tree = package.source.tree
    mark = tmp_path / "models" / tree / ".held"
    os.utime(mark, (0, 0))
    with ThreadPoolExecutor(1) as threads:
        with mark.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            holding = threads.submit(ModelCache(tmp_path).hold, tree)
            while not mark.stat().st_mtime:  # it has found the folder, and waits for the lock
                time.sleep(0.01)
            shutil.rmtree(mark.parent)
        with pytest.raises(FileNotFoundError):
            holding.result()


def test_what_a_process_that_died_has_left_half_is_removed(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)
    dying = (
        "import os, pathlib, sys; from repository_loader.storage.model_cache import ModelCache\n"
        "with ModelCache(pathlib.Path(sys.argv[1])).scratch() as folder:\n"
        "    (folder / 'file').write_bytes(bytes(1000)); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", dying, str(tmp_path)], check=False)
    (left,) = (path for path in (tmp_path / "tmp").iterdir() if path.is_dir())
    with cache.scratch() as used:
        cache.evict()
        assert (left.is_dir(), used.is_dir()) == (False, True)


def test_what_is_begun_while_others_look_for_halves_is_not_taken_for_one(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path)

    def begin() -> None:
        for _ in range(300):
            with cache.scratch() as folder:
                (folder / "file").write_bytes(b"x")
                assert (folder / "file").read_bytes() == b"x"

    with repeating(cache.evict, cache.evict), ThreadPoolExecutor(2) as threads:
        for begun in [threads.submit(begin) for _ in range(2)]:
            begun.result()
