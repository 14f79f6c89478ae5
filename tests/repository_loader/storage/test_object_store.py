"""What is said where a store in a cloud cannot be read."""

import http.server
from pathlib import Path

import pytest

from repository_loader.storage.location import read_location
from repository_loader.storage.object_store import ObjectStore
from repository_loader.storage.remote_store import StorageError
from tests.repository_loader.storage.web_site import serving

pytest.importorskip("obstore")


class NoRole(http.server.BaseHTTPRequestHandler):
    """A machine's service of metadata, whose machine has no role."""

    def do_PUT(self) -> None:
        self.send_error(403)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("keyed", [False, True])
def test_who_has_no_credentials_is_told_so(keyed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "key") if keyed else monkeypatch.delenv(name, raising=False)
    with serving(NoRole) as address:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://{address}")
        with pytest.raises(StorageError) as raised:
            ObjectStore(read_location(f"s3://{address}/bucket/path")).files()
    told = f"the model repository s3://{address}/bucket/path cannot be read: no credentials are set for it, and "
    assert str(raised.value).startswith(told) == (not keyed), raised.value
