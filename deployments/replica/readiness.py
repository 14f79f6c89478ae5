"""Asks models that have an `is_ready` of their own whether they are, now and then, where it holds nobody up."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from deployments.log.line_format import about
from deployments.replica.served_model import ServedModel

logger = logging.getLogger(__name__)

ASK_S: Final = 1.0
"""How long after an answer a model is asked again."""


class Asked(Protocol):
    """An instance whose model has an opinion."""

    def is_ready(self) -> bool:
        """Ask the model; blocks, for seconds at most.

        Raises:
            RuntimeError: a thread cannot be started.
        """
        ...


class Readiness:
    """Keeps `says_ready` of served models, calls `changed` with each whose answer has changed; on the loop's thread.

    A model is ready when all its instances say so. Each has a thread of its own to be asked on; while the system has no
    more threads, what was said last holds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, changed: Callable[[ServedModel], None]) -> None:
        self._loop = loop
        self._changed = changed
        self._tasks: dict[ServedModel, asyncio.Task[None]] = {}

    def follow(self, served: ServedModel) -> None:
        """Ask a model for as long as it is served, if it has an opinion."""
        pool = served.model.pool
        instances = () if pool is None else pool.instances
        asked: list[Asked] = [each for each in instances if getattr(each, "has_own_readiness", False)]  # type: ignore[misc]
        if asked:
            self._tasks[served] = self._loop.create_task(self._ask(served, asked), name=f"{served.model_name} ready?")

    def forget(self, served: ServedModel) -> None:
        """Ask a model no longer."""
        task = self._tasks.pop(served, None)
        if task is not None:
            task.cancel()

    async def _ask(self, served: ServedModel, asked: Sequence[Asked]) -> None:
        with_threads = ThreadPoolExecutor(len(asked), f"{served.model_name}-ready")
        try:
            while True:
                try:
                    calls = [self._loop.run_in_executor(with_threads, each.is_ready) for each in asked]
                    self._take(served, all(await asyncio.gather(*calls)))
                except RuntimeError as error:
                    key = served.model_name, served.version
                    why = "'%s' version %d is not asked whether it is ready: %s"
                    logger.warning(why, *key, error, extra=about(*key))
                await asyncio.sleep(ASK_S)
        finally:
            with_threads.shutdown(wait=False)

    def _take(self, served: ServedModel, says_ready: bool) -> None:
        if says_ready != served.says_ready:
            served.says_ready = says_ready
            self._changed(served)
