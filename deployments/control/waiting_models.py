"""The models that wait for what the cluster does not have: they are placed when it has become another."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from deployments.control.controller_options import ControllerOptions
from deployments.control.current_state import CurrentState
from deployments.control.desired_state import (
    DesiredState,
    loaded,
    log_findings,
    overrides,
    replaced,
    with_steps,
)
from deployments.control.node_completion import NodeCompleter
from deployments.control.postponed import Postponed, reasons_of, waiting_ensembles
from repository_loader.cluster_facts import ClusterFacts
from repository_loader.ensemble_graph import check_ensembles, steps_of
from repository_loader.plan import make_plan
from repository_loader.repository import load_repositories
from repository_loader.snapshot import RepositoryModel, Snapshot

logger = logging.getLogger(__name__)

_LOOK_S: Final = 2.0
_IDLE_LOOK_S: Final = 5.0

_Room = tuple[ClusterFacts, frozenset[tuple[str, str, float, int]], frozenset[str]]


class WaitingModels:
    """Reads them again, which may take minutes where a model says itself what it is; other changes go on meanwhile.

    Args:
        read_facts: returns what the cluster is made of; blocks.
        here: as of `overrides`.
    """

    def __init__(
        self,
        options: ControllerOptions,
        state: CurrentState,
        read_facts: Callable[[], ClusterFacts],
        here: Callable[[str], str] = str,
        look_s: float = _LOOK_S,
    ) -> None:
        self._options = options
        self._state = state
        self._read_facts = read_facts
        self._here = here
        self._look_s = look_s
        self._turn = asyncio.Lock()
        self._read_for: _Room | None = None
        """The room that what waits was read for; None for that which a former controller knew."""

    async def run(self) -> None:
        """Look at the cluster for ever, and place what waits if it is another; less often while nothing waits."""
        first = await self._state.until(lambda desired: desired)
        if not self._state.inherited:
            self._read_for = _room(first)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_LOOK_S):
                    await self._state.until(lambda desired: desired.waiting or None)
            try:
                await self.look()
                await self._place()
            except Exception:
                logger.exception("the cluster, and what waits, are looked at again in %g s", self._look_s)
            await asyncio.sleep(self._look_s)

    async def look(self) -> None:
        """Look at the cluster, and have what is loaded from now on be placed in it as it is."""
        async with self._turn:
            facts = await asyncio.to_thread(self._read_facts)
            async with self._state.lock:
                desired = await self._state.until(lambda desired: desired)
                if facts == desired.facts:
                    return
                await self._state.change(replace(desired, facts=facts))
                if not desired.waiting:
                    self._read_for = facts, frozenset(), frozenset()

    async def _place(self) -> None:
        """Read and place what waits, if there is other room for it than it was read for."""
        while True:
            before = await self._state.until(lambda desired: None if _tries_postponed(desired) else desired)
            if not before.waiting or _room(before) == self._read_for:
                return
            logger.info("there may be room; models that wait are read again: %s", ", ".join(sorted(before.waiting)))
            read = await asyncio.to_thread(read_waiting, self._options, before, self._here)
            if await self._take(before, read):
                self._read_for = _room(before)
                return

    async def _take(self, before: DesiredState, read: Snapshot) -> bool:
        """Place what was read once nothing is on trial; returns False if any of it has been changed meanwhile."""
        while True:
            await self._state.until(lambda desired: None if desired.trials else True)
            async with self._state.lock:
                desired = await self._state.until(lambda desired: desired)
                if replaced(before, desired, before.waiting):
                    return False
                if not desired.trials:
                    placed = await asyncio.to_thread(place_waiting, self._options, desired, read)
                    await self._state.change(placed)
                    return True


def _tries_postponed(desired: DesiredState) -> bool:
    """Whether something was postponed until now, and may be again: what takes room is not known."""
    return any(trial.postponed for trial in desired.trials)


def _room(desired: DesiredState) -> _Room:
    """Return the cluster, and what takes room in it; what runs nowhere is placed as soon as anything goes."""
    taken = frozenset(
        (each.app_name, each.name, each.num_cpus, each.replica_count) for each in desired.plan.deployments
    )
    postponed = frozenset(reasons_of(desired.postponed))
    return (desired.facts, taken, postponed) if postponed else (desired.facts, frozenset(), postponed)


def read_waiting(
    options: ControllerOptions,
    before: DesiredState,
    here: Callable[[str], str] = str,
    only: Collection[str] | None = None,
) -> Snapshot:
    """Read again what waits (or `only` these), for the cluster as it is now; blocks. `here` is as of `overrides`."""
    names = before.waiting if only is None else only
    loader = replace(options.loader, names=before.repositories, gpu_count=before.facts.num_gpus)
    unreadable: dict[str, str] = {}
    repositories, given = tuple(before.repositories), overrides(before, here)
    read = load_repositories(repositories, loader, NodeCompleter(before.facts), names, given, unreadable)
    for reason in unreadable.values():
        logger.warning("%s; what waits of it waits on", reason)
    return read


def place_waiting(options: ControllerOptions, before: DesiredState, read: Snapshot) -> DesiredState:
    """Place what waits, and was read again, beside what runs; what was postponed is put on trial; blocks.

    What has a place keeps it, also where the cluster has shrunk: Serve puts its replicas back when it can.
    """
    waits = before.waiting - reasons_of(before.postponed).keys()
    models = {
        name: read.models.get(name, model) if name in waits else model for name, model in before.snapshot.models.items()
    }
    runs = [name for name in models if before.runs(name)]
    models |= waiting_ensembles(models, reasons_of(before.postponed), runs)
    models |= _unfit(models, waits)
    snapshot = replace(before.snapshot, models=models)
    plan = make_plan(snapshot, options.plan, before.facts, before.plan)
    desired = replace(before, snapshot=snapshot, plan=plan)
    log_findings(snapshot, plan, waits - desired.waiting)
    return with_postponed(options, desired, read)


def _unfit(models: Mapping[str, RepositoryModel], waits: Collection[str]) -> dict[str, RepositoryModel]:
    """Return the ensembles among those that wait which do not fit the steps that run, as they cannot be loaded."""
    if not any(steps_of(models[name]) for name in waits):
        return {}
    faults = {name: verdict.faults for name, verdict in check_ensembles(models).items() if name in waits}
    return {
        name: replace(models[name], packages=(), failure=found[0].message) for name, found in faults.items() if found
    }


def with_postponed(options: ControllerOptions, desired: DesiredState, read: Snapshot) -> DesiredState:
    """Load what was postponed, and can run as it was deployed now or was read since, each group on its own trial."""
    latest = [
        replace(group, models={name: read.models.get(name, model) for name, model in group.models.items()})
        for group in desired.postponed
    ]
    desired = replace(desired, postponed=tuple(latest))
    groups = [(group, {**group.models, **_new_steps(desired, group, read)}) for group in latest]
    reasons = {
        name: model.failure for _, models in groups for name, model in models.items() if model.failure is not None
    }
    while some := [(group, models) for group, models in groups if reasons.keys().isdisjoint(models)]:
        found = {name: model for _, models in some for name, model in models.items()}
        placed = loaded(options, desired, Snapshot(found), desired.origins)
        lost = {name: why for name, why in placed.plan.unplaced.items() if name in found or desired.runs(name)}
        if not lost:
            trials = [
                replace(trial, before=before, makes_room=True, postponed=(group,))
                for trial in placed.trials[len(desired.trials) :]
                for group, models in some
                if (before := {name: each for name, each in trial.before.items() if name in models})
            ]
            return replace(placed, trials=(*desired.trials, *trials), postponed=_still(placed.postponed, reasons))
        # Those that lack a place; all of them where others would lose theirs.
        reasons.update(lost if not lost.keys().isdisjoint(found) else dict.fromkeys(found, next(iter(lost.values()))))
    return replace(desired, postponed=_still(desired.postponed, reasons))


def _new_steps(desired: DesiredState, group: Postponed, read: Snapshot) -> dict[str, RepositoryModel]:
    """Return the steps that ensembles of a group have now and that do not run."""
    others = reasons_of(desired.postponed)
    return {
        name: read.models[name]
        for name in sorted(with_steps(read, group.models))
        if name in read.models and name not in others and not desired.runs(name)
    }


def _still(postponed: tuple[Postponed, ...], reasons: Mapping[str, str]) -> tuple[Postponed, ...]:
    """Return what is still postponed, with the latest reasons."""
    return tuple(
        replace(group, reasons={name: reasons.get(name, reason) for name, reason in group.reasons.items()})
        for group in postponed
    )
