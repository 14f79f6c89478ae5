import json
import pwd
from pathlib import Path
from typing import Any

import pytest

from repository_loader.storage.credentials import client_options
from repository_loader.storage.location import read_location
from repository_loader.storage.remote_store import StorageError

DOCUMENT = {
    "s3": {
        "": {"key_id": "everywhere", "secret_key": "s0"},
        "s3://bucket": {"key_id": "bucket", "secret_key": "s1", "region": "eu-west-1", "session_token": "t"},
        "s3://bucket/deep": {"key_id": "deep", "secret_key": "s2"},
        "s3://minio:9000/bucket": {"profile": "minio"},
        "s3://https://minio:9001/bucket": {"key_id": "tls", "secret_key": "s3"},
    },
    "gs": {"": "/keys/gs.json", "gs://inline": {"type": "service_account"}},
    "as": {"as://account/box": {"account_str": "account", "account_key": "a2V5"}},
    "http": {"https://example.com": {"authorization": "Bearer x"}},
}

FOUND: dict[str, dict[str, Any]] = {
    "s3://other/models": {"access_key_id": "everywhere", "secret_access_key": "s0"},
    "s3://bucket-2": {"access_key_id": "everywhere", "secret_access_key": "s0"},
    "s3://bucket/models": {
        "access_key_id": "bucket",
        "secret_access_key": "s1",
        "region": "eu-west-1",
        "session_token": "t",
    },
    "s3://bucket/deep//er": {"access_key_id": "deep", "secret_access_key": "s2"},
    "s3://minio:9000/bucket/x": {"access_key_id": "mine", "secret_access_key": "m", "region": "r"},
    "s3://https://minio:9001/bucket/x": {"access_key_id": "tls", "secret_access_key": "s3"},
    "gs://any/models": {"application_credentials": "/keys/gs.json"},
    "gs://inline/models": {"service_account_key": '{"type": "service_account"}'},
    "as://account/box/models": {"account_key": "a2V5"},
    "as://account/other": {},
    "https://example.com/models.zip": {"authorization": "Bearer x"},
    "https://example.org/models.zip": {},
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "credentials.json").write_text(json.dumps(DOCUMENT))
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text("[minio]\naws_access_key_id = mine\naws_secret_access_key = m\n")
    (tmp_path / ".aws/config").write_text("[profile minio]\nregion = r\n")
    return {"TRITON_CLOUD_CREDENTIAL_PATH": str(tmp_path / "credentials.json"), "HOME": str(tmp_path)}


@pytest.mark.parametrize("address", FOUND)
def test_longest_prefix_of_the_credential_file_counts(address: str, environment: dict[str, str]) -> None:
    assert client_options(read_location(address), environment) == FOUND[address]


def test_a_user_without_a_home_folder_has_no_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of whom a container's /etc/passwd knows nothing; the client may find keys elsewhere."""

    def nobody(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.chdir(tmp_path)
    assert client_options(read_location("s3://any/models"), {}) == {}


def test_profiles_count_without_keys_in_variables(environment: dict[str, str]) -> None:
    del environment["TRITON_CLOUD_CREDENTIAL_PATH"]
    location = read_location("s3://bucket")
    assert client_options(location, environment | {"AWS_PROFILE": "minio"})["access_key_id"] == "mine"
    assert client_options(location, environment | {"AWS_PROFILE": "minio", "AWS_ACCESS_KEY_ID": "k"}) == {}


def test_variables_of_azure(environment: dict[str, str]) -> None:
    location = read_location("as://account/other")
    del environment["TRITON_CLOUD_CREDENTIAL_PATH"]
    assert client_options(location, {"AZURE_STORAGE_KEY": "k"}) == {"account_key": "k"}
    managed = {"AZURE_STORAGE_AUTH_TYPE": "managed", "AZURE_STORAGE_CLIENT_ID": "id"}
    assert client_options(location, managed) == {"client_id": "id"}


@pytest.mark.parametrize("text", [None, "not JSON", "[]", '{"s3": {"": "a string"}}', '{"s3": 1}'])
def test_unusable_file_is_told_without_its_content(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(StorageError, match="TRITON_CLOUD_CREDENTIAL_PATH"):
        client_options(read_location("s3://bucket"), {"TRITON_CLOUD_CREDENTIAL_PATH": str(path)})
