"""A queue of work that nothing is done of yet."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from deployments.lane.work_queue import WorkQueue


@contextmanager
def busy_queue(thread_count: int = 1) -> Iterator[tuple[WorkQueue, threading.Event]]:
    """A queue of the running loop, whose threads all wait for the event."""
    go_on = threading.Event()
    queue = WorkQueue(asyncio.get_running_loop(), "test", thread_count)
    for _ in range(thread_count):
        queue.submit(lambda: go_on.wait(30), lambda result, error: None)
    try:
        yield queue, go_on
    finally:
        go_on.set()
        queue.close()
