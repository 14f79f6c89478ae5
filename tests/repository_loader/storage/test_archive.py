import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from repository_loader.storage.archive import ArchiveError, unpack

FILES = {"m/config.pbtxt": b"text", "m/1/model.onnx": b"weights" * 1000, "m/1/empty": b""}
MODES = {"tar": "w", "tar.gz": "w:gz", "tar.bz2": "w:bz2", "tar.xz": "w:xz"}


def tar(path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for info, content in members:
            info.size = len(content) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(content))
    return path


def zipped(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def info(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def target(tmp_path: Path) -> Path:
    folder = tmp_path / "out/inner"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("kind", [*MODES, "zip"])
def test_unpacks_files_and_folders(kind: str, tmp_path: Path) -> None:
    path, folder = tmp_path / f"a.{kind}", target(tmp_path)
    if kind == "zip":
        zipped(path, ("m/", b""), *FILES.items())
    else:
        tar(
            path,
            (info("./m", tarfile.DIRTYPE), b""),
            *((info(f"./{n}"), c) for n, c in FILES.items()),
            mode=MODES[kind],
        )
    unpack(path, folder)
    assert {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()} == FILES


def linked_zip() -> zipfile.ZipInfo:
    made = zipfile.ZipInfo("link")
    made.create_system, made.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return made


def long_named() -> tarfile.TarInfo:
    """Return what takes 3 MiB of an archive, and a few bytes of a compressed one."""
    made = info("folder", tarfile.DIRTYPE)
    made.pax_headers = {"comment": "x" * (3 << 20)}
    return made


HOSTILE: dict[str, Callable[[Path], Path]] = {
    "tar, up": lambda p: tar(p, (info("../out"), b"x")),
    "tar, up inside": lambda p: tar(p, (info("m/../../out"), b"x")),
    "tar, absolute": lambda p: tar(p, (info("/tmp/out"), b"x")),
    "tar, symbolic link": lambda p: tar(p, (info("link", tarfile.SYMTYPE, "/etc"), b""), (info("link/x"), b"x")),
    "tar, hard link": lambda p: tar(p, (info("link", tarfile.LNKTYPE, "/etc/passwd"), b"")),
    "tar, device": lambda p: tar(p, (info("null", tarfile.CHRTYPE), b"")),
    "tar, pipe": lambda p: tar(p, (info("pipe", tarfile.FIFOTYPE), b"")),
    "tar, folder outside": lambda p: tar(p, (info("../folder", tarfile.DIRTYPE), b"")),
    "tar, twice": lambda p: tar(p, (info("a"), b"1"), (info("a"), b"2")),
    "tar, file as folder": lambda p: tar(p, (info("a"), b"1"), (info("a/b"), b"2")),
    "tar, bomb": lambda p: tar(p, (info("zeros"), bytes(80 << 20))),
    "tar, headers that are a bomb": lambda p: tar(p, *[(long_named(), b"")] * 24),
    "tar, huge header": lambda p: tar(p, (info("a" * (8 << 20)), b"")),
    "tar, cut": lambda p: written(p, tar(p, (info("a"), b"x" * 100_000)).read_bytes()[:90]),
    "zip, up": lambda p: zipped(p, ("../out", b"x")),
    "zip, absolute": lambda p: zipped(p, ("/tmp/out", b"x")),
    "zip, backslash": lambda p: zipped(p, ("..\\out", b"x")),
    "zip, symbolic link": lambda p: zipped(p, (linked_zip(), b"/etc/passwd")),
    "zip, bomb": lambda p: zipped(p, ("zeros", bytes(80 << 20))),
    "no archive": lambda p: written(p, b"<html>"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_refuses_what_could_harm_and_writes_nothing_outside(name: str, tmp_path: Path) -> None:
    folder = target(tmp_path)
    archive = HOSTILE[name](tmp_path / "archive")
    with pytest.raises(ArchiveError):
        unpack(archive, folder)
    assert {p.name for p in tmp_path.iterdir()} == {"archive", "out"}
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["inner"]
    assert not any(p.is_symlink() for p in folder.rglob("*"))
    assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) < 80 << 20


MANY: dict[str, Callable[[Path], Path]] = {
    "files": lambda p: tar(p, *((info(f"{number}"), b"") for number in range(11))),
    "folders": lambda p: tar(p, *((info("d", tarfile.DIRTYPE), b"") for _ in range(11))),
    "folders in a path": lambda p: tar(p, (info("a/" * 10 + "x"), b"")),
    "zip, files": lambda p: zipped(p, *((f"{number}", b"") for number in range(11))),
    "zip, folders": lambda p: zipped(p, *((f"{number}/", b"") for number in range(11))),
}


@pytest.mark.parametrize("name", MANY)
def test_files_and_folders_are_counted(name: str, tmp_path: Path) -> None:
    archive = MANY[name](tmp_path / "archive")
    with pytest.raises(ArchiveError, match=r"^the archive has more than 10 files and folders$"):
        unpack(archive, target(tmp_path), 10)
    (tmp_path / "enough").mkdir()
    unpack(archive, tmp_path / "enough", 11)
