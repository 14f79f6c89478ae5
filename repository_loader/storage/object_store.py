"""Repositories in S3, Google Cloud Storage and Azure Blob Storage, by way of `obstore`."""

import importlib
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from repository_loader.storage.credentials import client_options
from repository_loader.storage.location import PACKAGE, Location, missing_package
from repository_loader.storage.remote_store import MAX_FILES, RemoteFile, StorageError, checked

_CONNECT_TIMEOUT: Final = timedelta(seconds=5)
_READ_TIMEOUT: Final = timedelta(seconds=30)
_WHOLE_TIMEOUT: Final = timedelta(days=1)
"""For a file in one piece, whatever its size; the client has one of 30 s where nothing is said."""
_MAX_RETRIES: Final = 3
_RETRY_TIMEOUT: Final = timedelta(seconds=20)
_CHUNK_BYTES: Final = 8 << 20
_LISTED_AT_ONCE: Final = 1000
_MACHINES_OWN: Final = ("/latest/api/token", "/latest/meta-data/", "/computeMetadata/", "/metadata/identity/")
"""Where a machine in a cloud is asked for its own credentials (S3, Google, Azure): when there are no others."""
_CHANGED: Final = "changed "
"""What the version of a file begins with whose store lists no ETag: a time, which says nothing of what is sent."""


class ObjectStore:
    """One repository in a bucket or container."""

    def __init__(self, location: Location) -> None:
        """Open the store; asks it nothing yet.

        Raises:
            StorageError: `obstore` is not installed, or the credentials cannot be used.
        """
        self._location = location
        if missing := missing_package(location):
            raise StorageError(missing)
        try:
            self._api = importlib.import_module(PACKAGE)
            self._store = _open(location)
        except StorageError:
            raise
        except Exception as error:  # the client's own kinds
            raise self._error(error) from error

    def files(self) -> list[RemoteFile]:
        """Return every file; see `RemoteStore`."""
        try:
            return checked(self._location.shown, self._listed())
        except StorageError:
            raise
        except Exception as error:
            raise self._error(error) from error

    def _listed(self) -> Iterator[RemoteFile]:
        start = f"{self._location.prefix}/" if self._location.prefix else ""
        count = 0
        for chunk in self._api.list(self._store, prefix=self._location.prefix or None, chunk_size=_LISTED_AT_ONCE):
            count += len(chunk)
            if count > 2 * MAX_FILES:
                raise StorageError(f"the model repository {self._location.shown} has more than {MAX_FILES} files")
            for found in chunk:
                path = str(found["path"])
                version = found["e_tag"] or f"{_CHANGED}{found['last_modified'].isoformat()}"
                if path.startswith(start):
                    yield RemoteFile(path[len(start) :], int(found["size"]), version)

    def fetch(self, file: RemoteFile, target: Path) -> None:
        """Write a file to a path; see `RemoteStore`."""
        key = "/".join(part for part in (self._location.prefix, file.path) if part)
        try:
            answer = self._api.get(self._store, key)
            e_tag = answer.meta["e_tag"]
            with target.open("xb") as out:
                size_bytes = sum(out.write(chunk) for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES))
        except Exception as error:
            if isinstance(error, OSError) and error.errno:  # those that the client raises have none
                raise StorageError(f"{target} cannot be written: {error.strerror}") from error
            raise self._error(error) from error
        if size_bytes != file.size_bytes or _differ(file.version, e_tag):
            raise StorageError(f"'{file.path}' of {self._location.shown} is not what was listed; it has changed since")

    def _error(self, error: Exception) -> StorageError:
        """Say in one line what went wrong; the client's text goes on for pages."""
        line = " ".join(str(error).partition("Debug source")[0].split())[:400]
        if any(path in line for path in _MACHINES_OWN):
            line = f"no credentials are set for it, and this machine has none of its own: {line}"
        return StorageError(f"the model repository {self._location.shown} cannot be read: {line}")


def _differ(listed: str, e_tag: str | None) -> bool:
    """Whether a file is another one than was listed; some stores have an ETag in quotes only where they send it."""
    return bool(e_tag) and not listed.startswith(_CHANGED) and listed.strip('"') != str(e_tag).strip('"')


def _open(location: Location) -> Any:
    from obstore.store import AzureStore, GCSStore, S3Store

    given = client_options(location)
    http: dict[str, Any] = {
        "connect_timeout": _CONNECT_TIMEOUT,
        "read_timeout": _READ_TIMEOUT,
        "timeout": _WHOLE_TIMEOUT,
    }
    common: dict[str, Any] = {
        "client_options": http,
        "retry_config": {"max_retries": _MAX_RETRIES, "retry_timeout": _RETRY_TIMEOUT},
    }
    if location.scheme == "s3":
        endpoint = location.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
        if endpoint:
            http["allow_http"] = endpoint.startswith("http://")
            given["endpoint"] = endpoint
        return S3Store(location.bucket, **given, **common)
    if location.scheme == "gs":
        http["allow_http"] = str(given.get("base_url", "")).startswith("http://")
        return GCSStore(location.bucket, **given, **common)
    endpoint = os.environ.get("AZURE_STORAGE_BLOB_ENDPOINT", "")
    if endpoint:
        http["allow_http"] = endpoint.startswith("http://")
        given["endpoint"] = endpoint
    return AzureStore(location.bucket, account_name=location.account, **given, **common)
