"""Calls of the controller that may wait for long, and must not once it is to end."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from deployments.control.answer import is_cancelled
from protocol.errors import Unavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_S: Final = 1.0


class OpenCalls:
    """Serve lets a replica end in order only once no call of it is open, and kills it after some seconds.

    A controller that is killed so, as a model takes long to load, would leave behind what it has deployed.

    Args:
        is_ending: says whether the controller is to end; blocks.
    """

    def __init__(self, is_ending: Callable[[], bool], look_s: float = _LOOK_S) -> None:
        self._is_ending = is_ending
        self._look_s = look_s
        self._calls: set[asyncio.Task[Any]] = set()
        self._some = asyncio.Event()

    async def wait(self, call: Coroutine[Any, Any, T]) -> T:
        """Return what a call comes to.

        Raises:
            Unavailable: the controller is to end first.
        """
        doing = asyncio.create_task(call)
        self._calls.add(doing)
        self._some.set()
        try:
            return await doing
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise Unavailable("the server is stopping") from None
        finally:
            self._calls.discard(doing)

    async def run(self) -> None:
        """Look for ever whether the controller is to end; costs nothing while no call is open."""
        while True:
            await asyncio.sleep(self._look_s)
            if not self._calls:
                self._some.clear()
                await self._some.wait()
                continue
            try:
                if await asyncio.to_thread(self._is_ending):
                    for call in self._calls:
                        call.cancel()
            except Exception as error:  # Serve's controller may be away
                logger.debug("whether the controller is to end is not known: %s", error)
