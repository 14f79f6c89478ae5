"""The models that wait for what the cluster does not have: they are placed when it has become another."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from deployments.control.controller_options import ControllerOptions
from deployments.control.current_state import CurrentState
from deployments.control.desired_state import DesiredState, log_findings, overrides, replaced
from deployments.control.node_completion import NodeCompleter
from repository_loader.cluster_facts import ClusterFacts
from repository_loader.plan import make_plan
from repository_loader.repository import load_repositories
from repository_loader.snapshot import Snapshot

logger = logging.getLogger(__name__)

_LOOK_S: Final = 2.0


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
        self._read_for: ClusterFacts | None = None
        """The cluster that what waits was read for; None for one that a former controller knew."""

    async def run(self) -> None:
        """Look at the cluster for ever, as long as something waits, and place what waits if it is another."""
        first = await self._state.until(lambda desired: desired)
        if not self._state.inherited:
            self._read_for = first.facts
        while True:
            await self._state.until(lambda desired: desired.waiting or None)
            try:
                await self.look()
                await self._place()
            except Exception:
                logger.exception("the models that wait are looked at again in %g s", self._look_s)
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
                    self._read_for = facts

    async def _place(self) -> None:
        """Read and place what waits, if the cluster is another than it was read for."""
        while True:
            before = await self._state.until(lambda desired: desired)
            if not before.waiting or before.facts == self._read_for:
                return
            logger.info("the cluster has changed; models that wait are read again: %s", ", ".join(before.waiting))
            read = await asyncio.to_thread(read_waiting, self._options, before, self._here)
            if await self._take(before, read):
                self._read_for = before.facts
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


def read_waiting(options: ControllerOptions, before: DesiredState, here: Callable[[str], str] = str) -> Snapshot:
    """Read again what waits, for the cluster as it is now; blocks. `here` is as of `overrides`."""
    loader = replace(options.loader, names=before.repositories, gpu_count=before.facts.num_gpus)
    unreadable: dict[str, str] = {}
    repositories, given = tuple(before.repositories), overrides(before, here)
    read = load_repositories(repositories, loader, NodeCompleter(before.facts), before.waiting, given, unreadable)
    for reason in unreadable.values():
        logger.warning("%s; what waits of it waits on", reason)
    return read


def place_waiting(options: ControllerOptions, before: DesiredState, read: Snapshot) -> DesiredState:
    """Place what waits, and was read again, beside what runs; blocks.

    What has a place keeps it, also where the cluster has shrunk: Serve puts its replicas back when it can.
    """
    models = {
        name: read.models.get(name, model) if name in before.waiting else model
        for name, model in before.snapshot.models.items()
    }
    snapshot = replace(before.snapshot, models=models)
    plan = make_plan(snapshot, options.plan, before.facts, before.plan)
    desired = replace(before, snapshot=snapshot, plan=plan)
    log_findings(snapshot, plan, before.waiting - desired.waiting)
    return desired
