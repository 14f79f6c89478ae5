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

    async def run(self) -> None:
        """Look at the cluster for ever, as long as something waits."""
        while True:
            await self._state.until(lambda desired: desired.waiting or None)
            try:
                await self.place()
            except Exception:
                logger.exception("the models that wait are looked at again in %g s", self._look_s)
            await asyncio.sleep(self._look_s)

    async def place(self) -> None:
        """Look at the cluster, and place what waits if it is another; nothing is placed while something is on trial."""
        async with self._turn:
            facts = await asyncio.to_thread(self._read_facts)
            while True:
                before = await self._state.until(lambda desired: desired)
                if facts == before.facts or before.trials:
                    return
                waiting = ", ".join(before.waiting) or "none"
                logger.info("the cluster has changed; models that wait are read again: %s", waiting)
                read = await asyncio.to_thread(read_waiting, self._options, facts, before, self._here)
                async with self._state.lock:
                    desired = await self._state.until(lambda desired: desired)
                    if not (desired.trials or replaced(before, desired, before.waiting)):
                        placed = await asyncio.to_thread(place_waiting, self._options, facts, desired, read)
                        await self._state.change(placed)
                        return


def read_waiting(
    options: ControllerOptions, facts: ClusterFacts, before: DesiredState, here: Callable[[str], str] = str
) -> Snapshot:
    """Read again what waits, for such a cluster; blocks. `here` is as of `overrides`."""
    loader = replace(options.loader, names=before.repositories, gpu_count=facts.num_gpus)
    unreadable: dict[str, str] = {}
    repositories, given = tuple(before.repositories), overrides(before, here)
    read = load_repositories(repositories, loader, NodeCompleter(facts), before.waiting, given, unreadable)
    for reason in unreadable.values():
        logger.warning("%s; what waits of it waits on", reason)
    return read


def place_waiting(
    options: ControllerOptions, facts: ClusterFacts, before: DesiredState, read: Snapshot
) -> DesiredState:
    """Place what waits, and was read again, beside what runs; blocks.

    What has a place keeps it, also where the cluster has shrunk: Serve puts its replicas back when it can.
    """
    models = {
        name: read.models.get(name, model) if name in before.waiting else model
        for name, model in before.snapshot.models.items()
    }
    snapshot = replace(before.snapshot, models=models)
    plan = make_plan(snapshot, options.plan, facts, before.plan)
    desired = replace(before, snapshot=snapshot, plan=plan, facts=facts)
    log_findings(snapshot, plan, before.waiting - desired.waiting)
    return desired
