"""Calls of the controller by those that follow it."""

import asyncio
from typing import Any, Final

# The controller answers a follower every 5 s, whether there is news or not.
_ANSWER_TIMEOUT_S: Final = 40.0


async def answer(response: Any) -> Any:
    """Wait for what a `DeploymentResponse` comes to; when nobody waits any more it is cancelled.

    Else the controller, which waits for its last call when it ends, would go on with it.
    """
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            return await response
    except BaseException:
        response.cancel()
        raise
