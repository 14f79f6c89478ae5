"""The routing table of a process: which model versions other processes serve, and the lanes that lead to each."""

from collections.abc import Callable

from deployments.lane.client import LaneClient
from deployments.lane.target import LaneTarget, Limits


class Routes:
    """Follows the tables of the replicas; `changed` is called after the set of ready models may have changed."""

    def __init__(self, limits: Limits, changed: Callable[[], None]) -> None:
        self._limits = limits
        self._changed = changed
        self._targets: dict[str, dict[int, LaneTarget]] = {}

    def find(self, name: str, version: int = -1) -> LaneTarget | None:
        """Return the target of a model version (-1: the highest ready one), None when no live replica serves it."""
        versions = self._targets.get(name)
        if not versions:
            return None
        return versions.get(version if version != -1 else max(versions))

    def take_table(self, lane: LaneClient, rows: list[tuple[int, str, int]]) -> None:
        """Take the list of model versions that a replica serves: index, name, version."""
        self._drop(lane, {(name, version) for _, name, version in rows})
        for index, name, version in rows:
            versions = self._targets.setdefault(name, {})
            if version not in versions:
                versions[version] = LaneTarget(name, version, self._limits)
            versions[version].choice.add(lane, index)
        self._changed()

    def withdraw(self, lane: LaneClient) -> None:
        """Send nothing more over a lane."""
        if self._drop(lane, set()):
            self._changed()

    def _drop(self, lane: LaneClient, kept: set[tuple[str, int]]) -> bool:
        """Take a lane out of all targets but the kept; returns whether one has no lane left."""
        emptied = False
        for name, versions in tuple(self._targets.items()):
            for version, target in tuple(versions.items()):
                if (name, version) not in kept and target.choice.remove(lane) and not target.ready:
                    del versions[version]
                    emptied = True
            if not versions:
                del self._targets[name]
        return emptied
