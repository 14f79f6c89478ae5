"""What the server and its models are: Triton's metadata, configuration and repository index."""

from typing import Any

from app.service.example_body import example_body
from app.service.health import UNREADY
from app.service.models import Models
from app.service.routing import Routing
from deployments.control.directory import LOADING, READY, RENAMED, UNAVAILABLE, VersionEntry
from protocol.model_metadata import model_metadata, server_metadata


class Metadata:
    """Describes the server by `server_id` and `version`, and every model of the directory."""

    def __init__(self, server_id: str, version: str, models: Models, routing: Routing) -> None:
        self._server_id = server_id
        self._version = version
        self._models = models
        self._routing = routing

    def server(self) -> dict[str, Any]:
        """Return the server's metadata."""
        return server_metadata(self._server_id, self._version)

    def model(self, name: str, version: int = -1) -> dict[str, Any]:
        """Return a model's metadata with its ready versions, or with the one that is asked for."""
        self._routing.target(name, version)
        versions = [version] if version != -1 else self._models.ready_versions(name)
        config = self._models.config(name, versions[-1])
        assert config is not None  # a model that has a target has a configuration
        return model_metadata(config, versions)

    def config(self, name: str, version: int = -1) -> bytes:
        """Return a model's completed configuration as JSON: of the version asked for, or the highest that is ready."""
        self._routing.target(name, version)
        entry = self._models.directory.models[name]
        shown = version if version != -1 else self._models.ready_versions(name)[-1]
        return entry.other_configs.get(shown, entry.config).encode()

    def examples(self) -> list[dict[str, Any]]:
        """Return, for each model with a ready version, its name and a small body that it answers, or None."""
        rows: list[dict[str, Any]] = []
        for name, entry in sorted(self._models.directory.models.items()):
            if entry.config and self._models.ready_versions(name):
                rows.append({"model": name, "body": example_body(entry.config)})
        return rows

    def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        """Return the repository index: every model and version with its state and the reason for it.

        Raises:
            Unavailable: nothing is known of any model yet.
        """
        self._models.require_known()
        rows: list[dict[str, str]] = []
        for name, entry in sorted(self._models.directory.models.items()):
            if entry.removed:
                continue
            shown = self._models.plain_name(name)
            if not entry.versions and not ready_only:
                row = {"name": shown}
                if entry.reason:
                    row |= {"version": "1", "state": UNAVAILABLE, "reason": entry.reason}
                rows.append(row)
            for number, version in sorted(entry.versions.items()):
                if version.reason == RENAMED:
                    continue
                state, reason = self.state(name, number, version)
                if state == READY or not ready_only:
                    row = {"name": shown, "version": str(number), "state": state}
                    rows.append(row | {"reason": reason} if reason else row)
        return rows

    def state(self, name: str, number: int, version: VersionEntry) -> tuple[str, str]:
        """Return the state of a model version as seen from here, and the reason for it."""
        if version.state == READY and not self._models.version_ready(name, number, version):
            if self._models.loads_here(name, number):
                return LOADING, ""
            return UNAVAILABLE, self._models.fault(name, number)
        if version.state == READY and not self._models.says_ready(name, number):
            return UNAVAILABLE, UNREADY
        return version.state, version.reason
