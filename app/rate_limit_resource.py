"""What `--rate-limit-resource` says, in Triton's form: `<name>:<count>[:<device>]`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it brings protobuf along
    from deployments.core.rate_limit import Given


def rate_limit_resources(entries: Iterable[str]) -> "Given":
    """Return names, devices (None: every one) and counts.

    Raises:
        ValueError: an entry is not of that form.
    """
    given = []
    for entry in entries:
        name, *numbers = entry.split(":")
        if not name or not 1 <= len(numbers) <= 2 or not all(n.isascii() and n.isdecimal() for n in numbers):
            raise ValueError(f"'{entry}' is not of the form <name>:<count>[:<device>]")
        given.append((name, int(numbers[1]) if len(numbers) == 2 else None, int(numbers[0])))
    return tuple(given)
