"""The event loop of a model with `async def execute`, in a thread of its own."""

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final

_LOG = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 5.0


class ModelLoop:
    """Runs a model's coroutines.

    The loop turns between batches too, so that tasks which the model started go on, as they do in Triton.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"{name}-loop", daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> "Future[Any]":
        """Start a coroutine and return its future."""
        return asyncio.run_coroutine_threadsafe(_guarded(coroutine), self._loop)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Cancel what still runs, stop the loop and wait for its thread.

        A thread whose tasks do not end is left to itself after `timeout_s`, and logged.
        """
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _LOG.error("the event loop of %s still runs after %g s and is abandoned", self._name, timeout_s)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._closing:
                try:
                    self._loop.run_forever()
                except BaseException:  # SystemExit or KeyboardInterrupt of a task that the model started
                    _LOG.exception("a task of %s failed", self._name)
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


async def _guarded(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:  # it would end the loop, and nobody would get an answer
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
