"""Calls of a method of every ingress, of the one that calls too."""

import asyncio
import logging
from functools import cache
from typing import Any, Final

from ray import serve
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from deployments.serve_internals import answers_by, handle_of, with_plain_calls

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.05
_FOLLOW_TIMEOUT_S: Final = 2.0


@cache
def all_ingresses() -> DeploymentHandle:
    """Return the handle of the deployment that this ingress is a replica of.

    The first call of a process blocks for as long as Ray's head does not answer; an ingress makes it before it listens.
    """
    context = serve.get_replica_context()
    return with_plain_calls(handle_of(context.deployment, context.app_name))


async def ask_all(ingresses: DeploymentHandle, method: str, *arguments: Any, timeout_s: float) -> list[Any]:
    """Return what the method of every ingress returns or raises.

    An ingress listens before Serve has told it of the replicas of its own deployment: until then it asks again.

    Raises:
        TimeoutError: not all of them have answered by then, or Serve names none.
    """
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                asked = ingresses.broadcast(method, *arguments)
                # Serve's own timeout would leave an exception that nobody retrieves when this one comes first.
                answers: list[Any] = await asked.results_async(return_exceptions=True)
                return answers
            except DeploymentUnavailableError:
                await asyncio.sleep(_RETRY_S)


async def all_have_followed(epoch: str, generation: int) -> bool:
    """Return whether every ingress has said, within 2 s, that it has what the controller told then."""
    try:
        await ask_all(all_ingresses(), "has_followed", epoch, generation, timeout_s=_FOLLOW_TIMEOUT_S)
    except TimeoutError:
        logger.warning("not every ingress has followed in %g s", _FOLLOW_TIMEOUT_S)
        return False
    return True


async def ask_each(ingresses: DeploymentHandle, method: str, *arguments: Any, timeout_s: float) -> list[Any]:
    """Return what the method of every ingress returns or raises, a TimeoutError for one that has not answered by then.

    Raises:
        TimeoutError: Serve names none by then.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    while True:
        try:
            return await answers_by(ingresses.broadcast(method, *arguments), until_s)
        except DeploymentUnavailableError:
            if loop.time() > until_s:
                raise TimeoutError from None
            await asyncio.sleep(_RETRY_S)
