"""Restricted APIs, by `--http-restricted-api` and `--grpc-restricted-protocol`: categories that ask for a header."""

import hmac
from collections.abc import Iterable
from typing import Final, Self

from protocol.errors import Restricted

HEALTH: Final = "health"
METADATA: Final = "metadata"
INFERENCE: Final = "inference"
SHARED_MEMORY: Final = "shared-memory"
MODEL_CONFIG: Final = "model-config"
MODEL_REPOSITORY: Final = "model-repository"
STATISTICS: Final = "statistics"
TRACE: Final = "trace"
LOGGING: Final = "logging"
PUBLIC: Final = "public"
"""Of the console's page and its files, which tell nothing: everybody may read them. None of `CATEGORIES`."""

CATEGORIES: Final = (
    HEALTH,
    METADATA,
    INFERENCE,
    SHARED_MEMORY,
    MODEL_CONFIG,
    MODEL_REPOSITORY,
    STATISTICS,
    TRACE,
    LOGGING,
)


class RestrictedApis:
    """The header, and its value, that each restricted category asks for.

    Args:
        entries: as the flags give them, `<category>[,<category>…]:<header>=<value>`.
        prefix: of the names of all headers.
        noun: what a refused client is told that it cannot use.

    Raises:
        ValueError: an entry is malformed, a category is unknown or in two entries.
    """

    def __init__(self, entries: Iterable[str] = (), prefix: str = "", noun: str = "API") -> None:
        self._noun = noun
        self._required: dict[str, tuple[bytes, bytes]] = {}
        for entry in entries:
            names, colon, rule = entry.partition(":")
            header, equals, value = rule.partition("=")
            if not colon or not equals or not header.strip() or not value:
                raise ValueError("expected <category>[,<category>...]:<header>=<value>")
            for category in (part.strip() for part in names.split(",")):
                if category not in CATEGORIES:
                    raise ValueError(f"unknown restricted api '{category}'; there are {', '.join(CATEGORIES)}")
                if category in self._required:
                    raise ValueError(f"restricted api '{category}' can not be specified in multiple config groups")
                self._required[category] = (prefix + header.strip().lower()).encode(), value.encode()

    @classmethod
    def of_grpc(cls, entries: Iterable[str]) -> Self:
        """Return those of gRPC, whose headers are metadata that begin with `triton-grpc-protocol-`; raises as above."""
        return cls(entries, "triton-grpc-protocol-", "protocol")

    def __bool__(self) -> bool:
        return bool(self._required)

    def is_read(self, name: bytes) -> bool:
        """Whether a header of this name, in lower case, opens anything."""
        return any(name == header for header, _ in self._required.values())

    def check(self, category: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise `Restricted` unless the headers (names in lower case) hold what the category asks for.

        A request that gives the header more than once is refused. Values are compared in constant time.
        """
        required = self._required.get(category)
        if required is None:
            return
        header, value = required
        given = [found for name, found in headers if name == header]
        if len(given) != 1 or not hmac.compare_digest(given[0], value):
            raise Restricted(f"This {self._noun} is restricted, expecting header '{header.decode('latin-1')}'")
