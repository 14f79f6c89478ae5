"""What `--backend-config` says, in Triton's form: `[<backend>,]<key>=<value>`."""

from collections.abc import Iterable
from typing import Final

_MAX_BATCH_SIZE: Final = "default-max-batch-size"
_INT32_DIGITS: Final = 9


def backend_settings(entries: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return backend → key → value; the key "" holds what applies to all backends.

    Raises:
        ValueError: an entry has another form, or a size that cannot be one.
    """
    settings: dict[str, dict[str, str]] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        backend, _, key = name.rpartition(",")
        if not equals or not key:
            raise ValueError(f"'{entry}' is not of the form [<backend>,]<key>=<value>")
        if key == _MAX_BATCH_SIZE and not (value.isascii() and value.isdigit() and len(value) <= _INT32_DIGITS):
            raise ValueError(f"{_MAX_BATCH_SIZE} must be a whole number from 0 on, got: {value}")
        settings.setdefault(backend, {})[key] = value
    return settings
