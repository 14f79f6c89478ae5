"""Where a request goes, or Triton's words for why it goes nowhere."""

from typing import Any
from urllib.parse import unquote_to_bytes

from app.service.models import Models
from deployments.core.refusals import Refusals
from deployments.lane.sink import Target
from protocol.errors import NotFound, Unavailable, Unsupported
from protocol.model_metadata import model_metadata


class Routing:
    """Finds the target of a request by the model's name and version (-1: the highest that is ready)."""

    def __init__(self, models: Models, refusals: Refusals) -> None:
        self._models = models
        self._refusals = refusals

    def resolve(self, quoted_name: bytes, version: int) -> Target:
        """Return the target of an inference request by HTTP.

        Raises:
            NotFound: unknown model or version, or a model without versions.
            Unavailable: the version is known but not ready, or nothing is known of any model yet.
            Unsupported: the model is decoupled.
        """
        name = unquote_to_bytes(quoted_name).decode("utf-8", "replace")
        if self.decoupled(name):
            raise Unsupported("HTTP end point doesn't support models with decoupled transaction policy")
        return self.infer_target(name, version)

    def resolve_generate(self, quoted_name: bytes, version: int) -> tuple[Target, list[dict[str, Any]]]:
        """Return the target of a generate request, and the model's inputs as its metadata lists them."""
        name = unquote_to_bytes(quoted_name).decode("utf-8", "replace")
        target = self.infer_target(name, version)
        config = self._models.config(name)
        assert config is not None  # a model that has a target has a configuration
        inputs: list[dict[str, Any]] = model_metadata(config, [target.version])["inputs"]
        return target, inputs

    def infer_target(self, name: str, version: int = -1) -> Target:
        """Return where to send a request for inference, and count it if it goes nowhere; raises as `resolve`."""
        try:
            return self.target(name, version)
        except Unavailable as error:
            entry = self._models.directory.models.get(name)
            if entry is not None and entry.versions:
                self._refusals.count(name, max(entry.versions) if version == -1 else version, error)
            raise

    def target(self, name: str, version: int = -1) -> Target:
        """Return where to send a request for a model version; raises as `resolve`."""
        found = None
        if name in self._models.directory.models:
            wanted = version if version != -1 else max(self._models.ready_versions(name), default=-1)
            found = self._models.find(name, wanted) if wanted != -1 else None
        if found is None or not found.ready:
            raise self._why_not(name, version)
        return found

    def _why_not(self, name: str, version: int) -> NotFound | Unavailable:
        self._models.require_known()
        entry = self._models.directory.models.get(name)
        if entry is None or not (entry.versions or entry.reason):
            return NotFound(f"Request for unknown model: '{name}' is not found")
        if version == -1:
            if all(state.failed or state.left for state in entry.versions.values()):
                return NotFound(f"Request for unknown model: '{name}' has no available versions")
            version = max(entry.versions)
        if version not in entry.versions:
            return NotFound(f"Request for unknown model: '{name}' version {version} is not found")
        return Unavailable(f"Request for unknown model: '{name}' version {version} is not at ready state")

    def decoupled(self, name: str) -> bool:
        """Whether a model answers a request with any number of responses; False for an unknown one."""
        config = self._models.config(name)
        return config is not None and config.model_transaction_policy.decoupled
