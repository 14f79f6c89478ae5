"""Files that clients send: where they lie, who can read them, and how other nodes get them."""

import asyncio
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deployments.replica.override_files import OverrideFiles
from protocol.errors import InvalidArgument, Unavailable
from tests.deployments.replica.test_model_host import CONFIG, MODEL, host_of, planned, told_of
from tests.deployments.replica.test_model_host import unfrozen as unfrozen
from tests.full_disk import full_disk

FILES = {"file:1/model.onnx": b"onnx", "file:1/data/weights": b"w", "file:labels.txt": b"l"}


class Kept:
    """Keeps files in memory."""

    def __init__(self, owner: str = "eagleray") -> None:
        self.owner = owner
        self.archives: dict[str, bytes] = {}

    def put_files(self, name: str, archive: bytes) -> None:
        self.archives[name] = archive

    def files(self, name: str) -> bytes:
        return self.archives.get(name, b"")

    def keep_files(self, names: list[str]) -> None:
        self.archives = {name: archive for name, archive in self.archives.items() if name in names}

    def names(self) -> list[str]:
        return list(self.archives)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_lie_in_a_folder_of_their_users(tmp_path: Path) -> None:
    path = Path(OverrideFiles(tmp_path, Kept()).write("m", FILES))
    assert path.name == "m"
    assert content(path) == {"1/model.onnx": b"onnx", "1/data/weights": b"w", "labels.txt": b"l"}
    assert not stat.S_IMODE(path.stat().st_mode) & 0o077


def test_a_full_disk_is_told_and_leaves_nothing_behind(tmp_path: Path) -> None:
    files = OverrideFiles(tmp_path, Kept())
    with full_disk(), pytest.raises(Unavailable, match="the files of model 'm' cannot be written: File too large"):
        files.write("m", FILES)
    assert content(tmp_path) == {}
    assert content(Path(files.write("m", FILES)))["1/model.onnx"] == b"onnx"


@pytest.mark.parametrize(
    "key",
    [
        "file:../x",
        "file:/etc/x",
        "file:",
        "file:1/../../x",
        "file:a//b",
        "file:1/",
        "file:\0",
    ],
)
def test_a_path_that_leaves_the_model_is_refused(tmp_path: Path, key: str) -> None:
    kept = Kept()
    with pytest.raises(InvalidArgument, match="must stay within model directory"):
        OverrideFiles(tmp_path, kept).write("m", {**FILES, key: b"x"})
    assert not kept.archives and not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["a/" * 3000 + "x", "a" * 256, "1/" + "\N{SNOWMAN}" * 86])
def test_a_path_that_no_file_system_takes_is_refused(tmp_path: Path, path: str) -> None:
    kept = Kept()
    with pytest.raises(InvalidArgument, match=r"^Invalid file path 'file:.*': it is too long\.$"):
        OverrideFiles(tmp_path, kept).write("m", {**FILES, f"file:{path}": b"x"})
    assert not kept.archives and not list(tmp_path.iterdir())


