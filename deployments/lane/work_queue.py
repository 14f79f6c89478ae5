"""Work for a few threads of its own; what still waits for one can be withdrawn, and lets go of all that it holds."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Done = Callable[[Any, BaseException | None], None]
"""Gets what came of the work, or why nothing did."""


class Work:
    """Something that is to be done."""

    __slots__ = ("_queue", "done")

    def __init__(self, queue: "WorkQueue", done: Done) -> None:
        self._queue = queue
        self.done: Done | None = done

    def withdraw(self) -> None:
        """Do not begin it, and tell nobody what comes of it."""
        self.done = None
        self._queue.forget(self)


class WorkQueue:
    """First come, first served. What it is told, and what it tells, is on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, thread_count: int) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(thread_count, name)
        self._free_count = thread_count
        self._waiting: dict[Work, Callable[[], Any]] = {}

    def __len__(self) -> int:
        """Return how much waits for a thread."""
        return len(self._waiting)

    def submit(self, run: Callable[[], Any], done: Done) -> Work:
        """Have `run` called by a thread, then `done`."""
        work = Work(self, done)
        if self._free_count:
            self._begin(work, run)
        else:
            self._waiting[work] = run
        return work

    def forget(self, work: Work) -> None:
        """Let go of what waits, if it still does."""
        self._waiting.pop(work, None)

    def _begin(self, work: Work, run: Callable[[], Any]) -> None:
        self._free_count -= 1
        try:
            future = self._loop.run_in_executor(self._threads, run)
        except RuntimeError as error:  # no thread can be started
            future = self._loop.create_future()
            future.set_exception(error)
        future.add_done_callback(lambda future: self._ended(work, future))

    def _ended(self, work: Work, future: "asyncio.Future[Any]") -> None:
        self._free_count += 1
        if self._waiting:
            following = next(iter(self._waiting))
            self._begin(following, self._waiting.pop(following))
        if future.cancelled():
            return
        error = future.exception()
        done, work.done = work.done, None  # it may know the work, and has who waits for it
        if done is not None:
            done(None if error is not None else future.result(), error)

    def close(self) -> None:
        """Begin nothing more."""
        self._waiting.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)
