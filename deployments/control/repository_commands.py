"""Repositories that are registered and unregistered on a client's wish: what becomes of the desired state.

Source: core's RegisterModelRepository and UnregisterModelRepository, whose texts these are; there only programs that
Triton is a part of can ask for it.
"""

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from deployments.control.controller_options import ControllerOptions
from deployments.control.current_state import CurrentState
from deployments.control.desired_state import DesiredState, with_repositories
from protocol.errors import AlreadyExists, InvalidArgument, Unsupported
from repository_loader.repository import RepositoryError, find_models, normalised

logger = logging.getLogger(__name__)

MAX_REPOSITORIES: Final = 256
_MAX_READS: Final = 4


class RepositoryCommands:
    """Does them one after the other; one that comes again under the same id is not done twice."""

    def __init__(self, options: ControllerOptions, state: CurrentState) -> None:
        self._options = options
        self._state = state
        # A file server that is away is waited for; the loop's threads are for what takes moments.
        self._readers = ThreadPoolExecutor(_MAX_READS, "read-to-register")

    async def register(self, command: str, repository: str, names: Mapping[str, str]) -> None:
        """Have the models of a repository be there to be loaded; `names` are others for those of some folders.

        Raises:
            Unsupported: clients load no models in this mode.
            InvalidArgument: there is no such repository.
            AlreadyExists: it is registered, or one of the names stands for another folder.
        """
        self._check_mode("registration")
        path = normalised(repository)
        if not await asyncio.get_running_loop().run_in_executor(self._readers, self._is_repository, path):
            raise InvalidArgument(f"failed to register '{repository}', repository not found")
        async with self._state.lock:
            desired = await self._state.until(lambda desired: desired)
            if command not in desired.outcomes:
                await self._state.change(registered(desired, path, names, command))
        logger.info("Model repository registered: %s", path)

    async def unregister(self, command: str, repository: str) -> None:
        """Have a repository's models be there no more; what is loaded of them stays loaded.

        Raises:
            Unsupported: clients load no models in this mode.
            InvalidArgument: it is not registered.
        """
        self._check_mode("unregistration")
        path = normalised(repository)
        async with self._state.lock:
            desired = await self._state.until(lambda desired: desired)
            if command not in desired.outcomes:
                await self._state.change(unregistered(desired, path, command))
        logger.info("Model repository unregistered: %s", path)

    async def known(self) -> dict[str, dict[str, str]]:
        """Return the repositories, each with the names that were given to models by their folders."""
        desired = await self._state.until(lambda desired: desired)
        return {path: dict(names) for path, names in desired.repositories.items()}

    def _check_mode(self, what: str) -> None:
        if self._options.control_mode != "explicit":
            raise Unsupported(f"repository {what} is not allowed if model control mode is not EXPLICIT")

    def _is_repository(self, path: str) -> bool:
        try:
            find_models([path], replace(self._options.loader, names={}))
        except (RepositoryError, ValueError) as error:
            logger.warning("%s", error)
            return False
        return True


def registered(desired: DesiredState, path: str, names: Mapping[str, str], command: str = "") -> DesiredState:
    """Return the desired state with one more repository; see `RepositoryCommands.register`."""
    if path in desired.repositories:
        raise AlreadyExists(f"model repository '{path}' has already been registered")
    if len(desired.repositories) >= MAX_REPOSITORIES:
        raise InvalidArgument(f"failed to register '{path}', {MAX_REPOSITORIES} repositories are registered already")
    taken = {name for others in desired.repositories.values() for name in others.values()}
    given: set[str] = set()
    for name in names.values():
        if name in taken | given:
            raise AlreadyExists(f"failed to register '{name}', there is a conflicting mapping for '{name}'")
        given.add(name)
    return with_repositories(desired, {**desired.repositories, path: dict(names)}, command)


def unregistered(desired: DesiredState, path: str, command: str = "") -> DesiredState:
    """Return the desired state without a repository; see `RepositoryCommands.unregister`."""
    if path not in desired.repositories:
        raise InvalidArgument(f"failed to unregister '{path}', repository not found")
    rest = {other: names for other, names in desired.repositories.items() if other != path}
    return with_repositories(desired, rest, command)
