"""A look at something that may take for ever to answer, as a file server that is away, for all who ask for it."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any


class SharedLook:
    """One look at a time; whoever asks during one shares the next, which sees all that was there when it was asked for.

    Args:
        look: is done to its end, whether anybody waits for it or not.
        patience_s: how long a caller waits.
    """

    def __init__(self, look: Callable[[], Coroutine[Any, Any, None]], patience_s: float) -> None:
        self._look = look
        self._patience_s = patience_s
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None

    async def take(self) -> None:
        """Return after a look that began now or later, or once patience is at its end."""
        if self._next is None:
            self._next = asyncio.create_task(self._look_in_turn())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await asyncio.shield(self._next)

    async def _look_in_turn(self) -> None:
        async with self._turn:
            self._next = None
            await self._look()
