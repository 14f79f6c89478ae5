"""A repository that is one archive on a web server."""

import contextlib
import email.utils
import hashlib
import http.client
import json
import os
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final
from urllib.parse import urldefrag

from repository_loader.storage.archive import ArchiveError, unpack
from repository_loader.storage.credentials import client_options
from repository_loader.storage.location import Location
from repository_loader.storage.model_cache import ModelCache, sha256_of
from repository_loader.storage.remote_store import RemoteFile, StorageError, checked

_TIMEOUT_S: Final = 30.0
_READ_BYTES: Final = 1 << 20
_DISK_SHARE: Final = 0.5
_NOT_MODIFIED: Final = 304


class HttpArchive:
    """The archive as it was last unpacked, in the cache; it is downloaded again when the server has another one."""

    def __init__(self, location: Location, cache: ModelCache) -> None:
        self._location = location
        self._cache = cache
        self._url = urldefrag(location.uri)[0]
        name = hashlib.sha256(location.uri.encode()).hexdigest()[:40]
        self._lock = f"archive-{name}"
        self._folder = cache.root / "archives" / name
        self._read: tuple[tuple[int, int], dict[str, Any]] = ((0, 0), {})
        """The document that was read last, and of which file: it is asked for with each of the archive's files."""

    def files(self) -> list[RemoteFile]:
        """Return every file, after a look whether there is another archive; see `RemoteStore`."""
        try:
            with self._cache.locked(self._lock):
                self._refresh()
                return checked(self._location.shown, self._listed())
        except OSError as error:
            raise StorageError(f"the model cache {self._cache.root} cannot be written: {error.strerror}") from error

    def _listed(self) -> list[RemoteFile]:
        start = f"{self._location.prefix}/" if self._location.prefix else ""
        return [
            RemoteFile(path[len(start) :], int(size), str(digest))
            for path, (digest, size) in self._known().get("files", {}).items()
            if path.startswith(start)
        ]

    def fetch(self, file: RemoteFile, target: Path) -> None:
        """Write a file to a path, out of the archive that is here or else of the server's; see `RemoteStore`."""
        path = "/".join(part for part in (self._location.prefix, file.path) if part)
        with self._cache.locked(self._lock):
            if self._known().get("files", {}).get(path, ("",))[0] != file.version:
                self._refresh()
            found = self._known().get("files", {}).get(path)
            if found is None or found[0] != file.version:
                raise StorageError(f"'{file.path}' of {self._location.shown} has changed since it was listed")
            try:
                shutil.copyfile(self._folder / "files" / path, target)
            except OSError as error:
                raise StorageError(f"{target} cannot be written: {error.strerror}") from error

    def _known(self) -> dict[str, Any]:
        """Return what was unpacked here, nothing where that cannot be read: it is fetched again."""
        path = self._folder / "archive.json"
        try:
            status = path.stat()
            if (stamp := (status.st_ino, status.st_mtime_ns)) != self._read[0]:
                self._read = stamp, _read_document(path.read_bytes())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # another version may write it otherwise
            return {}
        return self._read[1]

    def _refresh(self) -> None:
        """Have what the server has."""
        known = self._known()
        request = urllib.request.Request(self._url)
        for header, value in known.get("conditions", {}).items():
            request.add_header(header, value)
        for value in client_options(self._location).values():
            request.add_unredirected_header("Authorization", value)
        with self._cache.scratch() as scratch:
            conditions = self._download(request, scratch / "archive")
            if conditions is None:
                return
            digest = sha256_of(scratch / "archive")
            if self._location.sha256 and digest != self._location.sha256:
                raise StorageError(f"the model repository {self._location.shown} has another SHA-256 than the address")
            if digest == known.get("sha256"):
                (scratch / "archive.json").write_text(json.dumps(known | {"conditions": conditions}))
                (scratch / "archive.json").rename(self._folder / "archive.json")
                return
            files = scratch / "unpacked" / "files"
            files.mkdir(parents=True)
            try:
                unpack(scratch / "archive", files)
            except ArchiveError as error:
                raise StorageError(f"the model repository {self._location.shown}: {error}") from error
            found = {
                os.path.relpath(path, files): (sha256_of(path), path.stat().st_size)
                for path in sorted(files.rglob("*"))
                if path.is_file()
            }
            document = {"sha256": digest, "conditions": conditions, "files": found}
            (scratch / "unpacked/archive.json").write_text(json.dumps(document))
            self._folder.parent.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                self._folder.rename(scratch / "old")
            (scratch / "unpacked").rename(self._folder)

    def _download(self, request: urllib.request.Request, target: Path) -> dict[str, str] | None:
        """Write the archive to a path; returns what to ask with the next time, None when it is known already."""
        left_bytes = int(_DISK_SHARE * shutil.disk_usage(target.parent).free)
        try:
            with _opener().open(request, timeout=_TIMEOUT_S) as answer, target.open("xb") as out:
                while data := answer.read(_READ_BYTES):
                    left_bytes -= len(data)
                    if left_bytes < 0:
                        raise self._error("it takes more than half of the disk")
                    out.write(data)
                if answer.length:  # of which `read` with a size says nothing
                    raise self._error(f"the connection ended {answer.length} bytes early")
                headers = answer.headers
        except urllib.error.HTTPError as error:
            if error.code == _NOT_MODIFIED:
                return None
            raise self._error(f"the server answers {error.code} {error.reason}") from error
        except StorageError:
            raise
        except OSError as error:
            raise self._error(str(getattr(error, "reason", error))) from error
        except (http.client.HTTPException, ValueError) as error:
            raise self._error(f"{type(error).__name__}: {error}") from error
        if etag := headers.get("ETag"):
            return {"If-None-Match": etag}
        modified = headers.get("Last-Modified")
        return {"If-Modified-Since": modified} if modified and email.utils.parsedate(modified) else {}

    def _error(self, reason: str) -> StorageError:
        return StorageError(f"the model repository {self._location.shown} cannot be read: {reason}")


def _read_document(data: bytes) -> dict[str, Any]:
    document = json.loads(data)
    files = {str(path): (str(digest), int(size)) for path, (digest, size) in document["files"].items()}
    return {"sha256": str(document["sha256"]), "conditions": dict(document["conditions"]), "files": files}


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener that follows redirections to web servers only."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.HTTPDefaultErrorHandler,
    ):
        opener.add_handler(handler())
    return opener
