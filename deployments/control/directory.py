"""What the controller knows of every model, as the ingresses hear of it."""

from dataclasses import asdict, dataclass, field
from typing import Any

UNKNOWN = "UNKNOWN"
READY = "READY"
UNAVAILABLE = "UNAVAILABLE"
LOADING = "LOADING"
UNLOADING = "UNLOADING"


NO_REPLICA = "no replica is alive; Serve is replacing it"


@dataclass(slots=True)
class VersionEntry:
    """One version of a model: its state as Triton names it, where it runs and how long loading took.

    `replacing` says that it had been loaded, has lost every replica, and will be back when Serve has made new ones.
    """

    state: str = LOADING
    reason: str = ""
    placement: str = ""
    device: str = ""
    replicas: int = 0
    seconds: float = 0.0
    replacing: bool = False

    def loaded(self, reason: str, seconds: float) -> None:
        """Note that the version is ready, or why it is not."""
        self.state = UNAVAILABLE if reason else READY
        self.reason, self.seconds, self.replacing = reason, seconds, False

    @property
    def failed(self) -> bool:
        """Whether the version will not be ready by itself."""
        return self.state == UNAVAILABLE and not self.replacing


@dataclass(slots=True)
class ModelEntry:
    """One model: its completed configuration (ModelConfig as JSON, "" when it could not be read) and its versions.

    `reason` says why a model has no versions.
    """

    config: str = ""
    backend: str = ""
    reason: str = ""
    versions: dict[int, VersionEntry] = field(default_factory=dict)


@dataclass(slots=True)
class Directory:
    """Everything the controller tells: raised `generation` at every change, `settled` once all models were tried.

    `deployments` lists (application, deployment) of every group; `embedded` the models that an ingress hosts itself,
    as `HostedModel.to_dict` writes them.
    """

    generation: int = 0
    settled: bool = False
    models: dict[str, ModelEntry] = field(default_factory=dict)
    deployments: list[tuple[str, str]] = field(default_factory=list)
    embedded: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the directory as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Directory":
        """Rebuild a directory from `to_dict`."""
        models = {
            name: ModelEntry(
                model["config"],
                model["backend"],
                model["reason"],
                {int(version): VersionEntry(**entry) for version, entry in model["versions"].items()},
            )
            for name, model in data["models"].items()
        }
        deployments = [(app, deployment) for app, deployment in data["deployments"]]
        return cls(data["generation"], data["settled"], models, deployments, data["embedded"])
