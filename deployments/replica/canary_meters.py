"""What steps of ensembles and calls of models, which this process sends, have come to at canaries."""

from collections.abc import Mapping
from typing import Any

from deployments.control.directory import ModelEntry
from deployments.replica.version_meter import VersionMeter
from protocol.infer import InferRequest


class CanaryMeters:
    """A meter for the present step of each canary."""

    def __init__(self) -> None:
        self._meters: dict[tuple[str, int], VersionMeter] = {}

    def follow(self, models: Mapping[str, ModelEntry]) -> None:
        """Take from a directory which versions are measured as canaries."""
        meters = {}
        for name, entry in models.items():
            if step := entry.traffic.get("step", ""):
                key = name, entry.traffic["canary_version"]
                known = self._meters.get(key)
                meters[key] = known if known is not None and known.step == step else VersionMeter(step)
        self._meters = meters

    def measure(self, name: str, version: int, request: InferRequest) -> None:
        """Have the outcome of a request counted that is about to be sent to a version, where that is a canary."""
        meter = self._meters.get((name, version))
        if meter is not None:
            request.reply = meter.told(request.reply)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return what was measured, by model; see `VersionMeter`."""
        return {name: meter.to_dict() for (name, _), meter in self._meters.items()}
