"""How the versions of a model share its requests: shown, and changed on a client's wish."""

from collections.abc import Mapping
from typing import Any, Protocol

from app.service.models import Models
from protocol.errors import NotFound, Unavailable
from repository_loader.traffic import Traffic


class TrafficControl(Protocol):
    """Changes it for all ingresses."""

    async def change_traffic(self, name: str, given: Mapping[str, Any]) -> None:
        """Change it; see `TrafficCommands.change`."""
        ...


class TrafficService:
    """Traffic as this ingress knows it; `control` changes it."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self.control: TrafficControl | None = None

    def show(self, name: str) -> dict[str, Any]:
        """Return weights, the parts that ready versions get of them, copies, and the latest canary with its history.

        Raises:
            NotFound: no such model is loaded.
            InvalidArgument: several models have the name.
            Unavailable: nothing is known of any model yet.
        """
        self._require_one(name)
        entry = self._models.directory.models.get(name)
        if entry is None or not entry.versions:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        traffic = Traffic.from_dict(entry.traffic)
        shares = traffic.shares(self._models.ready_versions(name))
        shown = {str(version): share for version, share in sorted(shares.items())}
        return {"model": name, **traffic.to_dict(), "shares": shown, "canary": entry.traffic.get("canary")}

    async def change(self, name: str, given: Mapping[str, Any]) -> None:
        """Change it; returns when all ingresses go by it.

        Raises:
            ServingError: it stays as it is.
        """
        self._require_one(name)
        if self.control is None:
            raise Unavailable("traffic cannot be changed at present")
        await self.control.change_traffic(name, given)

    def _require_one(self, name: str) -> None:
        self._models.require_known()
        if ambiguity := self._models.ambiguity(name):
            raise ambiguity
