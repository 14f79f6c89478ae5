"""The loads and unloads that are under way in a host."""

import asyncio
import contextlib
from collections.abc import Collection, Coroutine, Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

Key = tuple[str, int]


class Changes:
    """Those of different versions go on beside each other, those of one version (`turn`) one after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turns: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._latest: dict[Key, tuple[str, asyncio.Task[None]]] = {}
        self._tasks: dict[asyncio.Task[None], Collection[str]] = {}
        self._finishing: set[asyncio.Task[None]] = set()

    def begin(
        self, key: Key, digest: str, change: Coroutine[Any, Any, None], asks: Collection[str] = ()
    ) -> asyncio.Task[None]:
        """Begin to load what has this digest as a version, or (digest "") to unload the version; see `finish`."""
        task = self._start(change, asks) if digest else self.finish(change, asks)
        self._latest[key] = digest, task
        task.add_done_callback(lambda _: self._end(key, task))
        return task

    def finish(self, change: Coroutine[Any, Any, None], asks: Collection[str]) -> asyncio.Task[None]:
        """Have a version answer what it has, for which it may ask other models until the change ends."""
        self._finishing.add(task := self._start(change, asks))
        task.add_done_callback(self._finishing.discard)
        return task

    def _start(self, change: Coroutine[Any, Any, None], asks: Collection[str]) -> asyncio.Task[None]:
        task = self._loop.create_task(change)
        self._tasks[task] = asks
        task.add_done_callback(self._tasks.pop)
        return task

    def _end(self, key: Key, task: asyncio.Task[None]) -> None:
        if key in self._latest and self._latest[key][1] is task:
            del self._latest[key]

    def asking(self, name: str) -> list[asyncio.Task[None]]:
        """Return the changes under way that may ask a model until they end."""
        return [task for task, asks in self._tasks.items() if name in asks]

    def turn(self, key: Key) -> asyncio.Lock:
        """Return the lock that a change of a version holds."""
        lock = self._turns.get(key)
        if lock is None:
            lock = self._turns[key] = asyncio.Lock()
        return lock

    def digest(self, key: Key) -> str:
        """Return the digest of what was begun last to be loaded as a version, "" when nothing is under way."""
        digest, task = self._latest.get(key, ("", None))
        return "" if task is None or task.done() else digest

    def unloads(self, key: Key) -> bool:
        """Whether to unload a version was begun last, and is under way."""
        digest, task = self._latest.get(key, ("", None))
        return not digest and task is not None and not task.done()

    @property
    def answering(self) -> bool:
        """Whether a version that serves no more still has what it has taken."""
        return bool(self._finishing)

    def loads(self, names: Collection[str]) -> dict[Key, asyncio.Task[None]]:
        """Return the loads under way of models with these names."""
        return {key: task for key, (digest, task) in self._latest.items() if digest and key[0] in names}

    async def ended(self, timeout_s: float) -> None:
        """Wait until nothing is under way, but no longer than this."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.wait(self._tasks)


async def wait_for(changes: Collection[asyncio.Task[None]], patience_s: float | None) -> None:
    """Wait until changes have ended; those that take longer than `patience_s` go on, and what one raises is raised."""
    if changes:
        ended, _ = await asyncio.wait(changes, timeout=patience_s)
        for change in ended:
            change.result()


def in_order(asked: Mapping[Key, Collection[str]]) -> Iterator[tuple[Key, Collection[str]]]:
    """Return versions, with the models that each asks, in an order in which they can go: ensembles before their steps.

    Those that have no place in that order are the last.
    """
    left = dict(asked)
    while left:
        names = {name for asks in left.values() for name in asks}
        for key in [key for key in left if key[0] not in names] or [*left]:
            yield key, left.pop(key)
