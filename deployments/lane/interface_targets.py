"""Where requests go that are made for one interface of a model, while not all that serves the model has it."""

from collections.abc import Collection

from deployments.core.version_choice import expected
from deployments.lane.client import LaneClient, TableRow
from deployments.lane.target import LaneTarget, TargetContext


class InterfaceTargets:
    """A target for each interface of a model version, over the lanes to replicas where it has that, or had it before.

    Replicas change one after the other, and keep for a while what served as a version before it had another interface:
    so ensembles go on with the steps that they are made for, until they change too.
    """

    def __init__(self, context: TargetContext) -> None:
        self._context = context
        self._targets: dict[str, dict[tuple[int, str], LaneTarget]] = {}

    def take(self, lane: LaneClient, rows: Collection[TableRow]) -> None:
        """Take what a replica serves, former versions too."""
        self._drop(lane, {(row.name, row.version, row.interface) for row in rows})
        for row in rows:
            if not row.interface:
                continue
            targets = self._targets.setdefault(row.name, {})
            target = targets.get((row.version, row.interface))
            if target is None:
                target = targets[row.version, row.interface] = LaneTarget(row.name, row.version, self._context)
            target.choice.add(
                lane, row.number, capacity=row.capacity, spill=row.spill, gpus=row.gpus, interface=row.interface
            )
            target.follow_sequences(row.sequence_idle_us)

    def withdraw(self, lane: LaneClient) -> None:
        """Send nothing more over a lane."""
        self._drop(lane, ())

    def find(self, name: str, version: int, interface: str, taken: Collection[tuple[str, int]]) -> LaneTarget | None:
        """Return the target of a version (-1: the highest that takes requests), None where it has no such interface."""
        targets = self._targets.get(name, {})
        if version == -1:
            versions = expected(name, {number for number, _ in targets}, taken)
            version = max((each for each in versions if (each, interface) in targets), default=version)
        return targets.get((version, interface))

    def _drop(self, lane: LaneClient, kept: Collection[tuple[str, int, str]]) -> None:
        for name, targets in tuple(self._targets.items()):
            for (version, interface), target in tuple(targets.items()):
                if (name, version, interface) in kept or not target.choice.remove(lane) or target.choice.lanes:
                    continue
                del targets[version, interface]
            if not targets:
                del self._targets[name]
