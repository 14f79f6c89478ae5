"""The routing table of a process: which model versions other processes serve, and the lanes that lead to each."""

from collections.abc import Callable, Collection

from deployments.lane.client import LaneClient, TableRow
from deployments.lane.target import LaneTarget, Limits


class Routes:
    """Follows the tables of the replicas; `changed` is called after the set of ready models may have changed."""

    def __init__(self, limits: Limits, changed: Callable[[], None]) -> None:
        self._limits = limits
        self._changed = changed
        self._targets: dict[str, dict[int, LaneTarget]] = {}
        self._faults: dict[LaneClient, dict[tuple[str, int], str]] = {}
        self._unready: dict[LaneClient, set[tuple[str, int]]] = {}

    def find(self, name: str, version: int = -1) -> LaneTarget | None:
        """Return the target of a model version (-1: the highest ready one), None when no live replica serves it."""
        versions = self._targets.get(name)
        if not versions:
            return None
        return versions.get(version if version != -1 else max(versions))

    def versions(self, name: str) -> Collection[int]:
        """Return the versions of a model that live replicas serve."""
        return self._targets.get(name, {}).keys()

    def set_sleepers(self, sleepers: set[tuple[str, int]], wake: Callable[[], None]) -> None:
        """Take which versions may have no replica: requests for them wait until there is one."""
        for name, version in sleepers:
            versions = self._targets.setdefault(name, {})
            if version not in versions:
                versions[version] = LaneTarget(name, version, self._limits)
            versions[version].may_wait(wake)
        for name, versions in tuple(self._targets.items()):
            for version, target in tuple(versions.items()):
                if target.waiting is not None and (name, version) not in sleepers:
                    target.must_not_wait()
                    if not target.ready:
                        del versions[version]
            if not versions:
                del self._targets[name]

    def fault(self, name: str, version: int) -> str:
        """Return why a version serves no more, "" when no replica says so."""
        return next((faults[(name, version)] for faults in self._faults.values() if (name, version) in faults), "")

    def says_ready(self, name: str, version: int) -> bool:
        """Whether a version says of itself that it is ready, in one replica at least, or says nothing."""
        target = self._targets.get(name, {}).get(version)
        if target is None or not self._unready:
            return True
        return any((name, version) not in self._unready.get(lane, ()) for lane in target.choice.lanes)

    def take_table(self, lane: LaneClient, rows: list[TableRow]) -> None:
        """Take the list of model versions that a replica has."""
        served = [row for row in rows if not row.fault]
        self._drop(lane, {(row.name, row.version) for row in served})
        for row in served:
            versions = self._targets.setdefault(row.name, {})
            if row.version not in versions:
                versions[row.version] = LaneTarget(row.name, row.version, self._limits)
            versions[row.version].choice.add(lane, row.number, capacity=row.capacity, spill=row.spill)
            versions[row.version].follow_sequences(row.sequence_idle_us)
            versions[row.version].lane_added()
        self._unready.pop(lane, None)
        if unready := {(row.name, row.version) for row in served if not row.says_ready}:
            self._unready[lane] = unready
        self._faults[lane] = {(row.name, row.version): row.fault for row in rows if row.fault}
        self._changed()

    def withdraw(self, lane: LaneClient) -> None:
        """Send nothing more over a lane."""
        self._faults.pop(lane, None)
        self._unready.pop(lane, None)
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
