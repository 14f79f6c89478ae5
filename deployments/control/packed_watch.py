"""When packed groups have other replicas than before."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from deployments.control.replica_directory import Listener
from deployments.serve_internals import watch_replicas
from repository_loader.deployment_plan import DeploymentPlan, Place


class PackedWatch:
    """Tells of it at once: new replicas may have loaded other models than the last.

    Args:
        changed: is called on the loop's thread.
        watch: has the interface of `watch_replicas`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        changed: Callable[[Place], None],
        watch: Callable[[str, str, Listener], Callable[[], None]] = watch_replicas,
    ) -> None:
        self._loop = loop
        self._changed = changed
        self._watch = watch
        self._watched: dict[Place, Callable[[], None]] = {}

    def follow(self, deployments: Iterable[DeploymentPlan]) -> None:
        """Watch the packed groups among these, and no others any more."""
        wanted = {each.place for each in deployments if each.placement == "packed"}
        for place in wanted - self._watched.keys():
            self._watched[place] = self._watch(*place, partial(self._heard, place))
        for place in self._watched.keys() - wanted:
            self._watched.pop(place)()

    def _heard(self, place: Place, replicas: tuple[Any, ...]) -> None:
        del replicas
        self._loop.call_soon_threadsafe(self._changed, place)
