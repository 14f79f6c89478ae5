"""Has Serve run as many replicas of each autoscaled deployment as the autoscaler says."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, cast

from deployments.control.autoscaler import REPORT_S, Autoscaler
from deployments.control.scale_down import ScaleDown
from deployments.core.counts import SCALING, Label, Rows, ScalingCounts
from deployments.serve_internals import (
    FAILED,
    DeploymentState,
    application_states,
    replica_counts,
    replica_targets,
    set_replica_target,
)
from repository_loader.deployment_plan import DeploymentPlan, Place

logger = logging.getLogger(__name__)

_DOUBT_S: Final = 3.0
"""Longer than Serve takes to act on what was deployed."""


class Scaler:
    """The autoscaler's loop in the controller; it costs nothing while no model is autoscaled.

    Args:
        targets: returns how many replicas Serve keeps of each deployment; blocks.
        set_target: has Serve keep so many of one; blocks.
        counts: returns how many replicas of each have started, and are not about to end; blocks.
        states: returns the states of all deployments, by application and name; blocks.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rows: Rows,
        targets: Callable[[], Mapping[Place, int]] = replica_targets,
        set_target: Callable[[str, str, int], None] = set_replica_target,
        counts: Callable[[], Mapping[Place, int]] = replica_counts,
        states: Callable[[], Mapping[str, Mapping[str, DeploymentState]]] = application_states,
    ) -> None:
        self._rows = rows
        self._targets = targets
        self._set_target = set_target
        self._counts = counts
        self._states = states
        self.scale_down: ScaleDown | None = None
        """Prepares replicas with something under way before Serve is to keep fewer."""
        self._scaling_down: dict[Place, tuple[int, asyncio.Task[None]]] = {}
        """What is being prepared, with how many replicas there are until it is."""
        self._autoscaler = Autoscaler()
        self._wake = asyncio.Event()
        self._served: set[Place] = set()
        """What may have no replica, and has one that has started."""
        self._said_before: dict[Place, str] = {}
        """What Serve said of what had no replica just before the first one was wanted."""
        self._untold: set[Place] = set()
        self._shown: set[Place] = set()
        self._loop = loop
        self._doubts_until_s = 0.0

    async def follow(self, deployments: Sequence[DeploymentPlan], tried: Collection[Place] = ()) -> None:
        """Scale these from now on, those that are `tried` to one replica at least."""
        scaled = [each for each in deployments if each.autoscaling is not None]
        new = any(self._autoscaler.count(each.place) is None for each in scaled)
        self._autoscaler.follow(scaled, await asyncio.to_thread(self._targets) if new else {}, tried)
        wanted = {each.place for each in scaled}
        for key in wanted | self._shown:
            self._row(key).wanted_count = self._autoscaler.count(key) or 0
        self._shown = wanted
        self._said_before = {key: text for key, text in self._said_before.items() if key in wanted}
        self._wake.set()

    def count(self, app_name: str, deployment: str) -> int | None:
        """Return how many replicas a deployment shall have; None when it is not autoscaled."""
        return self._count_of((app_name, deployment))

    def _count_of(self, key: Place) -> int | None:
        count = self._autoscaler.count(key)
        until_now, _ = self._scaling_down.get(key, (0, None))
        return None if count is None else max(count, until_now)

    def fails_to_start(self, app_name: str, deployment: str, state: DeploymentState) -> bool:
        """Whether a deployment, of which Serve says this, had no replica, and its first one has failed to start.

        Serve starts others without end, calls it healthy, and tells of the failure even when one has started.
        """
        key = (app_name, deployment)
        new = state.message != self._said_before.get(key, state.message)
        return new and state.failed_to_start and bool(self._autoscaler.count(key))

    def deployed(self) -> None:
        """See for a while that Serve keeps to the numbers: what is deployed anew has one replica at least."""
        self._doubts_until_s = self._loop.time() + _DOUBT_S

    def take(self, ingress: str, loads: Mapping[str, tuple[float, float]]) -> None:
        """Take an ingress's report."""
        self._autoscaler.take(ingress, loads)
        self._wake.set()

    async def run(self) -> None:
        """Scale for ever."""
        while True:
            if self._autoscaler.idle:
                self._wake.clear()
                await self._wake.wait()
            try:
                await self._step()
            except Exception:
                logger.exception("the autoscaler tries again")
            await asyncio.sleep(REPORT_S)

    async def _step(self) -> None:
        decided = self._autoscaler.decide(await self._starting())
        self._untold |= decided.keys()
        fewer = {key: before for key, count in decided.items() if count < (before := self._row(key).wanted_count)}
        await self._note_said({key for key in decided if not self._row(key).wanted_count})
        for key, count in decided.items():
            self._count(key, count)
        untold, self._untold = self._untold | await self._astray(), set()
        for key in untold:
            if self.scale_down is not None and key in fewer and self._autoscaler.is_busy(key):
                self._begin_scale_down(key, fewer[key], self.scale_down)
            else:
                await self._tell(key)
        if self.scale_down is not None and await self.scale_down.end_due():
            self.deployed()

    async def _starting(self) -> set[Place]:
        """Return what waits for its first replica while nobody asks; Serve is asked only where there may be such."""
        self._served = {key for key in self._served if self._autoscaler.count(key)}
        unknown = self._autoscaler.unasked - self._served
        if not unknown:
            return set()
        try:
            counts = await asyncio.to_thread(self._counts)
            self._served |= {key for key in unknown if counts.get(key)}
            starting = unknown - self._served
            states = await asyncio.to_thread(self._states) if starting else {}
        except Exception as error:  # Serve's controller may be away
            logger.debug("Serve does not tell what starts: %s", error)
            return unknown
        return {key for key in starting if self._may_start(key, states.get(key[0], {}).get(key[1]))}

    def _may_start(self, key: Place, state: DeploymentState | None) -> bool:
        """Whether a replica is on its way: not one that fails, or for which there is no room."""
        return state is None or not (state.status in FAILED or state.lacks_room or self.fails_to_start(*key, state))

    async def _note_said(self, woken: set[Place]) -> None:
        """Take what Serve says of what is to have a first replica."""
        if woken:
            try:
                states = await asyncio.to_thread(self._states)
            except Exception as error:  # Serve's controller may be away
                logger.debug("Serve does not tell what it said before: %s", error)
                states = {}
            said = {key: states.get(key[0], {}).get(key[1]) for key in woken}
            self._said_before |= {key: state.message for key, state in said.items() if state is not None}

    async def _tell(self, key: Place) -> None:
        wanted = self._count_of(key)
        if wanted is None:
            return
        logger.info("%s of '%s' gets %d replicas", key[1], key[0], wanted)
        try:
            await asyncio.to_thread(self._set_target, *key, wanted)
        except Exception as error:  # it may be deployed just now, or Serve's controller be away
            logger.warning("%s of '%s' is not scaled yet: %s", key[1], key[0], error)
            self._untold.add(key)

    def _begin_scale_down(self, key: Place, count: int, scale_down: ScaleDown) -> None:
        """Tell Serve once the replicas are prepared, of which there are `count`; what is decided meanwhile holds."""

        async def prepare_and_tell() -> None:
            await scale_down.prepare(key)
            del self._scaling_down[key]
            self.deployed()
            await self._tell(key)

        if key not in self._scaling_down:
            self._scaling_down[key] = count, self._loop.create_task(prepare_and_tell(), name="scale-down")

    async def _astray(self) -> set[Place]:
        """Return the deployments of which Serve keeps another number, where that is in doubt."""
        if self._loop.time() > self._doubts_until_s:
            return set()
        try:
            targets = await asyncio.to_thread(self._targets)
        except Exception as error:  # Serve's controller may be away
            logger.debug("Serve does not tell how many replicas it keeps: %s", error)
            return set()
        return {key for key, target in targets.items() if self._count_of(key) not in (None, target)}

    def _row(self, key: Place) -> ScalingCounts:
        return cast(ScalingCounts, self._rows.row(Label(SCALING, "/".join(key), 0)))

    def _count(self, key: Place, count: int) -> None:
        row = self._row(key)
        if count > row.wanted_count:
            row.up_count += 1
        else:
            row.down_count += 1
        row.wanted_count = count
