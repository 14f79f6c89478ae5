"""Poll mode: the repositories are looked at again and again, and what has changed in them is loaded or unloaded.

A change is taken once nothing more has changed in the model's folder for a while: a model that is being copied is not
loaded half. That is told by the watch's own clock, as the times of files may be those of another machine.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from deployments.control.controller_options import ControllerOptions
from deployments.control.current_state import CurrentState
from deployments.control.desired_state import DesiredState, Origin, displaced, loaded, replaced, touched, unloaded
from deployments.control.former_places import Version
from deployments.control.model_commands import MAX_READS, read_models
from deployments.control.model_table import ModelTable
from deployments.control.waiting_models import read_waiting, with_postponed
from repository_loader.findings import Finding
from repository_loader.fingerprint import take_fingerprint
from repository_loader.repository import fetch_models, normalised
from repository_loader.storage.location import is_remote

logger = logging.getLogger(__name__)

_GONE: Final = "gone"
_LOOKS: Final = 4
"""How often a folder that has changed is looked at in the time that it must be quiet for."""
_PATIENCE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 600.0
"""After which a model that cannot be loaded is tried again at the latest."""


class Changes:
    """Which models differ from what runs of them, and for how long they have looked as they do; `look` blocks.

    A model that was tried and still differs is tried again after a pause, twice as long each time, or once it changes;
    so is one that could not be loaded at the start.
    """

    def __init__(self, options: ControllerOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._since: dict[str, tuple[str, float]] = {}
        self._tried: dict[str, tuple[str, float, float]] = {}
        """How a model looked that was tried, for how long it is not tried again so, and until when."""
        self._said: set[str] = set()
        self.names: Collection[str] | None = None
        """Those of all models in the repositories, as of the last look that could read each of them."""

    @property
    def pending(self) -> bool:
        """Whether something has changed a moment ago."""
        return bool(self._since)

    def look(
        self, desired: DesiredState, failed: Collection[Version] = (), under_way: Collection[str] = ()
    ) -> list[str]:
        """Return the models that have changed and are quiet; none is gone while a repository cannot be read.

        `failed` are the versions that could not be loaded where they have their places, and models `under_way` those
        that are read just now, which can have changed only once they have been. With namespaces what a model is
        called depends on all repositories, and nothing has changed before each can be read.
        """
        unreadable: dict[str, str] = {}
        findings: list[Finding] = []
        folders = fetch_models(self._options.repositories, self._options.loader, unreadable, findings)
        self._say(findings)
        for reason in unreadable.values():
            logger.error("%s; what runs is kept", reason)
        if unreadable and self._options.loader.namespacing:
            return []
        if not unreadable:
            self.names = frozenset(folders)
        models = desired.snapshot.models
        kept = {name for name, model in models.items() if any(_is_in(model.model_path, path) for path in unreadable)}
        found = {name: _looks(paths) for name, paths in folders.items() if name not in kept}
        if not unreadable:
            needed = frozenset[str]().union(*(group.steps for group in desired.postponed))
            found |= {name: _GONE for name in (models.keys() | desired.failed) - needed if name not in folders}
        self._tried = {name: tried for name, tried in self._tried.items() if found.get(name) == tried[0]}
        now_s = self._clock()
        changed = {
            name: looks
            for name, looks in self._differing(desired, found, failed).items()
            if name not in under_way and (name not in self._tried or now_s >= self._tried[name][2])
        }
        self._since = {
            name: known if (known := self._since.get(name, ("", now_s)))[0] == looks else (looks, now_s)
            for name, looks in changed.items()
        }
        quiet_s = self._options.repository_quiet_s
        return [name for name, (_, since_s) in self._since.items() if now_s - since_s >= quiet_s]

    def _differing(
        self, desired: DesiredState, found: Mapping[str, str], failed: Collection[Version]
    ) -> dict[str, str]:
        """Return how those models look that do not run as they look, because they have changed or have failed."""
        models = desired.snapshot.models
        # What could not run as it was deployed waits, unless its files have changed since, be it to what runs.
        models = {**models, **{name: model for group in desired.postponed for name, model in group.models.items()}}
        differing = {
            name: looks
            for name, looks in found.items()
            if (model := models.get(name)) is None or model.fingerprint != looks
        }
        for name in (desired.failed & models.keys() & found.keys()) - differing.keys():
            differing[name] = found[name]  # what had failed beside what runs is there no more
        failures = {name for name, _ in failed} | {name for name, model in models.items() if model.failure}
        for name in (failures & found.keys()) - differing.keys():
            differing[name] = found[name]
            if name not in self._tried:  # it was read as it looks
                self._note_try(name, found[name])
        return differing

    def _say(self, findings: list[Finding]) -> None:
        """Log what stores have not given, once for as long as it is so."""
        stores = {normalised(path) for path in self._options.repositories if is_remote(path)}
        said = {str(finding) for finding in findings if finding.path in stores}
        for finding in sorted(said - self._said):
            logger.warning("%s", finding)
        self._said = said

    def is_gone(self, name: str) -> bool:
        """Whether a model that has changed is not there any more."""
        return self._since.get(name, ("", 0.0))[0] == _GONE

    def looks_of(self, name: str) -> str:
        """Return how a model looks that `look` has returned."""
        return self._since[name][0]

    def tried(self, name: str, looks: str) -> None:
        """Note that a model that `look` has returned was loaded as it looked then, whatever comes of it."""
        self._note_try(name, looks)

    def _note_try(self, name: str, looks: str) -> None:
        pause_s = self._tried[name][1] if name in self._tried else self._options.repository_poll_s
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._tried[name] = looks, pause_s, self._clock() + pause_s

    def taken(self, names: list[str]) -> None:
        """Start anew with these."""
        for name in names:
            self._since.pop(name, None)


class RepositoryWatch:
    """Looks every `repository_poll_s`, and more often while something changes.

    Changes follow one after the other, but one that takes longer than `patience_s` to be read holds up no other.
    """

    def __init__(
        self, options: ControllerOptions, state: CurrentState, table: ModelTable, patience_s: float = _PATIENCE_S
    ) -> None:
        self._options = options
        self._state = state
        self._table = table
        self._patience_s = patience_s
        self._changes = Changes(options)
        self._under_way: dict[str, tuple[str, asyncio.Task[bool]]] = {}
        """How a model looked whose change is being followed."""
        # A model's own code may take minutes to say what it is; the loop's threads are for what takes moments.
        self._readers = ThreadPoolExecutor(MAX_READS, "read-for-poll")

    async def run(self) -> None:
        """Watch for ever."""
        try:
            await self._run()
        finally:
            for _, task in self._under_way.values():
                task.cancel()

    async def _run(self) -> None:
        while True:
            pending_s = self._options.repository_quiet_s / _LOOKS
            poll_s = self._options.repository_poll_s
            await asyncio.sleep(min(poll_s, pending_s) if self._changes.pending else poll_s)
            try:
                await self._look()
            except Exception:
                logger.exception("the repositories are looked at again in %g s", poll_s)

    async def _look(self) -> None:
        self._note_ends()
        desired = await self._state.until(lambda desired: desired)
        under_way = frozenset(self._under_way)
        names = await asyncio.to_thread(self._changes.look, desired, self._table.failed, under_way)
        if self._changes.names is not None:
            self._table.know(self._changes.names, all_repositories=True)
        for name in names:
            follow = self._unload(name) if self._changes.is_gone(name) else self._load(name)
            self._under_way[name] = self._changes.looks_of(name), asyncio.create_task(follow)
            await asyncio.wait((self._under_way[name][1],), timeout=self._patience_s)
        self._note_ends()
        self._changes.taken(names)

    def _note_ends(self) -> None:
        """Note what has come of the changes that were under way; not while `Changes` looks."""
        for name, (looks, task) in tuple(self._under_way.items()):
            if task.done():
                del self._under_way[name]
                if error := task.exception():
                    logger.error("'%s' stays as it is, and is looked at again", name, exc_info=error)
                elif task.result():
                    self._changes.tried(name, looks)

    async def _load(self, name: str) -> bool:
        """Load a model; returns False when it cannot be tried just now."""
        desired = await self._state.until(lambda desired: desired)
        group = next((group.models.keys() for group in desired.postponed if name in group.models), None)
        if group is not None:
            return await self._load_postponed(desired, group)
        loop = asyncio.get_running_loop()
        read = await loop.run_in_executor(self._readers, read_models, self._options, desired, name, None)
        async with self._state.lock:
            before, desired = desired, await self._state.until(lambda desired: desired)
            names = touched(self._options, desired, read)
            if name not in read.models or not names.isdisjoint(desired.on_trial) or replaced(before, desired, names):
                return False  # the next look finds it again
            origins = {name: Origin()}
            failed = self._table.failed
            changed = await asyncio.to_thread(loaded, self._options, desired, read, origins, failed=failed)
            reason = displaced(desired, changed)
            if reason:
                logger.error("'%s' serves on as it is: %s", name, reason)
            else:
                await self._state.change(changed)
            return True

    async def _load_postponed(self, desired: DesiredState, names: Collection[str]) -> bool:
        """Load what was postponed together, if all of it can be; returns as `_load`."""
        asked = partial(read_waiting, self._options, desired, only=names)
        read = await asyncio.get_running_loop().run_in_executor(self._readers, asked)
        async with self._state.lock:
            desired = await self._state.until(lambda desired: desired)
            if not desired.on_trial.keys().isdisjoint(names):
                return False
            changed = await asyncio.to_thread(with_postponed, self._options, desired, read)
            if changed != desired:
                await self._state.change(changed)
            return True

    async def _unload(self, name: str) -> bool:
        """Unload a model; returns False, as that is no try to load it."""
        async with self._state.lock:
            desired = await self._state.until(lambda desired: desired)
            if name not in desired.on_trial:
                await self._state.change(unloaded(self._options, desired, [name]))
        return False


def _is_in(path: str, repository: str) -> bool:
    return path.startswith(os.path.join(repository, ""))


def _looks(paths: list[str]) -> str:
    """Return what changes with the files of a model; one in two repositories is read in neither."""
    return take_fingerprint(paths[0]).whole if len(paths) == 1 else ""
