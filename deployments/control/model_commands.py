"""Loading and unloading on a client's wish: what becomes of the desired state, and what the client is told.

Source: core's model repository manager (LoadUnloadModel); the texts are its own.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from deployments.control.controller_options import ControllerOptions
from deployments.control.current_state import CurrentState
from deployments.control.desired_state import (
    MAX_OUTCOMES,
    DesiredState,
    Origin,
    alike,
    displaced,
    loaded,
    log_findings,
    not_polled,
    overrides,
    renamed,
    replaced,
    touched,
    unloaded,
    with_dependents,
    with_steps,
)
from deployments.control.model_table import ModelTable
from deployments.control.node_completion import NodeCompleter
from deployments.control.refused_loads import refused, serving_on
from deployments.replica.override_files import OverrideFiles
from protocol.errors import Internal, InvalidArgument, ServingError, Unavailable
from repository_loader.config_json import ConfigJsonError, config_from_json
from repository_loader.ensemble_graph import without_step
from repository_loader.namespaces import meant_by, shared_name
from repository_loader.repository import RepositoryError, load_repositories
from repository_loader.snapshot import Override, Snapshot
from repository_loader.storage.location import is_remote

logger = logging.getLogger(__name__)

MAX_COMMANDS: Final = MAX_OUTCOMES
MAX_READS: Final = 16
"""How many commands have models read at the same time."""
_TIMEOUT_S: Final = 3600.0


class ModelCommands:
    """Commands for one model are done one after the other, in the order in which they came; others at the same time.

    A command that was accepted before its controller died may come again, under the same id: it is not done twice.
    """

    def __init__(
        self, options: ControllerOptions, state: CurrentState, files: OverrideFiles, table: ModelTable
    ) -> None:
        self._options = options
        self._state = state
        self._files = files
        self._table = table
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        self._files_lock = asyncio.Lock()
        self._parsing = asyncio.Lock()
        # A model's own code may take minutes to say what it is; the loop's threads are for what takes moments.
        self._readers = ThreadPoolExecutor(MAX_READS, "read-for-command")
        self._kept: set[str] | None = None
        """What was kept when files were forgotten; None since there may be others, as those of a former controller."""

    async def forget_files(self) -> None:
        """Forget the files that clients sent and no model runs with, those of failed loads too.

        None is forgotten while a command is under way, or what it has changed is on trial.
        """
        if self._used_files() in (None, self._kept):
            return
        async with self._files_lock:
            used = self._used_files()
            if used is not None:
                await asyncio.to_thread(self._files.keep, used)
                self._kept = used

    def _used_files(self) -> set[str] | None:
        """Return where the files are that models run with, None as long as others may be needed."""
        desired = self._state.desired
        if desired is None or desired.trials or self._turns:
            return None
        return {override.model_path for override in overrides(desired).values() if override.model_path}

    async def load(self, command: str, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load a model, or load it again; returns when it is ready.

        Raises:
            ServingError: it is not; what had served before serves on.
        """
        self._check_mode()
        async with self._turn(name):
            await self._accept_load(command, name, await self._override(name, config, files))
            error = await self._state.until(lambda desired: desired.outcomes.get(command))
        if error:
            raise InvalidArgument(error)

    async def unload(self, command: str, name: str, unload_dependents: bool) -> None:
        """Unload a model; returns as soon as it gets no more requests. An unknown model is no error."""
        self._check_mode()
        async with self._turn(name):
            while True:
                async with self._state.lock:
                    desired = await self._state.until(lambda desired: desired)
                    names = set(self._meant_by(name, desired.known)) or {name}
                    if unload_dependents:
                        names = {each for known in names for each in with_dependents(desired, known)}
                    if command in desired.outcomes:
                        return
                    if names.isdisjoint(desired.on_trial):
                        await self._state.change(unloaded(self._options, desired, names, command))
                        return
                await self._end_of_trials(names)

    def _check_mode(self) -> None:
        if self._options.control_mode != "explicit":
            raise Unavailable("explicit model load / unload is not allowed if polling is enabled")

    @contextlib.asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        if sum(count for _, count in self._turns.values()) >= MAX_COMMANDS:
            raise Unavailable("too many models are being loaded and unloaded")
        lock, count = self._turns.get(name, (asyncio.Lock(), 0))
        self._turns[name] = (lock, count + 1)
        limit = asyncio.timeout(_TIMEOUT_S)
        try:
            async with limit, lock:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            why = f"model '{name}' is not loaded or unloaded after {_TIMEOUT_S:g} s; what has begun goes on"
            raise Unavailable(why) from None
        finally:
            lock, count = self._turns.pop(name)
            if count > 1:
                self._turns[name] = (lock, count - 1)

    async def _override(self, name: str, config: str | None, files: Mapping[str, bytes]) -> Override | None:
        if config is None:
            if files:
                raise Internal("Load parameter 'config' must be specified for model file override")
            return None
        try:
            # A second of work that holds the interpreter's lock: several at once would leave the loop little of it.
            async with self._parsing:
                given = await asyncio.to_thread(config_from_json, config)
        except ConfigJsonError as error:
            # Clients look for Triton's first words, as its example of the model control does.
            raise InvalidArgument(f"failed to load '{name}', Invalid config override: {error}") from None
        if not files:
            return Override(given, "")
        async with self._files_lock:
            # They are written to the end, though the command be cancelled meanwhile.
            writing = asyncio.ensure_future(asyncio.to_thread(self._files.write, name, files))
            writing.add_done_callback(self._files_written)
            return Override(given, await asyncio.shield(writing))

    def _files_written(self, writing: asyncio.Future[str]) -> None:
        self._kept = None
        if not writing.cancelled():
            writing.exception()  # which nobody may wait for

    async def _accept_load(self, command: str, name: str, override: Override | None) -> None:
        while True:
            before = await self._state.until(lambda desired: desired)
            if command in before.outcomes:
                return
            loop = asyncio.get_running_loop()
            asked = (self._options, before, name, override, self._here)
            read = await loop.run_in_executor(self._readers, read_models, *asked)
            async with self._state.lock:
                desired = await self._state.until(lambda desired: desired)
                names = touched(self._options, desired, read)
                # What was read follows from how these models were loaded then.
                if names.isdisjoint(desired.on_trial) and not replaced(before, desired, names):
                    await self._take(desired, command, name, read, Origin(True, override))
                    return
            await self._end_of_trials(names)

    def _meant_by(self, name: str, known: Collection[str]) -> list[str]:
        return meant_by(name, known, namespacing=self._options.loader.namespacing)

    def _here(self, path: str) -> str:
        return self._files.here(path)

    async def _end_of_trials(self, names: Collection[str]) -> None:
        await self._state.until(lambda desired: True if desired.on_trial.keys().isdisjoint(names) else None)

    async def _take(self, desired: DesiredState, command: str, name: str, read: Snapshot, origin: Origin) -> None:
        asked = self._meant_by(name, read.models.keys())
        if not asked:
            raise Internal(not_polled(name))
        for each in asked:
            if (failure := read.models[each].failure) is not None:
                log_findings(read, desired.plan, [each])
                if desired.runs(each):
                    await self._state.change(serving_on(desired, read.models[each]))
                await self._refuse(desired, each, failure)
        origins = dict.fromkeys(asked, origin)
        failed = self._table.failed | self._table.hindered
        changed = await asyncio.to_thread(loaded, self._options, desired, read, origins, command, name, failed)
        for each in asked:
            if reason := displaced(desired, changed) or changed.plan.unplaced.get(each, ""):
                await self._refuse(desired, each, reason)
        await self._state.change(changed)

    async def _refuse(self, desired: DesiredState, name: str, reason: str) -> None:
        if name not in desired.snapshot.models:  # what waits does so for a reason that is known
            await self._state.change(refused(desired, name, reason))
        raise InvalidArgument(f"load failed for model '{name}': {reason}")


