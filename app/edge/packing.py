"""Where compressed requests are unpacked, and answers packed."""

import asyncio
from typing import Final

from deployments.lane.work_queue import WorkQueue

_THREADS: Final = 4
"""Each may take twice the largest body of memory; as many as an ingress has cores where nobody says how many ingresses
there are."""


def packing_queue(loop: asyncio.AbstractEventLoop) -> WorkQueue:
    """Return the queue of a process, or of what stands for one."""
    return WorkQueue(loop, "packing", _THREADS)
