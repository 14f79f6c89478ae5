"""`--http-restricted-api`: categories of routes that are answered only to requests with a certain header."""

import hmac
from collections.abc import Iterable

from app.http.routes import CATEGORIES
from protocol.errors import Restricted


def parse_restrictions(entries: Iterable[str], categories: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the header, in lower case, and the value that each restricted category asks for.

    Raises:
        ValueError: an entry is malformed, a category is unknown or in two entries.
    """
    known = tuple(categories)
    required: dict[str, tuple[str, str]] = {}
    for entry in entries:
        names, colon, rule = entry.partition(":")
        header, equals, value = rule.partition("=")
        if not colon or not equals or not header.strip() or not value:
            raise ValueError("expected <category>[,<category>...]:<header>=<value>")
        for category in (part.strip() for part in names.split(",")):
            if category not in known:
                raise ValueError(f"unknown restricted api '{category}'; there are {', '.join(known)}")
            if category in required:
                raise ValueError(f"restricted api '{category}' can not be specified in multiple config groups")
            required[category] = header.strip().lower(), value
    return required


class RestrictedApis:
    """The header, and its value, that each restricted category asks for.

    Args:
        entries: as `--http-restricted-api` gives them, `<category>[,<category>…]:<header>=<value>`.

    Raises:
        ValueError: as `parse_restrictions`.
    """

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._required = {
            category: (header.encode(), value.encode())
            for category, (header, value) in parse_restrictions(entries, CATEGORIES).items()
        }

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
            raise Restricted(f"This API is restricted, expecting header '{header.decode('latin-1')}'")
