"""The number of a model version, as clients write it in a path or a field."""

import re
from typing import Final

from protocol.errors import InvalidArgument

_MAX_VERSION: Final = 2**63 - 1
MAX_DIGITS: Final = 64
"""Those of a longer number say nothing more: no version has so many."""
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


def parse_version(version: str) -> int:
    """Return the number of a model version, -1 for none.

    Raises:
        InvalidArgument: with Triton's text.
    """
    if not version:
        return -1
    if not _INTEGER.fullmatch(version):
        raise _no_version(version)
    number = checked_version(int(version))
    if number < 0:
        raise InvalidArgument(f"invalid model version specified '{version}' , version should be an integral value > 0")
    return number


def checked_version(number: int) -> int:
    """Return a number that a version may have, or a negative one.

    Raises:
        InvalidArgument: it is too large, with Triton's text.
    """
    if abs(number) > _MAX_VERSION:
        raise _no_version(str(number))
    return number


def _no_version(version: str) -> InvalidArgument:
    return InvalidArgument(
        f"failed to get model version from specified version string '{version[:MAX_DIGITS]}' (details: stol), "
        "version should be an integral value > 0"
    )
