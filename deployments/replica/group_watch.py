"""The deployments whose replicas a replica keeps lanes to: those of its ensembles' steps, and of models it calls."""

import asyncio
from collections.abc import Callable
from typing import Any

from deployments.control.replica_directory import Listener
from deployments.lane.fleet import Fleet
from deployments.replica.lane_address import address_of
from deployments.serve_internals import watch_replicas
from repository_loader.deployment_plan import Place

Watch = Callable[[str, str, Listener], Callable[[], None]]


class GroupWatch:
    """Tells a fleet which replicas run; all on the loop's thread. `watch` has the interface of `watch_replicas`.

    What is wanted no longer is watched for `linger_s` from then on: a request that is under way here may still need it.
    """

    def __init__(
        self, fleet: Fleet, loop: asyncio.AbstractEventLoop, linger_s: float, watch: Watch = watch_replicas
    ) -> None:
        self._watch = watch
        self._linger_s = linger_s
        self._fleet = fleet
        self._loop = loop
        self._wanted: dict[str, set[Place]] = {}
        self._watched: dict[Place, Callable[[], None]] = {}
        self._lingering: dict[Place, asyncio.TimerHandle] = {}

    def want(self, reason: str, groups: set[Place]) -> None:
        """Keep lanes to these, in place of what was wanted for the same reason before."""
        self._wanted[reason] = groups
        wanted = set().union(*self._wanted.values())
        for group in wanted & self._lingering.keys():
            self._lingering.pop(group).cancel()
        for group in wanted - self._watched.keys():
            self._watched[group] = self._watch(*group, self._listener(group))
        for group in self._watched.keys() - wanted - self._lingering.keys():
            self._lingering[group] = self._loop.call_later(self._linger_s, self._forget, group)

    def _forget(self, group: Place) -> None:
        del self._lingering[group]
        self._watched.pop(group)()
        self._fleet.forget("#".join(group))

    def _listener(self, group: Place) -> Callable[[tuple[Any, ...]], None]:
        def changed(replicas: tuple[Any, ...]) -> None:
            self._loop.call_soon_threadsafe(take, {each.replica_id: address_of(each) for each in replicas})

        def take(addresses: dict[str, Any]) -> None:
            if group in self._watched:
                self._fleet.set_replicas("#".join(group), addresses)

        return changed