def read_models(
    options: ControllerOptions,
    desired: DesiredState,
    name: str,
    override: Override | None,
    here: Callable[[str], str] = str,
) -> Snapshot:
    """Read a model, or all that share its name, the models of its steps, and the ensembles that have it; blocks.

    Other steps of those ensembles stay as they run, or do not. A repository that cannot be read has no part in it, nor
    has an ensemble that runs and may have a step there. With namespaces what a model is called depends on all
    repositories; models that run and are called otherwise from now on are read too, with their ensembles. `here` is as
    of `overrides`.

    Raises:
        Internal: a repository cannot be read that decides about names.
    """
    given = overrides(desired, here)
    same = {name, *(alike(desired, name) if options.loader.namespacing else ())}
    for each in same:
        given.pop(each, None)
    if override is not None:
        given[name] = override
    loader = replace(options.loader, gpu_count=desired.facts.num_gpus, names=desired.repositories)
    dependents = desired.dependents(same)
    unreadable: dict[str, str] | None = None if options.loader.namespacing else {}
    completer = NodeCompleter(desired.facts)
    only, running = {name}, desired.snapshot.models
    try:
        while True:
            read = load_repositories(
                tuple(desired.repositories), loader, completer, only, given, unreadable, dependents, running
            )
            others = renamed(options, desired, read)
            more = {shared_name(each) or each for each in others} | desired.dependents(others)
            if more <= only | dependents:
                break
            only |= more
    except RepositoryError as error:
        raise Internal(not_polled(name)) from error
    asked = {each for known in only for each in meant_by(known, read.models, namespacing=options.loader.namespacing)}
    gone = desired.gone.keys() - with_steps(read, asked) - dependents
    read = replace(read, models={each: model for each, model in read.models.items() if each not in gone})
    for finding in read.findings:
        if is_remote(finding.path) and finding.path in desired.repositories:  # what a store has not given
            logger.warning("%s", finding)
    if not unreadable:
        return read
    for reason in unreadable.values():
        logger.warning("'%s' is loaded without this one: %s", name, reason)
    stays = {each for each in dependents if each in read.models and read.models[each].failure is not None}
    return replace(read, models={each: model for each, model in read.models.items() if each not in stays})


def load_error(asked: str, reasons: Mapping[str, Mapping[int, str]]) -> str:
    """Return the error for the client whose model did not load: `reasons` by model and version."""
    if not asked or not reasons:
        return ""
    failed = asked if asked in reasons else min(reasons)
    text = "".join(
        f"version {version} is at UNAVAILABLE state: Internal: {reason};\n"
        for version, reason in sorted(reasons[failed].items())
    )
    if asked not in (failed, shared_name(failed)):
        text = without_step(asked, failed, text)
    return f"load failed for model '{asked}': {text}"


def log_failures(reasons: Mapping[str, Mapping[int, str]]) -> None:
    """Log why versions did not load."""
    for name, versions in sorted(reasons.items()):
        for version, reason in sorted(versions.items()):
            logger.error("failed to load '%s' version %d: %s", name, version, reason)


def told(error: ServingError) -> list[int | str]:
    """Return an error as plain data: gRPC code and message."""
    return [error.grpc_code, error.message]
