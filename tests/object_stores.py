"""Real servers of object stores on this machine, each in a process of its own, and repositories in them."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

import obstore
from obstore.store import AzureStore, S3Store

from tests.serving import free_port, wait_until

BUCKET = "models"
# Azurite's own, which everybody knows.
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
EMULATORS = {
    "gs": ("EAGLERAY_TEST_FAKE_GCS_SERVER", "fake-gcs-server"),
    "as": ("EAGLERAY_TEST_AZURITE", "azurite-blob"),
}
"""By scheme, the variable with the program's path, and its name."""
S3_ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass
class Bucket:
    """A bucket or container in a running server; `uri` is its address as an operator writes it."""

    uri: str
    environment: Mapping[str, str]
    write: Callable[[str, bytes], object]
    remove: Callable[[str], object]
    process: "subprocess.Popen[bytes]"

    def put(self, files: Mapping[str, str | bytes | None]) -> None:
        """Write objects, as tests write files; None makes what consoles make of a folder."""
        for path, content in files.items():
            if content is None:
                self.write(f"{path}/", b"")
            else:
                self.write(path, content.encode() if isinstance(content, str) else content)

    def delete(self, *paths: str) -> None:
        for path in paths:
            self.remove(path)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(10)


@contextlib.contextmanager
def _running(command: list[str], port: int, log_path: Path) -> "Iterator[subprocess.Popen[bytes]]":
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until(lambda: _answers(port), f"{command[:3]} on port {port}", timeout_s=60)
        yield process
    finally:
        process.kill()
        process.wait(10)


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@contextlib.contextmanager
def s3_bucket(folder: Path) -> Iterator[Bucket]:
    """Moto's server of S3, with one bucket."""
    port = free_port()
    with _running(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port, folder / "s3.log"
    ) as it:
        endpoint = f"http://127.0.0.1:{port}"
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT"), timeout=10).close()
        store = S3Store(
            BUCKET,
            endpoint=endpoint,
            access_key_id="key",
            secret_access_key="secret",
            region="us-east-1",
            client_options={"allow_http": True},
        )
        yield Bucket(
            f"s3://127.0.0.1:{port}/{BUCKET}",
            S3_ENVIRONMENT,
            partial(obstore.put, store),
            partial(obstore.delete, store),
            it,
        )


@contextlib.contextmanager
def gs_bucket(folder: Path) -> Iterator[Bucket]:
    """fake-gcs-server, with one bucket."""
    port, program = free_port(), emulator("gs")
    assert program is not None
    address = f"http://127.0.0.1:{port}"
    flags = [
        "-backend",
        "memory",
        "-scheme",
        "http",
        "-host",
        "127.0.0.1",
        "-port",
        str(port),
        "-external-url",
        address,
    ]
    with _running([program, *flags, "-public-host", f"127.0.0.1:{port}"], port, folder / "gs.log") as process:
        request = urllib.request.Request(f"{address}/storage/v1/b", json.dumps({"name": BUCKET}).encode())
        request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request, timeout=10).close()
        store = _JsonStore(address)
        yield Bucket(f"gs://{BUCKET}", {"STORAGE_EMULATOR_HOST": address}, store.write, store.remove, process)


class _JsonStore:
    """Writes by the JSON interface: fake-gcs-server does not take the uploads of obstore's."""

    def __init__(self, address: str) -> None:
        self._address = address

    def write(self, path: str, content: bytes) -> None:
        url = f"{self._address}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(path, safe='')}"
        urllib.request.urlopen(urllib.request.Request(url, content, method="POST"), timeout=10).close()

    def remove(self, path: str) -> None:
        url = f"{self._address}/storage/v1/b/{BUCKET}/o/{quote(path, safe='')}"
        urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=10).close()


def emulator(scheme: str) -> str | None:
    """Return the program of an emulator that no Python package brings, None where it is not installed."""
    variable, program = EMULATORS[scheme]
    return os.environ.get(variable) or shutil.which(program)


@contextlib.contextmanager
def as_container(folder: Path) -> Iterator[Bucket]:
    """Azurite, with one container."""
    port = free_port()
    program = emulator("as")
    assert program is not None
    flags = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck"]
    with _running([program, *flags], port, folder / "as.log") as process:
        endpoint = f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}"
        store = AzureStore(
            BUCKET,
            account_name=AZURITE_ACCOUNT,
            account_key=AZURITE_KEY,
            endpoint=endpoint,
            client_options={"allow_http": True},
        )
        _make_container(endpoint)
        environment = {"AZURE_STORAGE_KEY": AZURITE_KEY, "AZURE_STORAGE_BLOB_ENDPOINT": endpoint}
        yield Bucket(
            f"as://{AZURITE_ACCOUNT}/{BUCKET}",
            environment,
            partial(obstore.put, store),
            partial(obstore.delete, store),
            process,
        )


def _make_container(endpoint: str) -> None:
    """Make the container: obstore has no call for it, so the request is signed here (Azure's Shared Key)."""
    import base64
    import email.utils
    import hashlib
    import hmac

    date, version = email.utils.formatdate(usegmt=True), "2021-08-06"
    resource = f"/{AZURITE_ACCOUNT}/{AZURITE_ACCOUNT}/{BUCKET}\nrestype:container"
    text = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{version}\n{resource}"
    digest = hmac.new(base64.b64decode(AZURITE_KEY), text.encode(), hashlib.sha256).digest()
    request = urllib.request.Request(f"{endpoint}/{BUCKET}?restype=container", method="PUT")
    request.add_header("x-ms-date", date)
    request.add_header("x-ms-version", version)
    request.add_header("Authorization", f"SharedKey {AZURITE_ACCOUNT}:{base64.b64encode(digest).decode()}")
    urllib.request.urlopen(request, timeout=10).close()
