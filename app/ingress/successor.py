"""The end of an ingress that `serve deploy` replaces: not before another one of its node listens.

Serve ends one old ingress for each new one that runs, on whichever node that is.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from app.ingress.listening_mark import ListeningMark
from deployments.serve_internals import DEPLOYING

_POLL_S: Final = 0.1


async def until_succeeded(mark: ListeningMark, status: Callable[[], str], timeout_s: float) -> None:
    """Return when another ingress of the node listens, or none is about to.

    Args:
        status: returns the ApplicationStatus of the application; blocks.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while not mark.another_listens() and await asyncio.to_thread(status) == DEPLOYING:
                await asyncio.sleep(_POLL_S)
    except Exception:  # the time is over, or Serve's controller does not answer
        return
