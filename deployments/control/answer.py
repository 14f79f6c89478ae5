"""Calls of the controller by those that follow it, or tell it what to do."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from deployments.control.directory import Directory
from protocol.errors import Unavailable

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.5
_COMMAND_RETRY_S: Final = 0.2
GIVE_UP_S: Final = 3600.0
"""For how long a command is repeated that no controller answers."""
# The controller answers a follower every 5 s, whether there is news or not.
_ANSWER_TIMEOUT_S: Final = 40.0
# Where a large answer, an object of Ray's, has gone before Serve's callback for it has run, Ray ends the process.
_KEPT_S: Final = 2.0


async def answer(response: Any, timeout_s: float = _ANSWER_TIMEOUT_S) -> Any:
    """Wait for what a `DeploymentResponse` comes to; when nobody waits any more it is cancelled.

    Else the controller, which waits for its last call when it ends, would go on with it.

    Raises:
        ConnectionError: the call was cancelled where it ran, as by a controller that is being stopped.
    """
    try:
        async with asyncio.timeout(timeout_s):
            result = await response
        asyncio.get_running_loop().call_later(_KEPT_S, _let_go, response)
        return result
    except BaseException as error:
        response.cancel()
        if isinstance(error, asyncio.CancelledError) and not is_cancelled():
            raise ConnectionError("the call was cancelled") from None
        raise


def _let_go(response: Any) -> None:
    """Take a response that was kept until now."""


async def until_answered(call: Callable[[], Any]) -> dict[str, Any]:
    """Hand a command to the controller, and again to its successor when it dies before it has answered.

    `call` makes the call, each time under the same id, by which it is done once. Returns what `load` of the controller
    does.

    Raises:
        Unavailable: nobody has answered for an hour.
    """
    gives_up_s = time.monotonic() + GIVE_UP_S
    while True:
        response = call()
        try:
            told: dict[str, Any] = await response
            return told
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled():
                raise
            logger.warning("the repository controller does not answer: %s: %s", type(error).__name__, error)
            if time.monotonic() > gives_up_s:
                raise Unavailable("models cannot be loaded or unloaded at present") from None
        await asyncio.sleep(_COMMAND_RETRY_S)


async def follow(directory: Directory, take_news: Callable[[], Awaitable[None]]) -> None:
    """Take the controller's news for ever; once it has not answered, the directory asks for all anew."""
    while True:
        try:
            await take_news()
        except (Exception, asyncio.CancelledError) as error:
            await pause(error)
            directory.ask_for_all()


async def pause(error: BaseException) -> None:
    """Wait before the controller is asked again, which has failed so; raises where it is this task that is to end.

    A call to a controller that is being stopped may end as cancelled, too.
    """
    if is_cancelled():
        raise error
    logger.warning("the repository controller does not answer: %s: %s", type(error).__name__, error)
    await asyncio.sleep(_RETRY_S)


def is_cancelled() -> bool:
    """Whether it is the present task that was cancelled, where a call has ended as cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