@pytest.mark.parametrize("model", ["../../outside", "{root}/outside", "..", "", "a/b", "nul\0"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, model: str) -> None:
    kept = Kept()
    with pytest.raises(InvalidArgument, match="model name"):
        OverrideFiles(tmp_path / "node", kept).write(model.format(root=tmp_path), FILES)
    assert (kept.archives, content(tmp_path)) == ({}, {})


def test_the_same_files_may_be_those_of_two_models(tmp_path: Path) -> None:
    files, kept = OverrideFiles(tmp_path, Kept()), []
    for name in ("m", "n"):
        kept.append(files.write(name, FILES))
        files.keep(kept)
    assert [content(Path(path))["1/model.onnx"] for path in kept] == [b"onnx", b"onnx"]


def test_files_that_cannot_be_one_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be the files of one model"):
        OverrideFiles(tmp_path, Kept()).write("m", {"file:1": b"x", "file:1/model.onnx": b"x"})


def test_another_node_fetches_them(tmp_path: Path) -> None:
    kept = Kept()
    path = OverrideFiles(tmp_path / "here", kept).write("m", FILES)
    there = OverrideFiles(tmp_path / "there", kept)
    package = {"name": "m", "model_path": path, "version_path": f"{path}/1", "file_path": f"{path}/1/model.onnx"}
    data = {"package": package, "label_files": {"OUT": f"{path}/labels.txt"}}
    there.bring(data)
    assert Path(package["file_path"]).read_bytes() == b"onnx"
    assert Path(package["file_path"]).is_relative_to(tmp_path / "there")
    assert Path(data["label_files"]["OUT"]).read_bytes() == b"l"


def test_what_is_not_used_any_more_goes(tmp_path: Path) -> None:
    kept = Kept()
    files = OverrideFiles(tmp_path, kept)
    first, second = files.write("m", FILES), files.write("m", {"file:1/model.onnx": b"other"})
    files.keep([second])
    assert (Path(first).exists(), Path(second).exists(), len(kept.archives)) == (False, True, 1)


def test_another_node_forgets_what_is_not_used_any_more(tmp_path: Path) -> None:
    kept = Kept()
    here, there = OverrideFiles(tmp_path / "here", kept), OverrideFiles(tmp_path / "there", kept)
    brought = []
    for files in (FILES, {"file:1/model.onnx": b"other"}):
        package = dict.fromkeys(("model_path", "version_path", "file_path"), here.write("m", files)) | {"name": "m"}
        there.bring({"package": package, "label_files": {}})
        brought.append(Path(package["model_path"]))
    here.keep([str(brought[1])])
    there.follow()
    assert [path.exists() for path in brought] == [False, True]
    here.keep([])
    there.follow()
    assert not list(brought[1].parents[1].iterdir())


def test_threads_may_write_the_same_files_at_the_same_time(tmp_path: Path) -> None:
    large = {f"file:1/{number}": bytes([number]) * 4096 for number in range(200)}
    for _ in range(20):
        files = OverrideFiles(tmp_path, Kept())
        with ThreadPoolExecutor(4) as threads:
            paths = set(threads.map(files.write, ["m"] * 4, [large] * 4))
        assert [len(content(Path(path))) for path in paths] == [200]
        files.keep([])
        assert not list(Path(paths.pop()).parents[1].iterdir())


def test_several_owners_on_a_node_have_each_their_own(tmp_path: Path) -> None:
    ours, theirs = OverrideFiles(tmp_path, Kept("ours")), OverrideFiles(tmp_path, Kept("ours/theirs"))
    mine, same, other = ours.write("m", FILES), theirs.write("m", FILES), theirs.write("n", FILES)
    assert mine != same
    ours.keep([])
    assert (Path(mine).exists(), Path(same).exists(), Path(other).exists()) == (False, True, True)


def test_a_model_whose_files_find_no_room_on_the_node_fails_and_harms_no_other(tmp_path: Path) -> None:
    one, two = (planned(tmp_path / name, name, MODEL, "") for name in ("one", "two"))
    kept = Kept()
    files = {"file:config.pbtxt": CONFIG.encode(), "file:1/model.py": MODEL.encode()}
    sent = told_of(Path(OverrideFiles(tmp_path / "here", kept).write("sent", files)).parent)
    text = "the files of model 'sent' cannot be written: File too large"

    async def check() -> None:
        host = await host_of(one)
        host.loads.files = OverrideFiles(tmp_path / "there", kept)
        with full_disk():
            await host.apply([one, two, sent])
        assert set(host.served) == {("one", 1), ("two", 1)}
        assert host.failures == {("sent", 1): (text, sent["digest"])}
        assert ["sent", 1, text, 0.0, sent["digest"]] in host.report()
        await host.apply([one, {**sent, "digest": "another"}])
        assert set(host.served) == {("one", 1), ("sent", 1)}
        assert host.served["sent", 1].model.package.model_path.startswith(str(tmp_path / "there"))
        await host.close()

    asyncio.run(check())
