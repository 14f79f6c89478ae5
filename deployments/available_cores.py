"""How many cores this process may use: those that it may run on, and as many of them as its container has time of."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

from deployments.control_groups import PROCESS, control_groups


def available_cores(process: Path = PROCESS) -> int:
    """Return the number, 1 at least: of the affinity, and of the CPU quotas of all control groups around this process.

    A quota of 1.5 cores is two, as Kubernetes counts them: less would leave some of it unused.
    """
    allowed = len(os.sched_getaffinity(0))
    quotas = (quota for group in control_groups("cpu", process) for quota in _quota(group))
    return min(allowed, max(1, math.ceil(min(quotas, default=allowed))))


def _quota(group: Path) -> Iterator[float]:
    """Yield how many cores a group may use, if that is limited: `cpu.max` of version 2, or two files of version 1."""
    for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = " ".join((group / name).read_text() for name in files).split()
            if quota != "max" and int(quota) > 0:
                yield int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue  # the other version's, or of a kernel to come
