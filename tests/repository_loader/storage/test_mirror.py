import hashlib
import http.server
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from repository_loader.repository import RepositoryError, choose_models, load_repositories
from repository_loader.snapshot import LoaderOptions, Snapshot
from repository_loader.storage import mirror, model_source, object_store
from repository_loader.storage.location import read_location
from repository_loader.storage.model_cache import DIRECTORY_VARIABLE, ModelCache
from repository_loader.storage.model_source import fetch_all, provide
from repository_loader.storage.object_store import ObjectStore
from repository_loader.storage.remote_store import RemoteFile, RemoteStore, StorageError
from repository_loader.waits import longest_wait
from tests.full_disk import full_disk
from tests.object_stores import EMULATORS, S3_ENVIRONMENT, Bucket, as_container, emulator, gs_bucket, s3_bucket
from tests.repository_loader.repositories import TENSORS, python_model
from tests.repository_loader.storage.web_site import serving, write_archive

STORES = {"s3": s3_bucket, "gs": gs_bucket, "as": as_container}


@pytest.fixture(scope="module", params=STORES)
def bucket(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    if request.param in EMULATORS and emulator(request.param) is None:
        pytest.skip("{1} is not installed, nor named by {0}".format(*EMULATORS[request.param]))
    opened: AbstractContextManager[Bucket] = STORES[request.param](tmp_path_factory.mktemp("store"))
    with opened as running:
        yield running


@pytest.fixture
def at(bucket: Bucket, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder in the bucket for this test alone."""
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", "/nowhere")
    return hashlib.sha256(request.node.name.encode()).hexdigest()[:12]


def put(bucket: Bucket, at: str, files: dict[str, str | bytes | None]) -> str:
    bucket.put({f"{at}/{path}": content for path, content in files.items()})
    return f"{bucket.uri}/{at}"


def read(uri: str, cache: Path) -> Snapshot:
    return load_repositories([uri], LoaderOptions(cache_dir=str(cache)), None)


def test_models_of_a_store_load_like_those_of_a_folder(bucket: Bucket, at: str, tmp_path: Path) -> None:
    uri = put(bucket, at, {**python_model("a", versions=(1, 2)), **python_model("b c"), "readme.txt": "beside"})
    found = read(uri, tmp_path)
    assert {name: model.failure for name, model in found.models.items()} == {"a": None, "b c": None}
    package = found.models["a"].packages[-1]
    assert (package.version, Path(package.file_path).read_text()) == (2, python_model("a")["a/1/model.py"])
    assert package.source is not None and package.source.uri == uri


def test_it_is_known_which_model_is_fetched(
    bucket: Bucket, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def noted(*given: Any) -> dict[str, str]:
        seen.append(longest_wait(0.0))
        return fetch_all(*given)

    uri = put(bucket, at, python_model("a"))
    monkeypatch.setattr(mirror, "fetch_all", noted)
    read(uri, tmp_path)
    assert [*seen, longest_wait(0.0)] == [f"fetching model 'a' from {read_location(uri).shown}", ""]


def test_several_models_are_fetched_at_a_time(
    bucket: Bucket, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(4, timeout=10)

    def meeting(*given: Any) -> dict[str, str]:
        together.wait()
        return fetch_all(*given)

    uri = put(bucket, at, {path: text for name in "abcd" for path, text in python_model(name).items()})
    monkeypatch.setattr(mirror, "fetch_all", meeting)
    assert [model.failure for model in read(uri, tmp_path).models.values()] == [None] * 4


def test_changed_model_gets_a_folder_of_its_own_and_others_stay(bucket: Bucket, at: str, tmp_path: Path) -> None:
    uri = put(bucket, at, {**python_model("a"), **python_model("b")})
    before = read(uri, tmp_path).models
    bucket.put({f"{at}/a/1/model.py": "class TritonPythonModel:\n    changed = True\n"})
    bucket.delete(*(f"{at}/b/{path}" for path in ("1/model.py", "config.pbtxt")))
    put(bucket, at, python_model("c"))
    after = read(uri, tmp_path).models
    assert set(after) == {"a", "c"}
    old, new = (Path(models["a"].packages[0].file_path) for models in (before, after))
    assert old != new and "changed" in new.read_text() and "changed" not in old.read_text()
    assert read(uri, tmp_path).models["a"].model_path == after["a"].model_path


def test_unchanged_files_are_fetched_once(
    bucket: Bucket, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []

    def noted(store: RemoteStore, cache: ModelCache, files: list[RemoteFile]) -> dict[str, str]:
        fetched.extend(file.path for file in files)
        return fetch_all(store, cache, files)

    monkeypatch.setattr(mirror, "fetch_all", noted)
    uri = put(bucket, at, {**python_model("a"), "a/1/weights": b"w" * 1000})
    before = Path(read(uri, tmp_path).models["a"].model_path, "1/weights").stat().st_ino
    assert sorted(fetched) == ["a/1/model.py", "a/1/weights", "a/config.pbtxt"]
    fetched.clear()
    bucket.put({f"{at}/a/config.pbtxt": f'backend: "python" {TENSORS} max_batch_size: 2'})
    after = Path(read(uri, tmp_path).models["a"].model_path, "1/weights").stat().st_ino
    assert (fetched, before) == (["a/config.pbtxt"], after)
    read(uri, tmp_path)
    assert fetched == ["a/config.pbtxt"]


def test_of_models_that_are_not_asked_for_nothing_is_fetched(
    bucket: Bucket, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ensemble brings its steps; the names of all others are known."""
    fetched: list[str] = []

    def noted(store: RemoteStore, cache: ModelCache, files: list[RemoteFile]) -> dict[str, str]:
        fetched.extend(file.path.partition("/")[0] for file in files)
        return fetch_all(store, cache, files)

    monkeypatch.setattr(mirror, "fetch_all", noted)
    step = 'step { model_name: "b" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } }'
    ensemble = {"e/config.pbtxt": f'platform: "ensemble" {TENSORS} ensemble_scheduling {{ {step} }}'}
    uri = put(bucket, at, {**python_model("a"), **python_model("b"), **python_model("c"), **ensemble})
    options = LoaderOptions(cache_dir=str(tmp_path))
    assert choose_models([uri], options, ["?"]) == ["a", "b", "c", "e"] and not fetched
    assert set(load_repositories([uri], options, None, only=["a", "missing"]).models) == {"a"}
    assert set(fetched) == {"a"}
    fetched.clear()
    bucket.put({f"{at}/a/1/model.py": "class TritonPythonModel:\n    changed = True\n"})
    found = load_repositories([uri], options, None, only=["e"]).models
    assert {name: model.failure for name, model in found.items()} == {"b": None, "e": None}
    assert set(fetched) == {"b", "e"}
    fetched.clear()
    changed = load_repositories([uri], options, None, only=["a"]).models["a"]
    assert "changed" in Path(changed.model_path, "1/model.py").read_text()
    assert fetched == ["a"]


def test_empty_objects_stand_for_folders(bucket: Bucket, at: str, tmp_path: Path) -> None:
    uri = put(bucket, at, {**python_model("a"), "a": None, "a/1": None, "a/2": None})
    assert [package.version for package in read(uri, tmp_path).models["a"].packages] == [1]


def test_store_that_has_lost_everything_unloads_nothing(bucket: Bucket, at: str, tmp_path: Path) -> None:
    uri = put(bucket, at, python_model("a"))
    read(uri, tmp_path)
    bucket.delete(f"{at}/a/1/model.py", f"{at}/a/config.pbtxt")
    found = read(uri, tmp_path)
    assert found.models["a"].packages
    assert [f for f in found.findings if "has no files; what was read before is used" in f.message]


def test_what_was_fetched_before_serves_on_when_the_disk_is_full(bucket: Bucket, at: str, tmp_path: Path) -> None:
    uri = put(bucket, at, {**python_model("a"), **python_model("b")})
    before = read(uri, tmp_path).models
    bucket.put({f"{at}/a/1/model.py": "class TritonPythonModel:\n    changed = True\n"})
    with full_disk():
        found = read(uri, tmp_path)
    assert {name: model.model_path for name, model in found.models.items()} == {
        name: model.model_path for name, model in before.items()
    }
    assert all(model.packages for model in found.models.values())
    assert [finding for finding in found.findings if "File too large" in finding.message]
    assert "changed" in Path(read(uri, tmp_path).models["a"].packages[0].file_path).read_text()


def test_what_was_fetched_before_serves_on_when_a_file_is_not_what_was_listed(
    bucket: Bucket, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = put(bucket, at, {**python_model("a"), "a/1/weights": "old"})
    before = read(uri, tmp_path).models["a"].model_path

    def changed(store: RemoteStore, cache: ModelCache, files: list[RemoteFile]) -> dict[str, str]:
        bucket.put({f"{at}/a/1/weights": "two"})
        return fetch_all(store, cache, files)

    bucket.put({f"{at}/a/1/weights": "one"})
    with monkeypatch.context() as patch:
        patch.setattr(mirror, "fetch_all", changed)
        found = read(uri, tmp_path)
    assert found.models["a"].model_path == before
    assert [each for each in found.findings if "is not what was listed; it has changed since" in each.message]
    assert Path(read(uri, tmp_path).models["a"].model_path, "1/weights").read_text() == "two"


def test_a_name_that_no_disk_takes_is_its_own_models_fault_alone(bucket: Bucket, at: str, tmp_path: Path) -> None:
    uri = put(bucket, at, {**python_model("a"), **python_model("b"), f"b/{'n' * 300}": "x"})
    models = read(uri, tmp_path).models
    assert models["a"].failure is None
    assert "cannot take model 'b': File name too long" in str(models["b"].failure)


def test_a_file_that_has_gone_since_it_was_listed_is_said_to_be_missing(
    bucket: Bucket, at: str, tmp_path: Path
) -> None:
    uri = put(bucket, at, python_model("a"))
    with pytest.raises(StorageError, match=rf"^the model repository {uri} cannot be read: .*a/2/model\.py"):
        ObjectStore(read_location(uri)).fetch(RemoteFile("a/2/model.py", 1, "x"), tmp_path / "file")


def test_what_was_fetched_by_a_process_that_died_is_not_fetched_again(
    bucket: Bucket, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = put(bucket, at, {**python_model("a"), **python_model("b")})
    fetched: list[str] = []

    def dying(store: RemoteStore, cache: ModelCache, files: list[RemoteFile]) -> dict[str, str]:
        if fetched:
            raise KeyboardInterrupt
        return noted(store, cache, files)

    def noted(store: RemoteStore, cache: ModelCache, files: list[RemoteFile]) -> dict[str, str]:
        fetched.extend(file.path for file in files)
        return fetch_all(store, cache, files)

    monkeypatch.setattr(mirror, "fetch_all", dying)
    with pytest.raises(KeyboardInterrupt):
        read(uri, tmp_path)
    monkeypatch.setattr(mirror, "fetch_all", noted)
    assert set(read(uri, tmp_path).models) == {"a", "b"}
    assert sorted(fetched) == ["a/1/model.py", "a/config.pbtxt", "b/1/model.py", "b/config.pbtxt"]


def test_bucket_that_does_not_exist_is_an_error(bucket: Bucket, at: str, tmp_path: Path) -> None:
    uri = f"{bucket.uri}-missing/{at}"
    with pytest.raises(RepositoryError) as caught:
        read(uri, tmp_path)
    assert uri in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_other_node_fetches_the_same_content_by_itself(
    bucket: Bucket, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = put(bucket, at, python_model("a"))
    package = read(uri, tmp_path / "here").models["a"].packages[0]
    assert package.source is not None
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "there"))
    folder, held = provide(package.source, package.model_path)
    os.close(held)
    assert folder.startswith(str(tmp_path / "there"))
    assert Path(folder, "1/model.py").read_bytes() == Path(package.file_path).read_bytes()


def test_other_node_refuses_what_was_not_promised(
    bucket: Bucket, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = put(bucket, at, python_model("a"))
    package = read(uri, tmp_path / "here").models["a"].packages[0]
    text = str(python_model("a")["a/1/model.py"])
    put(bucket, at, {"a/1/model.py": text.replace("requests", "REQUESTS")})
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "there"))
    assert package.source is not None
    # A store may also claim that nothing has changed; then the content tells.
    lying = replace(package.source, files=tuple((*file[:3], "") for file in package.source.files))
    for source in (package.source, lying):
        with pytest.raises(StorageError, match="is not what was"):
            provide(source, package.model_path)
    assert not list((tmp_path / "there/models").iterdir())
    assert "requests" in Path(package.file_path).read_text()


def test_folder_that_is_used_is_not_evicted(
    bucket: Bucket, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = put(bucket, at, python_model("a"))
    used = read(uri, tmp_path).models["a"].packages[0]
    assert used.source is not None
    folder, held = provide(used.source, used.model_path)
    unused = []
    for text in ("one", "two"):
        bucket.put({f"{at}/a/1/model.py": f"# {text}"})
        unused.append(read(uri, tmp_path).models["a"].model_path)
    FullDisk(tmp_path).evict()
    assert [os.path.isdir(path) for path in (folder, *unused)] == [True, False, True]  # the last is linked
    os.close(held)
    FullDisk(tmp_path).evict()
    assert not os.path.isdir(folder)
    assert len(list((tmp_path / "blobs").iterdir())) == 2


class FullDisk(ModelCache):
    """A cache on a disk that has no room."""

    def _roomy(self) -> bool:
        return False


def test_a_full_disk_keeps_the_model_that_is_being_loaded(
    tmp_path: Path, site: tuple[Path, str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a node whose other files leave less than a fifth of it free."""
    write_archive(site[0] / "models.tgz", "a")
    package = read(f"{site[1]}/models.tgz", tmp_path / "here").models["a"].packages[0]
    assert package.source is not None
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "there"))
    monkeypatch.setattr(model_source, "ModelCache", FullDisk)
    folder, held = provide(package.source, package.model_path)
    assert Path(folder, "1/model.py").is_file()
    os.close(held)


class Contended(ModelCache):
    """A cache on such a disk, of which others evict whenever this process makes something."""

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        FullDisk(self.root).evict()
        with super().scratch() as folder:
            yield folder
        FullDisk(self.root).evict()


def test_a_model_that_takes_long_holds_up_nobody_but_who_wants_the_same(
    tmp_path: Path, site: tuple[Path, str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(site[0] / "models.tgz", "large", "small")
    options = LoaderOptions(cache_dir=str(tmp_path / "cache"))
    asked, go_on = threading.Event(), threading.Event()
    fetched: list[str] = []

    def slow(store: RemoteStore, cache: ModelCache, files: list[RemoteFile]) -> dict[str, str]:
        fetched.append(files[0].path.partition("/")[0])
        if fetched[-1] == "large":
            asked.set()
            assert go_on.wait(10)
        return fetch_all(store, cache, files)

    def load(name: str) -> dict[str, str | None]:
        models = load_repositories([f"{site[1]}/models.tgz"], options, None, only=[name]).models
        return {each: model.failure for each, model in models.items()}

    monkeypatch.setattr(mirror, "fetch_all", slow)
    with ThreadPoolExecutor(3) as threads:
        large = threads.submit(load, "large")
        assert asked.wait(10)
        again = threads.submit(load, "large")
        try:
            assert threads.submit(load, "small").result(10) == {"small": None}
        finally:
            go_on.set()
        assert large.result(10) == again.result(10) == {"large": None}
    assert fetched == ["large", "small"]
    assert load("large") == {"large": None} and fetched == ["large", "small"]


def test_a_model_is_not_evicted_before_it_is_linked(tmp_path: Path, site: tuple[Path, str, list[int]]) -> None:
    write_archive(site[0] / "models.tgz", "a")
    repository = mirror.Mirror(f"{site[1]}/models.tgz", Contended(tmp_path / "cache")).look()
    assert not repository.fetch(["a"]).failures
    assert (Path(repository.path) / "a/config.pbtxt").is_file()


def test_store_that_is_down_unloads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_bucket(tmp_path) as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        bucket.put({f"repo/{path}": content for path, content in python_model("a").items()})
        before = read(f"{bucket.uri}/repo", tmp_path / "cache")
        bucket.stop()
        after = read(f"{bucket.uri}/repo", tmp_path / "cache")
        assert after.models == before.models
        assert any("what was read before is used" in finding.message for finding in after.findings)
        with pytest.raises(RepositoryError, match="cannot be read"):
            read(f"{bucket.uri}/other", tmp_path / "cache")


def test_a_download_may_take_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            for name, value in (("Content-Length", "8"), ("ETag", '"x"'), ("Last-Modified", self.date_time_string())):
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):
                for _ in range(8):
                    self.wfile.write(b"x")
                    time.sleep(0.1)

        def log_message(self, *_: object) -> None:
            pass

    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    file = RemoteFile("weights", 8, '"x"')
    with serving(Slow) as address:
        location = read_location(f"s3://{address}/bucket/a")
        ObjectStore(location).fetch(file, tmp_path / "weights")
        # What is said of the whole is what holds, not the client's own 30 s.
        assert timedelta(hours=12) <= object_store._WHOLE_TIMEOUT
        monkeypatch.setattr(object_store, "_WHOLE_TIMEOUT", timedelta(seconds=0.2))
        monkeypatch.setattr(object_store, "_MAX_RETRIES", 0)
        with pytest.raises(StorageError, match="cannot be read"):
            ObjectStore(location).fetch(file, tmp_path / "cut")
    assert (tmp_path / "weights").read_bytes() == b"x" * 8
