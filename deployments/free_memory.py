"""How much memory there is for this process: what the machine has free, and what is left of its container's limit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from deployments.control_groups import PROCESS, control_groups

_V2, _V1 = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
_CACHES: Final = {
    _V2: ("active_file", "inactive_file"),
    _V1: ("total_active_file", "total_inactive_file"),
}
"""By the files of limit and usage: what a group has of files in memory, which the kernel drops where it is short."""


def free_memory_bytes(process: Path = PROCESS) -> int:
    """Return the least of the machine and of all control groups around this process."""
    left = [left for group in control_groups("memory", process) for left in _left_bytes(group)]
    return max(0, min([int(psutil.virtual_memory().available), *left]))


def _left_bytes(group: Path) -> Iterator[int]:
    """Yield what a group may take more than it has, if that is limited: by files of version 2, or of version 1."""
    for files, caches in _CACHES.items():
        try:
            limit, usage = ((group / name).read_text().strip() for name in files)
            if limit != "max":
                stat = [line.split() for line in (group / "memory.stat").read_text().splitlines()]
                dropped = sum(int(value) for name, value in stat if name in caches)
                yield int(limit) - int(usage) + dropped
        except (OSError, ValueError):
            continue  # the other version's, or of a kernel to come
