"""The models as this ingress sees them: what the controller's directory says, and which versions it can reach."""

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.control.directory import Directory, VersionEntry
from deployments.lane.fleet import Fleet
from deployments.lane.sink import Target
from deployments.replica.model_host import ModelHost


class Models:
    """The directory, beside the models that this process hosts and those that its lanes lead to."""

    def __init__(self, host: ModelHost, fleet: Fleet) -> None:
        self._host = host
        self._fleet = fleet
        self.directory = Directory()
        self.configs: dict[str, ModelConfig] = {}

    def set_directory(self, directory: Directory) -> None:
        """Take the controller's news."""
        self.directory = directory
        self.configs = {
            name: json_format.Parse(entry.config, ModelConfig(), ignore_unknown_fields=True)
            for name, entry in directory.models.items()
            if entry.config
        }

    def find(self, name: str, version: int) -> Target | None:
        """Return the target of one version; None when neither this process nor a lane has it."""
        return self._host.target(name, version) or self._fleet.target(name, version)

    def version_ready(self, name: str, version: int, entry: VersionEntry) -> bool:
        """Whether a version can be asked from here."""
        # What a replica failed to load, or an ensemble whose step failed, may have a lane all the same.
        if entry.failed:
            return False
        target = self.find(name, version)
        return target is not None and target.ready

    def ready_versions(self, name: str) -> list[int]:
        """Return the versions of a model that can be asked from here, in order; none for an unknown model."""
        entry = self.directory.models.get(name)
        if entry is None:
            return []
        return sorted(number for number, state in entry.versions.items() if self.version_ready(name, number, state))
