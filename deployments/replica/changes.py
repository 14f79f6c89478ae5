"""The loads and unloads that are under way in a host."""

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any
from weakref import WeakValueDictionary

Key = tuple[str, int]


class Changes:
    """Those of different versions go on beside each other, those of one version (`turn`) one after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turns: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._latest: dict[Key, tuple[str, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, key: Key, digest: str, change: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin to load what has this digest as a version, or (digest "") to unload the version."""
        task = self._loop.create_task(change)
        self._tasks.add(task)
        self._latest[key] = digest, task
        task.add_done_callback(lambda _: self._end(key, task))
        return task

    def _end(self, key: Key, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._latest[key][1] is task:
            del self._latest[key]

    def turn(self, key: Key) -> asyncio.Lock:
        """Return the lock that a change of a version holds."""
        lock = self._turns.get(key)
        if lock is None:
            lock = self._turns[key] = asyncio.Lock()
        return lock

    def digest(self, key: Key) -> str:
        """Return the digest of what was begun last to be loaded as a version, "" when nothing is under way."""
        return self._latest[key][0] if key in self._latest else ""

    def loads(self, names: Collection[str]) -> dict[Key, asyncio.Task[None]]:
        """Return the loads under way of models with these names."""
        return {key: task for key, (digest, task) in self._latest.items() if digest and key[0] in names}

    async def ended(self) -> None:
        """Wait until nothing is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)
