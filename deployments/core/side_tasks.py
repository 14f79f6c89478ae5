"""What a process does beside its requests for as long as it lives."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class SideTasks:
    """Tasks that nobody waits for; one that ends by an exception is logged with it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Begin one; `name` says in the log what it is."""
        self._tasks.add(task := self._loop.create_task(work, name=name))
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("'%s' has ended, and is not taken up again", task.get_name(), exc_info=error)

    def cancel(self) -> None:
        """End all of them."""
        for task in self._tasks:
            task.cancel()
