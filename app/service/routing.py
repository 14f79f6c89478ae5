"""Where a request goes, or Triton's words for why it goes nowhere."""

from collections.abc import Callable, Collection
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from app.service.models import Models
from app.traffic.model_traffic import ModelTraffic
from deployments.control.directory import ModelEntry
from deployments.core.refusals import Refusals
from deployments.lane.remote_regions import ClientRegions
from deployments.lane.sink import Target
from protocol.errors import NotFound, ServingError, Unavailable, Unsupported
from protocol.model_metadata import model_metadata
from protocol.model_version import checked_version

DECOUPLED_BY_HTTP: Final = "HTTP end point doesn't support models with decoupled transaction policy"


class Routing:
    """Finds the target of a request by the model's name and version (-1: the model's traffic says which).

    Clients' requests go to what `traced` makes of it.
    """

    def __init__(self, models: Models, refusals: Refusals, regions: ClientRegions | None = None) -> None:
        self._models = models
        self._refusals = refusals
        self._regions = regions
        self._traffic: dict[str, ModelTraffic] = {}
        self.traced: Callable[[str, Target], Target] = _untraced

    def resolve(self, quoted_name: bytes, version: int) -> Target:
        """Return the target of an inference request by HTTP.

        Raises:
            InvalidArgument: the name is that of models in several repositories, or the version is too large for one.
            NotFound: unknown model or version, or a model without versions.
            Unavailable: the version is known but not ready, or nothing is known of any model yet.
            Unsupported: the model is decoupled.
        """
        name = unquote_to_bytes(quoted_name).decode("utf-8", "replace")
        target = self.infer_target(name, checked_version(version))
        if self.decoupled(name):
            raise Unsupported(DECOUPLED_BY_HTTP)
        return target

    def resolve_generate(self, quoted_name: bytes, version: int) -> tuple[Target, list[dict[str, Any]], bool]:
        """Return the target of a generate request, the model's inputs as in its metadata, and if it is decoupled."""
        name = unquote_to_bytes(quoted_name).decode("utf-8", "replace")
        target = self.infer_target(name, checked_version(version))
        config = self._models.config(name, target.version)
        assert config is not None  # a model that has a target has a configuration
        inputs: list[dict[str, Any]] = model_metadata(config, [target.version])["inputs"]
        return target, inputs, self.decoupled(name)

    def infer_target(self, name: str, version: int = -1) -> Target:
        """Return where to send a request for inference, and count it if it goes nowhere; raises as `resolve`.

        One for a model whose last replica died waits for the next.
        """
        try:
            return self.traced(name, self.target(name, version))
        except Unavailable as error:
            entry = self._models.directory.models.get(name)
            awaited = self._awaited(name, version, entry)
            if awaited is not None:
                return self.traced(name, awaited)
            if entry is not None and entry.versions:
                self._refusals.count(name, _preferred(entry.versions, entry) if version == -1 else version, error)
            raise

    def target(self, name: str, version: int = -1) -> Target:
        """Return where to send a request for a model version; raises as `resolve`."""
        found = None
        entry = self._models.directory.models.get(name)
        if entry is not None:
            found = self._shared(name, entry) if version == -1 else self._one(name, version, entry)
        else:
            self._traffic.pop(name, None)
        if found is None or not found.ready:
            raise self._why_not(name, version)
        return found

    def _awaited(self, name: str, version: int, entry: ModelEntry | None) -> Target | None:
        """Return where requests wait for a replica in place of one that died; the version is the one they would get."""
        taken = () if entry is None else entry.taken_versions()
        awaited = [number for number in taken if version in (-1, number) and self._models.awaited(name, number)]
        return self._models.awaited(name, _preferred(awaited, entry)) if entry and awaited else None

    def _one(self, name: str, version: int, entry: ModelEntry) -> Target | None:
        """Return where requests that name a version go; a replica may have it though it takes none."""
        return self._models.find(name, version) if entry.takes(version) else None

    def _shared(self, name: str, entry: ModelEntry) -> Target | None:
        """Return where requests that name no version go."""
        ready = self._models.ready_versions(name)
        config = entry.model_config
        traffic = self._traffic.get(name)
        if config is None or not (entry.traffic or (traffic is not None and traffic.has_sequences)):
            self._traffic.pop(name, None)
            return self._models.find(name, max(ready)) if ready else None
        if traffic is None:
            traffic = self._traffic[name] = ModelTraffic(name, config, self._refusals.rows, self._regions)
        traffic.take(entry.traffic)
        targets = ((version, self._models.find(name, version)) for version in ready)
        return traffic.target({version: target for version, target in targets if target is not None})

    def measurements(self) -> dict[str, dict[str, Any]]:
        """Return what was measured of the versions that are on trial as canaries, by model; see `VersionMeter`."""
        return {name: meter.to_dict() for name, each in self._traffic.items() for meter in each.meters.values()}

    def _why_not(self, name: str, version: int) -> ServingError:
        self._models.require_known()
        entry = self._models.directory.models.get(name)
        if ambiguity := self._models.ambiguity(name):
            return ambiguity
        if entry is None or not (entry.versions or entry.reason):
            return NotFound(f"Request for unknown model: '{name}' is not found")
        if version == -1:
            if all(state.failed or state.left for state in entry.versions.values()):
                return NotFound(f"Request for unknown model: '{name}' has no available versions")
            version = _preferred(entry.versions, entry)
        if version not in entry.versions:
            return NotFound(f"Request for unknown model: '{name}' version {version} is not found")
        refusal = self._models.refusal(name)
        why = f": {refusal}" if refusal else ""
        return Unavailable(f"Request for unknown model: '{name}' version {version} is not at ready state{why}")

    def decoupled(self, name: str) -> bool:
        """Whether a model answers a request with any number of responses; False for an unknown one."""
        config = self._models.config(name)
        return config is not None and config.model_transaction_policy.decoupled


def _preferred(versions: Collection[int], entry: ModelEntry) -> int:
    """Return the highest version that has a weight, or the highest where none has one."""
    weights = entry.traffic.get("weights", {})
    return max((number for number in versions if weights.get(str(number))), default=max(versions))


def _untraced(name: str, target: Target) -> Target:
    return target
