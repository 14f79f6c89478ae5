"""The routing table of a process: which model versions other processes serve, and the lanes that lead to each."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final

from deployments.core.version_choice import expected
from deployments.lane.client import LaneClient, TableRow
from deployments.lane.interface_targets import InterfaceTargets
from deployments.lane.target import LaneTarget, TargetContext
from deployments.lane.waiting_calls import WaitingCalls

REPLACEMENT_S: Final = 60.0
"""How long requests for a version wait for another replica, from the death of its last one on."""


class Routes:
    """Follows the tables of the replicas; `changed` is called after the set of ready models may have changed."""

    def __init__(self, context: TargetContext, changed: Callable[[], None]) -> None:
        self._context = context
        self._changed = changed
        self._targets: dict[str, dict[int, LaneTarget]] = {}
        self._interfaces = InterfaceTargets(context)
        self._awaited: dict[tuple[str, int], LaneTarget] = {}
        self._taken: Collection[tuple[str, int]] = ()
        self._faults: dict[LaneClient, dict[tuple[str, int], str]] = {}
        self._unready: dict[LaneClient, set[tuple[str, int]]] = {}

    def find(self, name: str, version: int = -1, interface: str = "") -> LaneTarget | None:
        """Return the target of a model version, None when no live replica serves it, or not with that interface.

        -1 is the highest that takes requests. Where none is known to, it is the highest that is served, unless there is
        one to wait for (`awaited`).
        """
        target = self._find(name, version)
        if target is None or target.serves(interface):
            return target
        return self._interfaces.find(name, version, interface, self._taken)

    def _find(self, name: str, version: int) -> LaneTarget | None:
        versions = self._targets.get(name)
        if not versions:
            return None
        if version == -1:
            version = max(expected(name, versions, self._taken))
            if self._awaited and (name, version) not in self._taken and self.awaited(name) is not None:
                return None
        return versions.get(version)

    def awaited(self, name: str, version: int = -1) -> LaneTarget | None:
        """Return the target of a version whose last replica died (-1: the highest one); None where none is awaited."""
        if version != -1 or not self._awaited:
            return self._awaited.get((name, version))
        return self._awaited.get((name, max(self.awaited_versions(name), default=version)))

    def awaited_versions(self, name: str) -> list[int]:
        """Return the versions of a model whose last replica died."""
        return [version for awaited, version in self._awaited if awaited == name]

    def expect(self, taken: Collection[tuple[str, int]]) -> None:
        """Take which versions take requests, and refuse what waits for a replica of any other."""
        self._taken = taken
        self._end_waits({target.waiting for key, target in self._awaited.items() if key not in taken})

    def versions(self, name: str) -> Collection[int]:
        """Return the versions of a model that live replicas serve."""
        return self._targets.get(name, {}).keys()

    def set_sleepers(self, sleepers: Mapping[tuple[str, int], float], wake: Callable[[], None]) -> None:
        """Take which versions may have no replica: requests for them wait until there is one, so many seconds at most.

        Those for a version that shall always have one from now on wait for it, as after a death.
        """
        for (name, version), max_wait_s in sleepers.items():
            versions = self._targets.setdefault(name, {})
            if version not in versions:
                versions[version] = self._new_target(name, version)
            versions[version].may_wait(wake, max_wait_s)
        awake = [
            target
            for name, versions in self._targets.items()
            for version, target in versions.items()
            if target.waiting is not None and (name, version) not in sleepers
        ]
        asleep = [target for target in awake if not target.choice.lanes]
        for target in awake:
            if target in asleep:
                self._remove(target)
            else:
                target.must_not_wait()
        self._await_replacements(asleep)
        if awake:
            self._changed()

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
        if lane.withdrawn:
            return
        self._interfaces.take(lane, [row for row in rows if not row.fault])
        rows = [row for row in rows if not row.former]
        served = [row for row in rows if not row.fault]
        faults = {(row.name, row.version): row.fault for row in rows if row.fault}
        emptied = self._drop(lane, {(row.name, row.version) for row in served})
        self._await_replacements([each for each in emptied if (each.model_name, each.version) in faults])
        for row in served:
            versions = self._targets.setdefault(row.name, {})
            if row.version not in versions:
                versions[row.version] = self._new_target(row.name, row.version)
            choice = versions[row.version].choice
            choice.add(
                lane,
                row.number,
                capacity=row.capacity,
                spill=row.spill,
                gpus=row.gpus,
                interface=row.interface,
            )
            versions[row.version].follow_sequences(row.sequence_idle_us)
            versions[row.version].lane_added()
        self._unready.pop(lane, None)
        if unready := {(row.name, row.version) for row in served if not row.says_ready}:
            self._unready[lane] = unready
        self._faults[lane] = faults
        self._changed()

    def _new_target(self, name: str, version: int) -> LaneTarget:
        """Return a target for a version that had none, with what waits for it."""
        return self._awaited.pop((name, version), None) or LaneTarget(name, version, self._context)

    def withdraw(self, lane: LaneClient, *, lost: bool = False) -> None:
        """Send nothing more over a lane; if it was `lost`, requests for what it alone led to wait for another one."""
        lane.withdrawn = True
        self._faults.pop(lane, None)
        self._unready.pop(lane, None)
        self._interfaces.withdraw(lane)
        emptied = self._drop(lane, set())
        if lost:
            self._await_replacements(emptied)
        if emptied:
            self._changed()

    def _await_replacements(self, targets: list[LaneTarget]) -> None:
        """Have requests for what has no replica any more wait for the one that Serve makes in its place."""
        if targets:
            for target in targets:
                target.await_replacement()
                self._awaited[target.model_name, target.version] = target
            waits = {target.waiting for target in targets}
            asyncio.get_running_loop().call_later(REPLACEMENT_S, self._end_waits, waits)

    def _end_waits(self, waits: set[WaitingCalls | None]) -> None:
        """Refuse what waits here still; a target may have been back since, and be awaited once more."""
        over = [key for key, target in self._awaited.items() if target.waiting in waits]
        for key in over:
            self._awaited.pop(key).must_not_wait()
        if over:
            self._changed()

    def _drop(self, lane: LaneClient, kept: set[tuple[str, int]]) -> list[LaneTarget]:
        """Take a lane out of all targets but the kept; returns those that have no lane left."""
        emptied = []
        for name, versions in tuple(self._targets.items()):
            for version, target in tuple(versions.items()):
                if (name, version) not in kept and target.choice.remove(lane) and not target.ready:
                    emptied.append(target)
                    self._remove(target)
        return emptied

    def _remove(self, target: LaneTarget) -> None:
        versions = self._targets[target.model_name]
        del versions[target.version]
        if not versions:
            del self._targets[target.model_name]
