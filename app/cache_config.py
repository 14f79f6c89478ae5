"""What `--cache-config` says, in Triton's form: `<cache>,<key>=<value>`."""

from collections.abc import Iterable
from typing import Final

_MIN_BYTES: Final = 1024
_MAX_BYTES: Final = 1 << 62
"""What a file may have, and its index beside it."""


def cache_bytes(entries: Iterable[str]) -> int:
    """Return the size of the response cache, 0 without one.

    Raises:
        ValueError: with Triton's text where it has one.
    """
    names: set[str] = set()
    size_bytes = 0
    for entry in entries:
        name, _, setting = entry.partition(",")
        key, _, value = setting.partition("=")
        names.add(name)
        if len(names) > 1:
            raise ValueError("found multiple cache configurations, but only a single cache is currently supported")
        if name != "local":
            raise ValueError(f"there is no cache '{name}'; the cache 'local' is part of Eagleray")
        if key != "size" or not value.isdecimal():
            raise ValueError(f"'{entry}' is not of the form local,size=<bytes>")
        size_bytes = int(value)
        if size_bytes > _MAX_BYTES:
            raise ValueError(f"'{entry}' is more than {_MAX_BYTES} bytes")
    if 0 < size_bytes < _MIN_BYTES:
        raise ValueError(
            f"a cache of {size_bytes} bytes is too small for any answer; at least {_MIN_BYTES}, or 0 for none"
        )
    return size_bytes
