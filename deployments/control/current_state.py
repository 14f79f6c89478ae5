"""The desired state that holds now: the one place where it changes."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from deployments.control.desired_state import DesiredState
from deployments.control.state_store import StateStore

T = TypeVar("T")


class CurrentState:
    """Whoever changes the desired state holds `lock` from looking at it to `change`; all on the loop's thread.

    A change holds once it is stored: whoever comes after a controller that died goes on from there.
    """

    def __init__(self, store: StateStore, adopt: Callable[[DesiredState], None]) -> None:
        self.lock = asyncio.Lock()
        self.desired: DesiredState | None = None
        self.inherited = False
        """Whether it began as the state of a former controller."""
        self._store = store
        self._adopt = adopt
        self._changed = asyncio.Event()

    async def restore(self) -> DesiredState | None:
        """Take the state that a former controller has left, and return it; None when there is none."""
        stored = await asyncio.to_thread(self._store.load)
        if stored is not None:
            self.inherited = True
            self._take(stored)
        return stored

    async def change(self, desired: DesiredState) -> None:
        """Store a state and act on it from now on; who is cancelled meanwhile hears of it when both are done."""
        storing = asyncio.create_task(asyncio.to_thread(self._store.save, desired))
        cancelled: asyncio.CancelledError | None = None
        while not storing.done():
            try:
                await asyncio.wait((storing,))
            except asyncio.CancelledError as error:
                cancelled = error
        storing.result()
        self._take(desired)
        if cancelled is not None:
            raise cancelled

    def _take(self, desired: DesiredState) -> None:
        self.desired = desired
        try:
            self._adopt(desired)
        finally:  # it holds all the same
            self._changed.set()
            self._changed = asyncio.Event()

    async def until(self, condition: Callable[[DesiredState], T | None]) -> T:
        """Wait until the condition returns anything but None, and return that."""
        while self.desired is None or (found := condition(self.desired)) is None:
            await self._changed.wait()
        return found
