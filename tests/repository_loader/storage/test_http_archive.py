"""Repositories that are archives on a web server."""

import http.server
import json
import os
from pathlib import Path

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.repository import RepositoryError, load_repositories
from repository_loader.snapshot import LoaderOptions, Override, Snapshot
from repository_loader.storage.mirror import local_folder
from repository_loader.storage.model_source import provide
from tests.repository_loader.repositories import TENSORS
from tests.repository_loader.storage.web_site import serving, write_archive


def read(uri: str, cache: Path) -> Snapshot:
    return load_repositories([uri], LoaderOptions(cache_dir=str(cache)), None)


def test_archive_is_a_repository(site: tuple[Path, str, list[int]], tmp_path: Path) -> None:
    folder, address, statuses = site
    digest = write_archive(folder / "models.tar.gz", "a", "b", folder="./repo/")
    uri = f"{address}/models.tar.gz#folder=repo&sha256={digest}"
    first = read(uri, tmp_path / "cache")
    assert {name: model.failure for name, model in first.models.items()} == {"a": None, "b": None}
    assert read(uri, tmp_path / "cache") == first
    assert statuses == [200, 304]
    package = first.models["a"].packages[0]
    assert package.source is not None
    folder_there, held = provide(package.source, package.model_path)
    os.close(held)
    assert folder_there == package.model_path


def test_an_archive_that_is_the_same_under_another_tag_is_downloaded_once_more(
    site: tuple[Path, str, list[int]], tmp_path: Path
) -> None:
    folder, url, statuses = site
    write_archive(folder / "models.tgz", "a")
    for at_s in (1e9, 2e9, 2e9):
        os.utime(folder / "models.tgz", (at_s, at_s))
        assert set(read(f"{url}/models.tgz", tmp_path / "cache").models) == {"a"}
    assert statuses == [200, 200, 304]


