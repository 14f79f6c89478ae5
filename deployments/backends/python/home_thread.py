"""The one thread on which a model runs that has no process of its own."""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import TypeVar

_T = TypeVar("_T")
_Outcome = tuple[_T | None, BaseException | None]


class HomeThread:
    """Runs what it is given, one after the other, on one thread, as the main thread of a process of Triton's does.

    What a model and its libraries bind to a thread when it loads (a connection of sqlite3, PyTorch's grad mode, a CUDA
    context) is there in each batch, and so is an event loop that does not run, which `asyncio.get_event_loop` finds.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], _T]) -> _T:
        """Return what the function returns on the thread, or raise what it raises; blocks."""
        if current_thread() is self._thread:
            return function()
        outcomes: SimpleQueue[_Outcome[_T]] = SimpleQueue()

        def run() -> None:
            try:
                outcomes.put((function(), None))
            except BaseException as error:  # whatever a model raises is its own
                outcomes.put((None, error))

        self._calls.put(run)
        returned, error = outcomes.get()
        if error is None:
            return returned  # type: ignore[return-value]
        try:
            raise error
        finally:
            del error  # whose traceback holds this frame

    def end(self) -> None:
        """Let the thread end once it has done what it has been given."""
        self._calls.put(None)

    def _work(self) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        while (call := self._calls.get()) is not None:
            call()
            del call  # while it waits for the next, it keeps nobody's memory
        if not loop.is_running():
            loop.close()
