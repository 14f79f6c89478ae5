"""Credentials of stores: Triton's credential file, and the clouds' own variables and files.

What is not found here the store's client looks for itself: keys in variables, web identity, roles of a machine.
Source: Triton's "Cloud Storage with Credential file (Beta)"; AWS, "Shared config and credentials files".
"""

import configparser
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from repository_loader.storage.location import Location
from repository_loader.storage.remote_store import StorageError

FILE_VARIABLE: Final = "TRITON_CLOUD_CREDENTIAL_PATH"
_MAX_FILE_BYTES: Final = 1 << 20

_S3_KEYS = {
    "key_id": "access_key_id",
    "secret_key": "secret_access_key",
    "session_token": "session_token",
    "region": "region",
}


def client_options(location: Location, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the options of a store's client that say who asks.

    Raises:
        StorageError: the credential file cannot be read, or has something else in it.
    """
    given = _from_file(location, environment)
    if location.scheme == "s3":
        return _s3(given, location, environment)
    if location.scheme == "gs":
        return _gs(given, environment)
    if location.scheme == "as":
        return _as(given, location, environment)
    return {} if given is None else _fields(given, {"authorization": "authorization"}, location)


def _from_file(location: Location, environment: Mapping[str, str]) -> Any:
    """Return what the credential file has for the longest prefix of the address; None when there is nothing."""
    path = environment.get(FILE_VARIABLE, "")
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            document = json.loads(file.read(_MAX_FILE_BYTES))
        rows = {_clean(prefix): value for prefix, value in document.get(location.scheme, {}).items()}
    except OSError as error:
        raise StorageError(f"{FILE_VARIABLE}: '{path}' cannot be read: {error.strerror}") from error
    except (ValueError, AttributeError) as error:
        raise StorageError(f"{FILE_VARIABLE}: '{path}' is not a JSON object of credentials by scheme") from error
    uri = _clean(location.uri)
    prefixes = [prefix for prefix in rows if not prefix or uri == prefix or uri.startswith(f"{prefix}/")]
    return rows[max(prefixes, key=len)] if prefixes else None


def _clean(prefix: str) -> str:
    scheme, separator, rest = prefix.partition("://")
    if not separator:
        return prefix
    inner, inner_separator, path = rest.partition("://")
    if not inner_separator:
        inner, path = "", rest
    joined = "/".join(part for part in path.split("/") if part)
    return f"{scheme}://{joined}" if inner in ("", "http") else f"{scheme}://{inner}://{joined}"


def _fields(given: Any, names: Mapping[str, str], location: Location) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise StorageError(f"{FILE_VARIABLE}: the credentials for '{location.shown}' are not a JSON object")
    return {option: str(given[name]) for name, option in names.items() if given.get(name)}


def _s3(given: Any, location: Location, environment: Mapping[str, str]) -> dict[str, Any]:
    if given is not None:
        options = _fields(given, _S3_KEYS, location)
        return _profile(str(given["profile"]), environment) | options if given.get("profile") else options
    if environment.get("AWS_ACCESS_KEY_ID"):
        return {}  # the client reads the variables itself
    return _profile(environment.get("AWS_PROFILE", "default"), environment)


def _profile(name: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return a profile of the shared files; empty when it is in neither."""
    home = Path(os.path.expanduser(environment.get("HOME", "~")), ".aws")  # which nobody has to have
    options: dict[str, Any] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(environment.get(variable) or home / file)
        except (configparser.Error, UnicodeDecodeError) as error:
            raise StorageError(f"{variable}: the file of AWS profiles cannot be read") from error
        if parser.has_section(section):
            for key, option in (
                ("aws_access_key_id", "access_key_id"),
                ("aws_secret_access_key", "secret_access_key"),
                ("aws_session_token", "session_token"),
                ("region", "region"),
            ):
                if value := parser.get(section, key, fallback=""):
                    options[option] = value
    return options


def _gs(given: Any, environment: Mapping[str, str]) -> dict[str, Any]:
    if isinstance(given, dict):
        return {"service_account_key": json.dumps(given)}
    if given:
        text = str(given)
        return {"service_account_key": text} if text.lstrip().startswith("{") else {"application_credentials": text}
    emulator = environment.get("STORAGE_EMULATOR_HOST", "")
    if emulator:
        return {"base_url": emulator if "://" in emulator else f"http://{emulator}", "skip_signature": True}
    return {}


def _as(given: Any, location: Location, environment: Mapping[str, str]) -> dict[str, Any]:
    if given is not None:
        # `account_str` names the account, which the address names too.
        return _fields(given, {"account_key": "account_key"}, location)
    if environment.get("AZURE_STORAGE_KEY"):
        return {"account_key": environment["AZURE_STORAGE_KEY"]}
    if environment.get("AZURE_STORAGE_AUTH_TYPE") == "managed" and environment.get("AZURE_STORAGE_CLIENT_ID"):
        return {"client_id": environment["AZURE_STORAGE_CLIENT_ID"]}
    return {}