def test_what_is_in_an_archive_is_read_once_and_not_for_each_of_its_files(
    site: tuple[Path, str, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that brings its Python environment has tens of thousands."""
    folder, url, _ = site
    names = [f"m{number}" for number in range(25)]
    write_archive(folder / "models.tgz", *names)
    read_count, loads = 0, json.loads

    def counted(text: bytes) -> object:
        nonlocal read_count
        read_count += 1
        return loads(text)

    mirror = local_folder(f"{url}/models.tgz", str(tmp_path / "cache"))
    monkeypatch.setattr(json, "loads", counted)
    assert not mirror.fetch(names).failures
    assert read_count < len(names)


def test_a_file_whose_name_is_not_text_is_its_own_models_fault_alone(
    site: tuple[Path, str, list[int]], tmp_path: Path
) -> None:
    folder, url, _ = site
    write_archive(folder / "models.tgz", "good", "odd", extra={"odd/1/caf\udce9": ""})
    models = read(f"{url}/models.tgz", tmp_path / "cache").models
    assert models["good"].failure is None
    assert "has a name that is not UTF-8 text" in str(models["odd"].failure)


def test_a_cache_that_cannot_be_written_has_what_was_read_before(
    site: tuple[Path, str, list[int]], tmp_path: Path
) -> None:
    folder, url, _ = site
    cache = tmp_path / "cache"
    write_archive(folder / "models.tgz", "a")
    before = read(f"{url}/models.tgz", cache).models
    (cache / "archives").rename(tmp_path / "aside")
    (cache / "archives").touch()
    found = read(f"{url}/models.tgz", cache)
    assert found.models == before
    assert any(
        "cannot be written: File exists; what was read before is used" in each.message for each in found.findings
    )
    (cache / "archives").unlink()
    (index,) = (cache / "repositories").glob("*/.index.json")
    index.unlink()
    index.mkdir()
    assert read(f"{url}/models.tgz", cache).models == before


def test_a_model_that_has_gone_leaves_also_when_a_process_died_as_it_had_come(
    site: tuple[Path, str, list[int]], tmp_path: Path
) -> None:
    folder, url, _ = site
    write_archive(folder / "models.tgz", "a", "b")
    assert set(read(f"{url}/models.tgz", tmp_path / "cache").models) == {"a", "b"}
    (index,) = (tmp_path / "cache/repositories").glob("*/.index.json")
    known = json.loads(index.read_bytes())
    index.write_text(json.dumps({"a": known["a"]}))  # what is there between the link of `b` and the next index
    write_archive(folder / "models.tgz", "a")
    os.utime(folder / "models.tgz", (2e9, 2e9))
    assert set(read(f"{url}/models.tgz", tmp_path / "cache").models) == {"a"}


@pytest.mark.parametrize("text", ["", "[]", "null", '{"a": 1}', '{"form": 2, "files": [["a/config.pbtxt", 1]]}'])
@pytest.mark.parametrize("name", ["archives/*/archive.json", "repositories/*/.index.json"])
def test_what_another_version_has_written_into_the_cache_is_fetched_again(
    name: str, text: str, site: tuple[Path, str, list[int]], tmp_path: Path
) -> None:
    folder, url, _ = site
    write_archive(folder / "models.tgz", "a")
    before = read(f"{url}/models.tgz", tmp_path / "cache").models
    (written,) = (tmp_path / "cache").glob(name)
    written.write_text(text)
    assert read(f"{url}/models.tgz", tmp_path / "cache").models == before
    assert written.read_text() != text


def test_archive_with_another_digest_is_refused(site: tuple[Path, str, list[int]], tmp_path: Path) -> None:
    folder, address, _ = site
    digest = write_archive(folder / "models.tar.gz", "a")
    uri = f"{address}/models.tar.gz#sha256={digest}"
    before = read(uri, tmp_path / "cache")
    write_archive(folder / "models.tar.gz", "a", "changed")
    os.utime(folder / "models.tar.gz", (2e9, 2e9))
    after = read(uri, tmp_path / "cache")
    assert after.models == before.models
    assert [f for f in after.findings if "another SHA-256" in f.message]


@pytest.mark.parametrize("content", [b"<html>", b""])
def test_what_is_no_archive_is_an_error(content: bytes, site: tuple[Path, str, list[int]], tmp_path: Path) -> None:
    folder, address, _ = site
    (folder / "models.tar.gz").write_bytes(content)
    for name in ("models.tar.gz", "missing.zip"):
        with pytest.raises(RepositoryError, match=name):
            read(f"{address}/{name}", tmp_path / "cache")


def test_an_archive_that_is_cut_short_removes_no_model_and_is_downloaded_again(tmp_path: Path) -> None:
    """A part of a tar file is another one that is whole."""
    write_archive(tmp_path / "models.tar", "a", "b", mode="w")
    whole = (tmp_path / "models.tar").read_bytes()
    sent = [whole, whole[: len(whole) // 2], whole]

    class Cut(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("ETag", f'"{len(sent)}"')
            self.send_header("Content-Length", str(len(whole)))
            self.end_headers()
            self.wfile.write(sent.pop(0))

        def log_message(self, *_: object) -> None:
            pass

    with serving(Cut) as address:
        uri = f"http://{address}/models.tar"
        for cut in (False, True, False):
            found = read(uri, tmp_path / "cache")
            assert set(found.models) == {"a", "b"}
            assert any("bytes early; what was read before is used" in each.message for each in found.findings) is cut


def test_what_there_is_to_say_of_a_model_names_the_address_of_its_files(
    site: tuple[Path, str, list[int]], tmp_path: Path
) -> None:
    folder, address, _ = site
    step = 'step { model_name: "none" model_version: -1 input_map { key: "X" value: "X" } }'
    wrong = {
        ".left/x": "",
        "both/1/model.py": "",
        "files/1/model.txt": "",
        "files/config.pbtxt": 'backend: "onnxruntime"',
        "graph/config.pbtxt": f'platform: "ensemble"\n{TENSORS}\nensemble_scheduling {{ {step} }}',
        "text/config.pbtxt": "\nnonsense: 1",
    }
    write_archive(folder / "models.tar", mode="w", extra=wrong)
    (tmp_path / "local" / "both").mkdir(parents=True)
    uri, local = f"{address}/models.tar", tmp_path / "local"
    found = load_repositories([uri, str(local)], LoaderOptions(cache_dir=str(tmp_path / "cache")), None)
    said = [*found.findings, *(finding for model in found.models.values() for finding in model.findings)]
    errors = {(each.path, each.line) for each in said if each.severity == "error"}
    both = {(f"{uri}/both", 1), (f"{local}/both", 1)}
    assert errors == both | {
        (f"{uri}/files/config.pbtxt", 1),
        (f"{uri}/graph/config.pbtxt", 3),
        (f"{uri}/text/config.pbtxt", 2),
    }
    assert f"{uri}/.left" in {each.path for each in said}
    assert found.models["files"].failure == f"unable to find '{uri}/files/1/model.onnx' for model instance 'files_0'"
    assert str(found.models["text"].failure).startswith(f"failed to read text proto from {uri}/text/config.pbtxt:2:1: ")
    assert not any("cache" in str(each) for each in said)
    signed = load_repositories([f"{uri}?signature=secret"], LoaderOptions(cache_dir=str(tmp_path / "cache")), None)
    assert signed.models["files"].failure == found.models["files"].failure
    assert f"{uri}/.left" in {each.path for each in signed.findings}
    told = [*signed.findings, *((each.findings, each.failure, each.config_path) for each in signed.models.values())]
    assert not any("secret" in str(each) for each in told)


def test_no_message_tells_what_lets_its_holder_read_an_archive(
    site: tuple[Path, str, list[int]], tmp_path: Path
) -> None:
    _, address, _ = site
    for name in ("missing.tar", "models.rar", "models.tar#sha256=0", "ftp://a/b"):
        before, hash_sign, fragment = name.partition("#")
        wrong = f"{'' if '://' in before else address + '/'}{before}?signature=secret{hash_sign}{fragment}"
        with pytest.raises(RepositoryError, match=r"model repository (http|ftp)://\S+") as raised:
            load_repositories([wrong], LoaderOptions(cache_dir=str(tmp_path / "cache")), None)
        assert "secret" not in str(raised.value)


def test_files_that_a_client_sends_are_not_said_to_be_in_the_repository(
    site: tuple[Path, str, list[int]], tmp_path: Path
) -> None:
    folder, address, _ = site
    write_archive(folder / "models.tar", "a", mode="w")
    sent = tmp_path / "sent" / "a"
    sent.mkdir(parents=True)
    override = Override(ModelConfig(backend="python"), str(sent))
    options = LoaderOptions(cache_dir=str(tmp_path / "cache"))
    model = load_repositories([f"{address}/models.tar"], options, None, overrides={"a": override}).models["a"]
    assert model.findings and {Path(each.path).parent for each in model.findings} <= {sent, sent.parent}
