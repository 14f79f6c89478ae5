"""Models of other processes as an ingress finds them for the models that it hosts itself: it has lanes to all."""

from collections.abc import Callable, Mapping

from app.service.model_control import LoadRequest
from app.service.service import Service
from deployments.lane.fleet import Fleet
from deployments.replica.neighbours import Found
from protocol.signature import Signature


class IngressNeighbours:
    """The `Neighbours` of an ingress; it calls `know` with the signature of each model that it finds."""

    def __init__(self, service: Service, fleet: Fleet, know: Callable[[Mapping[str, Signature]], None]) -> None:
        self._service = service
        self._fleet = fleet
        self._know = know
        self._signatures: dict[str, tuple[str, Signature]] = {}

    def find(self, name: str, version: int, found: Found) -> None:
        """Tell the signature of a model version that takes requests, None when there is none."""
        target = self._fleet.target(name, version) or self._fleet.awaited(name, version)
        found(None if target is None else self._signature(name))

    def left(self, name: str, version: int) -> bool:
        """Whether the directory says that a model takes no requests; see `Neighbours`."""
        directory = self._service.models.directory
        if not directory.known:
            return False
        entry = directory.models.get(name)
        return entry is None or not entry.takes(version)

    def unloaded(self, name: str, version: int) -> bool:
        """Whether the directory says that a model was unloaded; see `Neighbours`."""
        entry = self._service.models.directory.models.get(name)
        return entry is not None and entry.is_unloaded(version)

    def sharing(self, name: str) -> int:
        """Return how many models share a name; see `Neighbours`."""
        return len(self._service.models.sharing(name))

    def _signature(self, name: str) -> Signature | None:
        entry = self._service.models.directory.models.get(name)
        if entry is None or entry.model_config is None:
            return None
        text, signature = self._signatures.get(name, ("", None))
        if signature is None or text != entry.config:
            signature = Signature.from_config(entry.model_config)
            self._signatures[name] = entry.config, signature
            self._know({name: signature})
        return signature

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load a model; see `Neighbours`."""
        await self._service.control.load(LoadRequest(name, config, files))

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Unload a model; see `Neighbours`."""
        await self._service.control.unload(name, unload_dependents)
