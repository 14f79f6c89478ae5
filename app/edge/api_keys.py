"""API keys: who may infer, read and manage.

Of a key only the SHA-256 is kept. A key that `eagleray new-api-key` makes has 256 random bits, so that nobody finds it
by its hash, and neither salt nor a slow hash would add anything.
"""

import hashlib
import hmac
import logging
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from app.edge.scope import SCOPES
from protocol.errors import Forbidden, Unauthenticated

logger = logging.getLogger(__name__)

HEADER: Final = b"authorization"
_BEARER: Final = re.compile(rb"bearer +([\x21-\x7e]{1,512}) *", re.IGNORECASE)
_PREFIX_BYTES: Final = 2
_MAX_KEYS: Final = 10_000
_MAX_FILE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key by its hash; `scopes` is what it is good for."""

    name: str
    scopes: frozenset[str]
    digest: bytes

    @classmethod
    def parse(cls, line: str) -> "ApiKey":
        """Read `<name> <scope>[,<scope>…] <SHA-256 in hexadecimal>`.

        Raises:
            ValueError: it is something else.
        """
        parts = line.split()
        if len(parts) != 3 or not re.fullmatch(r"[0-9a-fA-F]{64}", parts[2]):
            raise ValueError("expected <name> <scope>[,<scope>...] <SHA-256 of the key in hexadecimal>")
        scopes = frozenset(parts[1].split(","))
        if not scopes <= SCOPES:
            raise ValueError(f"unknown scope '{min(scopes - SCOPES)}'; there are {', '.join(sorted(SCOPES))}")
        return cls(parts[0], scopes, bytes.fromhex(parts[2]))


def new_key(name: str, scopes: str) -> tuple[str, str]:
    """Return a new key and the line that stands for it in a file of keys.

    Raises:
        ValueError: the line would not be one.
    """
    if name.startswith("#"):
        raise ValueError("a name cannot begin with '#', as a remark does")
    for what, given in (("a name", name), ("what a key is good for", scopes)):
        if given.split() != [given]:
            raise ValueError(f"{what} is one word without spaces, and not '{given}'")
    key = secrets.token_urlsafe(32)
    line = f"{name} {scopes} {hashlib.sha256(key.encode()).hexdigest()}"
    ApiKey.parse(line)
    return key, line


def add_key(path: str, line: str) -> None:
    """Add a line to a file of keys, which is made if it is not there; raises OSError."""
    with open(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "rb+") as file:
        size = file.seek(0, os.SEEK_END)
        end = os.pread(file.fileno(), 1, size - 1) if size else b"\n"
        file.write(f"{line}\n".encode() if end == b"\n" else f"\n{line}\n".encode())


class ApiKeys:
    """The keys of a server: some for as long as it runs, others in a file that is read again when it changes.

    Without `entries` and a file, everybody may do everything.

    Raises:
        ValueError: an entry, or a line of the file, is malformed.
        OSError: the file cannot be read.
    """

    def __init__(self, entries: Iterable[str] = (), path: str = "") -> None:
        self._path = path
        self._fixed = tuple([ApiKey.parse(entry) for entry in entries])
        self._stamp = self._seen = self._read_stamp()
        self._keys = _index((*self._fixed, *(_read(path) if path else ())))

    def __bool__(self) -> bool:
        """Whether keys are asked for; also when the file holds none, and so nobody is let in."""
        return bool(self._fixed or self._path)

    def reload_if_changed(self) -> bool:
        """Read the file again if it is another one, and was so when this was called last: nobody writes it any more.

        One that is gone or malformed leaves the keys as they are.
        """
        stamp, before = self._read_stamp(), self._seen
        self._seen = stamp
        if stamp == self._stamp or stamp != before:
            return False
        self._stamp = stamp
        try:
            self._keys = _index((*self._fixed, *_read(self._path)))
        except (OSError, ValueError) as error:
            logger.error("the API keys stay as they are, the file %s cannot be used: %s", self._path, error)
            return False
        logger.info("read the API keys again")
        return True

    def check(self, scope: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Let a request through whose headers (names in lower case) hold one key that is good for the scope.

        A few bytes of its hash find the keys that it may be; of these the whole hash is compared in constant time.

        Raises:
            Unauthenticated: there is no key, more than one, or an unknown one.
            Forbidden: the key is good for other things.
        """
        given = [value for name, value in headers if name == HEADER]
        key = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
        if key is None:
            raise Unauthenticated("this server expects an API key in the header 'Authorization: Bearer <key>'")
        digest = hashlib.sha256(key[1]).digest()
        scopes: frozenset[str] = frozenset()
        known = False
        for each in self._keys.get(digest[:_PREFIX_BYTES], ()):
            if hmac.compare_digest(each.digest, digest):
                known, scopes = True, scopes | each.scopes
        if not known:
            raise Unauthenticated("the API key is not known")
        if scope not in scopes:
            raise Forbidden(f"the API key is not good for '{scope}'")

    def _read_stamp(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size


def _index(keys: Iterable[ApiKey]) -> dict[bytes, list[ApiKey]]:
    """Return keys by the first bytes of their hashes, so that a request costs the same however many there are."""
    found: dict[bytes, list[ApiKey]] = {}
    for key in keys:
        found.setdefault(key.digest[:_PREFIX_BYTES], []).append(key)
    return found


def _read(path: str) -> list[ApiKey]:
    with open(path, "rb") as file:
        text = file.read(_MAX_FILE_BYTES + 1).decode()
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if len(text) > _MAX_FILE_BYTES or len(lines) > _MAX_KEYS:
        raise ValueError(f"more than {_MAX_KEYS} keys")
    keys = []
    for number, line in lines:
        try:
            keys.append(ApiKey.parse(line))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return keys
