"""Unpacks a tar or zip archive that somebody else has made: regular files inside one folder, and no more than fits."""

import bz2
import gzip
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, cast

from repository_loader.storage.remote_store import MAX_FILES

MAX_RATIO: Final = 100
"""How many times larger than the archive its files, and the archive without compression, may be beyond 64 MiB."""
_FREE_BYTES: Final = 64 << 20
_DISK_SHARE: Final = 0.9
_COPY_BYTES: Final = 1 << 20
_MAX_READ_BYTES: Final = 4 << 20
_BROKEN: Final = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    ValueError,
    NotImplementedError,
    RuntimeError,
)
_COMPRESSIONS: Final = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\x00", lzma.open))


class ArchiveError(Exception):
    """An archive that is broken, or is not unpacked because of what is in it; the message names the member."""


def unpack(archive: Path, target: Path, max_files: int = MAX_FILES) -> None:
    """Unpack into an empty folder; what was unpacked before an error stays there.

    `max_files` counts folders too, those of the members and those that their paths have besides.

    Raises:
        ArchiveError: a member is no regular file or folder, leaves the target, appears twice or is encrypted; or there
            are too many, or too much in them.
    """
    most_bytes = _FREE_BYTES + MAX_RATIO * archive.stat().st_size
    left_bytes = min(most_bytes, int(_DISK_SHARE * shutil.disk_usage(target).free))
    count, made = 0, {target}
    try:
        for name, source in _members(archive, most_bytes):
            path = folder = target / _safe(name)
            count += 1
            while source is not None and (folder := folder.parent) not in made:
                made.add(folder)
                count += 1
            if count > max_files:
                raise ArchiveError(f"the archive has more than {max_files} files and folders")
            if source is None:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as out:
                while data := source.read(_COPY_BYTES):
                    left_bytes -= len(data)
                    if left_bytes < 0:
                        raise _too_large()
                    out.write(data)
    except ArchiveError:
        raise
    except (FileExistsError, NotADirectoryError) as error:
        raise ArchiveError(f"the archive has '{os.path.relpath(error.filename, target)}' twice") from error
    except _BROKEN as error:
        raise ArchiveError(f"the archive is broken: {error}") from error
    except OSError as error:
        raise ArchiveError(f"the archive cannot be unpacked: {error.strerror or error}") from error


def _members(archive: Path, most_bytes: int) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Yield name and content of each regular file, and None for that of a folder."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                if info.is_dir():
                    yield info.filename, None
                    continue
                kind = stat.S_IFMT(info.external_attr >> 16)
                if kind not in (0, stat.S_IFREG):
                    raise ArchiveError(f"'{info.filename}' is no regular file; links are not unpacked")
                if info.flag_bits & 1:
                    raise ArchiveError(f"'{info.filename}' is encrypted")
                with zipped.open(info) as source:
                    yield info.filename, source
        return
    with _decompressed(archive) as file:
        bounded = cast(IO[bytes], _Bounded(file, most_bytes))
        with tarfile.open(fileobj=bounded, mode="r:") as tar:
            while (member := tar.next()) is not None:
                cast(Any, tar).members.clear()  # which only links need
                if member.isdir():
                    yield member.name, None
                    continue
                if not member.isreg():
                    raise ArchiveError(f"'{member.name}' is no regular file; links are not unpacked")
                content = tar.extractfile(member)
                assert content is not None
                yield member.name, content


def _decompressed(archive: Path) -> IO[bytes]:
    with archive.open("rb") as file:
        start = file.read(8)
    for magic, opened in _COMPRESSIONS:
        if start.startswith(magic):
            return cast(IO[bytes], opened(archive, "rb"))
    return archive.open("rb")


class _Bounded:
    """A file of which nobody reads much at once: `tarfile` reads some headers as a whole, whatever size they say.

    Nor does anybody get further in it than `most_bytes`: headers compress well too.
    """

    def __init__(self, file: IO[bytes], most_bytes: int) -> None:
        self._file = file
        self._most_bytes = most_bytes

    def read(self, size: int = -1) -> bytes:
        """Read some bytes."""
        if not 0 <= size <= _MAX_READ_BYTES:
            raise ArchiveError(f"the archive has a header of more than {_MAX_READ_BYTES} bytes")
        data = self._file.read(size)
        self._check(self._file.tell())
        return data

    def seek(self, position: int) -> int:
        """Go to a position; the file is read up to there."""
        self._check(position)
        return self._file.seek(position)

    def _check(self, position: int) -> None:
        if position > self._most_bytes:
            raise _too_large()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _too_large() -> ArchiveError:
    return ArchiveError(f"the archive unpacks to more than {MAX_RATIO} times its size, or than there is disk for")


def _safe(name: str) -> str:
    """Return a member's path inside the target.

    Raises:
        ArchiveError: it is not inside.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name or "\\" in name or (not parts and name.strip("./")):
        raise ArchiveError(f"'{name}' leaves the folder of the archive")
    return "/".join(parts)
