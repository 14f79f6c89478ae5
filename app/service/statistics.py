"""What the models have done, summed over their replicas."""

from typing import Any

from app.service.models import Models
from deployments.core.statistics import merge
from deployments.lane.fleet import Fleet
from deployments.replica.model_host import ModelHost
from protocol.errors import InvalidArgument


class Statistics:
    """Asks the replicas, and this process's own models."""

    def __init__(self, models: Models, host: ModelHost, fleet: Fleet) -> None:
        self._models = models
        self._host = host
        self._fleet = fleet

    async def snapshots(self) -> list[dict[str, Any]]:
        """Return the statistics of every ready model version, summed over its replicas."""
        by_version: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for snapshots in (self._host.snapshot(), *await self._fleet.snapshots()):
            for snapshot in snapshots:
                by_version.setdefault((snapshot["name"], snapshot["version"]), []).append(snapshot)
        return [merge(by_version[key]) for key in sorted(by_version) if self._is_served(*key)]

    def _is_served(self, name: str, version: str) -> bool:
        # An ensemble whose step failed is loaded all the same.
        return int(version) in self._models.ready_versions(name)

    async def of(self, name: str = "", version: int = -1) -> list[dict[str, Any]]:
        """Return Triton's statistics of one model or all.

        Raises:
            InvalidArgument: the model or version is not there (Triton's code for it).
        """
        if name:
            ready = self._models.ready_versions(name)
            if not ready:
                raise InvalidArgument(f"requested model '{name}' is not available")
            if version != -1 and version not in ready:
                raise InvalidArgument(f"requested model version is not available for model '{name}'")
        rows = []
        for snapshot in await self.snapshots():
            if name and (snapshot["name"] != name or (version != -1 and snapshot["version"] != str(version))):
                continue
            rows.append({key: value for key, value in snapshot.items() if key != "metrics"})
        return rows
