"""Where a repository is: the forms of addresses that Triton takes, and archives over HTTP.

Source: Triton's "Model Repository" page, "Cloud Storage".
"""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final
from urllib.parse import parse_qs, urldefrag, urlsplit

OBJECT_STORES: Final = ("s3", "gs", "as")
ARCHIVE_SUFFIXES: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")

PACKAGE: Final = "obstore"

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_HOST = re.compile(r"(?:(https?)://)?([0-9A-Za-z_.-]+):(\d{1,5})/")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class LocationError(ValueError):
    """An address that cannot be read; the message names it and says what would do."""


@dataclass(frozen=True, slots=True)
class Location:
    """A remote repository.

    `scheme` is `s3`, `gs`, `as` or `http` (for both, `uri` has the rest). `endpoint` is the address of a store of one's
    own, "" for the provider's. `account` is Azure's. `prefix` is the folder in the bucket, container or archive, ""
    for all of it. `sha256` is the digest that an archive must have, "" for any.
    """

    uri: str
    scheme: str
    bucket: str = ""
    prefix: str = ""
    endpoint: str = ""
    account: str = ""
    sha256: str = ""

    @property
    def shown(self) -> str:
        """The address in messages: without its query, as whoever knows that may be allowed to read the repository."""
        return _without_query(self.uri)


def is_remote(repository: str) -> bool:
    """Whether a repository is named by an address, and not by a path."""
    return _SCHEME.match(repository) is not None


def read_location(repository: str) -> Location:
    """Read an address.

    Raises:
        LocationError: it is none of those that are known.
    """
    found = _SCHEME.match(repository)
    scheme = found[1].lower() if found else ""
    rest = repository[found.end() :] if found else repository
    if scheme in ("http", "https"):
        return _archive(repository)
    if scheme not in OBJECT_STORES:
        raise LocationError(
            f"the model repository {_without_query(repository)}: {scheme}:// is not known; "
            "s3://, gs://, as://, http://, https:// are"
        )
    endpoint = ""
    if scheme == "s3" and (host := _HOST.match(rest)):
        endpoint = f"{host[1] or 'http'}://{host[2]}:{host[3]}"
        rest = rest[host.end() :]
    parts = [part for part in rest.split("/") if part]
    needed = 2 if scheme == "as" else 1
    if len(parts) < needed or any(part in (".", "..") for part in parts):
        form = "as://<account>/<container>/<path>" if scheme == "as" else f"{scheme}://<bucket>/<path>"
        raise LocationError(f"the model repository {_without_query(repository)}: must be {form}")
    shown = f"{endpoint.removeprefix('http://')}/" if endpoint else ""
    uri = f"{scheme}://{shown}{'/'.join(parts)}"
    account = parts.pop(0) if scheme == "as" else ""
    return Location(uri, scheme, parts[0], "/".join(parts[1:]), endpoint, account)


def missing_package(location: Location) -> str:
    """Return which package a location needs and this Python does not have, as a sentence; "" when there is none."""
    if location.scheme not in OBJECT_STORES or find_spec(PACKAGE) is not None:
        return ""
    return (
        f"the model repository {location.shown} needs '{PACKAGE}', which is not installed; install it with: "
        "pip install 'eagleray[storage]'"
    )


def _archive(repository: str) -> Location:
    """Read the address of an archive; its fragment may say `folder=<path>` and `sha256=<hex>`."""
    uri, fragment = urldefrag(repository)
    split = urlsplit(uri)
    if not split.hostname or not split.path.lower().endswith(ARCHIVE_SUFFIXES):
        raise LocationError(
            f"the model repository {_without_query(repository)}: must be an archive that ends with "
            f"{', '.join(ARCHIVE_SUFFIXES)}"
        )
    if split.username or split.password:
        raise LocationError("a model repository's address must hold no password; see TRITON_CLOUD_CREDENTIAL_PATH")
    options = parse_qs(fragment, keep_blank_values=True)
    sha256 = options.pop("sha256", [""])[0].lower()
    folder = options.pop("folder", [""])[0].strip("/")
    if options or (sha256 and not _SHA256.fullmatch(sha256)) or ".." in folder.split("/"):
        raise LocationError(
            f"the model repository {_without_query(repository)}: what follows '#' must be folder=<path> or "
            "sha256=<64 digits>"
        )
    return Location(repository, "http", prefix=folder, sha256=sha256)


def _without_query(address: str) -> str:
    before, _, rest = address.partition("?")
    _, hash_sign, fragment = rest.partition("#")
    return f"{before}{hash_sign}{fragment}"
