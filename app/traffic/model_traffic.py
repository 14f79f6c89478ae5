"""What an ingress remembers of a model whose versions share its requests."""

from collections.abc import Mapping
from typing import Any, cast

from tritonclient.grpc.model_config_pb2 import ModelConfig

from app.traffic.shadow import Shadow
from app.traffic.split_target import SplitTarget
from deployments.core.counts import SHADOW, Label, Rows, ShadowCounts
from deployments.core.version_choice import SequenceVersions, Turns
from deployments.lane.remote_regions import ClientRegions
from deployments.lane.sink import Target, VersionTarget
from deployments.replica.version_meter import VersionMeter
from repository_loader.traffic import Traffic


class ModelTraffic:
    """Whose turn it is, which sequences are where, what is copied and what is measured.

    Args:
        rows: where copies are counted.
        regions: the shared memory of clients.
    """

    def __init__(self, name: str, config: ModelConfig, rows: Rows, regions: ClientRegions | None) -> None:
        self._name = name
        self._rows = rows
        self._regions = regions
        self._row: Mapping[str, Any] = {}
        self._traffic = Traffic()
        self._turns = Turns()
        self._shadows: list[Shadow] = []
        # An ensemble passes its requests' sequences on.
        kept = config.HasField("sequence_batching") or config.HasField("ensemble_scheduling")
        self._sequences = SequenceVersions() if kept else None
        self.meters: dict[int, VersionMeter] = {}

    @property
    def has_sequences(self) -> bool:
        """Whether the model's requests may be of sequences, which stay where they are."""
        return self._sequences is not None

    def take(self, row: Mapping[str, Any]) -> None:
        """Take what the directory says of the model's traffic."""
        if row == self._row:
            return
        self._row = row
        self._traffic = Traffic.from_dict(row)
        known = {(shadow.version, shadow.percent): shadow for shadow in self._shadows}
        self._shadows = [
            known.get((version, percent)) or Shadow(version, percent, self._counts(version), self._regions)
            for version, percent in self._traffic.shadow.items()
        ]
        step, version = row.get("step", ""), row.get("canary_version", 0)
        measured = self.meters.get(version)
        if measured is None or measured.step != step:
            self.meters = {version: VersionMeter(step)} if step else {}

    def _counts(self, version: int) -> ShadowCounts:
        return cast(ShadowCounts, self._rows.row(Label(SHADOW, self._name, version)))

    def target(self, targets: Mapping[int, VersionTarget]) -> Target | None:
        """Return where requests that name no version go, given the targets of all ready versions; None: nowhere."""
        shares = self._traffic.shares(targets)
        if not shares:
            return None
        if len(shares) == 1 and not self._shadows and not self.meters and self._sequences is None:
            return targets[next(iter(shares))]
        return SplitTarget(targets, shares, self._turns, self._sequences, self._shadows, self.meters)
