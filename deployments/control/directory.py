"""What a follower of the controller knows of every model, and how it takes the controller's news."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.traffic import Traffic

READY = "READY"
UNAVAILABLE = "UNAVAILABLE"
LOADING = "LOADING"
UNLOADING = "UNLOADING"


TABLES: Final = ("models", "deployments", "embedded", "copies", "client_state")
"""What the controller publishes, see `Directory`."""

NO_REPLICA = "no replica is alive; Serve is replacing it"
UNLOADED = "unloaded"
RENAMED = "runs under another name"
"""Why a version is left under its former one: since another repository has that too, or has it no longer."""
TRIED_AGAIN = "; it is tried again"


@dataclass(slots=True)
class VersionEntry:
    """One version of a model: its state as Triton names it, where it runs and how long loading took.

    `replacing` says that it has no replica, as it has lost every one or there was no room for any, and will be ready
    when Serve has made new ones; `fails_to_start` that new ones have failed to start, or the first no room; `held`
    that it gets no requests before the whole change that it is part of has succeeded, or as that has failed and what
    served before serves on; `stepless` that it is an ensemble one of whose steps was unloaded; `long_gone` that it was
    unloaded an hour ago or earlier.
    """

    state: str = LOADING
    reason: str = ""
    placement: str = ""
    device: str = ""
    replicas: int = 0
    seconds: float = 0.0
    replacing: bool = False
    fails_to_start: bool = False
    held: bool = False
    stepless: bool = False
    long_gone: bool = False

    def loaded(self, reason: str, seconds: float) -> None:
        """Note that the version is ready, or why it is not."""
        self.state = UNAVAILABLE if reason else READY
        self.reason, self.seconds, self.held = reason, seconds, False
        self.replacing = self.fails_to_start = False

    def failed_to_load(self, reason: str) -> None:
        """Note why the version will not be ready by itself."""
        self.state, self.reason = UNAVAILABLE, reason
        self.replacing = self.fails_to_start = False

    def failed_this_time(self, reason: str) -> None:
        """Note why a version that had been ready is not, and that it is tried again."""
        self.state, self.reason = UNAVAILABLE, f"{reason}{TRIED_AGAIN}"
        self.replacing, self.fails_to_start = True, False

    def lost_its_replicas(self, cause: str = "") -> None:
        """Note that the version will be ready when Serve has replaced its replicas, and why that fails, if it does."""
        reason = f"{NO_REPLICA}, but the last one failed to start: {cause}" if cause else NO_REPLICA
        self.state, self.reason = UNAVAILABLE, reason
        self.replacing, self.fails_to_start = True, bool(cause)

    def finds_no_room(self, reason: str, *, lost: bool = False) -> None:
        """Note that the version will be ready when there is room for a replica, and what that needs.

        It may have `lost` its last one: a load of it that changes nothing then leaves it alone, as one that fails would
        end it.
        """
        self.state, self.reason = UNAVAILABLE, reason
        self.replacing, self.fails_to_start = True, not lost

    @property
    def failed(self) -> bool:
        """Whether the version will not be ready by itself."""
        return self.state == UNAVAILABLE and not self.replacing

    @property
    def left(self) -> bool:
        """Whether the version was loaded and shall not be any more, or cannot be for that reason."""
        without_fault = self.stepless or self.reason in (UNLOADED, RENAMED)
        return self.state == UNLOADING or (self.state == UNAVAILABLE and without_fault)

    @property
    def taken(self) -> bool:
        """Whether requests for the version are taken as far as there are replicas."""
        return not (self.failed or self.held or self.left)

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as plain data."""
        return {name: getattr(self, name) for name in VersionEntry.__slots__}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "VersionEntry":
        """Rebuild an entry from `to_dict`; what a controller of another version tells besides is left out."""
        return cls(**{name: data[name] for name in VersionEntry.__slots__ if name in data})


@dataclass(slots=True)
class ModelEntry:
    """One model: its completed configuration (ModelConfig as JSON, "" when it could not be read) and its versions.

    `config` is that of the highest version; `other_configs` are those of versions whose files complete it otherwise.
    `reason` says why a model has no versions; one that was never to be loaded has neither. `traffic` is `Traffic` as
    plain data, and what there is of canaries; empty where the highest version gets everything. With
    `--model-namespacing`, `namespace` is the path or address of its repository. `removed` says that no repository has
    the model any more, and that nothing of it runs.
    """

    config: str = ""
    backend: str = ""
    reason: str = ""
    versions: dict[int, VersionEntry] = field(default_factory=dict)
    traffic: Mapping[str, Any] = field(default_factory=dict)
    namespace: str = ""
    removed: bool = False
    other_configs: Mapping[int, str] = field(default_factory=dict)
    _parsed: ModelConfig | None = field(default=None, repr=False, compare=False)

    @property
    def model_config(self) -> ModelConfig | None:
        """The configuration, parsed when it is first asked for (some 0.7 ms); None when it could not be read."""
        if self._parsed is None and self.config:
            self._parsed = _parse(self.config)
        return self._parsed

    def config_of(self, version: int) -> ModelConfig | None:
        """Return the configuration of one version; None when it could not be read."""
        other = self.other_configs.get(version)
        return self.model_config if other is None else _parse(other)

    def takes(self, version: int) -> bool:
        """Whether a version (-1: any) takes requests."""
        return any(version in (-1, number) for number in self.taken_versions())

    def is_unloaded(self, version: int) -> bool:
        """Whether a version (-1: all) was loaded and shall not be any more; not of one that was never there."""
        asked = [state for number, state in self.versions.items() if version in (-1, number)]
        return bool(asked) and all([state.left for state in asked])

    def taken_versions(self) -> list[int]:
        """Return the versions that take requests."""
        return [number for number, state in self.versions.items() if state.taken]

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as plain data."""
        versions = {str(number): version.to_dict() for number, version in self.versions.items()}
        return {
            "config": self.config,
            "backend": self.backend,
            "reason": self.reason,
            "versions": versions,
            "traffic": self.traffic,
            "namespace": self.namespace,
            "removed": self.removed,
            "other_configs": {str(number): config for number, config in self.other_configs.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], known: "ModelEntry | None") -> "ModelEntry":
        """Rebuild an entry from `to_dict`; what is `known` of the model spares parsing an unchanged configuration.

        A controller of another version may tell less than this one, or more.
        """
        versions = {int(number): VersionEntry.from_dict(version) for number, version in data["versions"].items()}
        parsed = known._parsed if known is not None and known.config == data["config"] else None
        others = {int(number): config for number, config in data.get("other_configs", {}).items()}
        later = data.get("traffic", {}), data.get("namespace", ""), data.get("removed", False), others
        return cls(data["config"], data["backend"], data["reason"], versions, *later, parsed)


def _parse(config: str) -> ModelConfig:
    return json_format.Parse(config, ModelConfig(), ignore_unknown_fields=True)


@dataclass(slots=True)
class Directory:
    """Everything the controller has told so far.

    `epoch` is the controller's own, "" before it has told anything, and `generation` counts its changes. `settled`
    says that all models were tried, and stays when others come. `deployments` are (application, deployment) of every
    group, `hosted` the names of the models of each; `embedded` the models that an ingress hosts itself, as
    `HostedModel.to_dict` writes them, by name and version; `copies` ensembles that it hosts beside their replicas, in
    the same form; `client_state` what clients have set for all ingresses. `unread` says why nothing is known yet, where
    a repository cannot be read, or takes long to be.
    """

    epoch: str = ""
    generation: int = -1
    settled: bool = False
    models: dict[str, ModelEntry] = field(default_factory=dict)
    deployments: dict[str, tuple[str, str]] = field(default_factory=dict)
    hosted: dict[str, list[str]] = field(default_factory=dict)
    embedded: dict[str, dict[str, Any]] = field(default_factory=dict)
    copies: dict[str, dict[str, Any]] = field(default_factory=dict)
    client_state: dict[str, Any] = field(default_factory=dict)
    unread: str = ""

    @property
    def known(self) -> bool:
        """Whether the controller has told anything yet."""
        return bool(self.epoch)

    @property
    def taken(self) -> set[tuple[str, int]]:
        """The versions that take requests, each with the name of its model."""
        return {(name, version) for name, entry in self.models.items() for version in entry.taken_versions()}

    @property
    def traffic(self) -> dict[str, Traffic]:
        """How the versions of models share the requests that name none; of those only that have weights or a shadow."""
        return {name: Traffic.from_dict(entry.traffic) for name, entry in self.models.items() if entry.traffic}

    def take(self, news: Mapping[str, Any]) -> None:
        """Take what `RepositoryController.watch` returned: the news, or only why there is none of any model."""
        self.unread = news.get("unread", "")
        if self.unread:
            return
        self.epoch, self.generation = news["epoch"], news["generation"]
        self.settled = self.settled or news["settled"]
        tables = {name: news["tables"].get(name, {}) for name in TABLES}  # of another version, there may be others
        models = {
            name: None if row is None else ModelEntry.from_dict(row, self.models.get(name))
            for name, row in tables["models"].items()
        }
        deployments = {key: None if row is None else (row[0], row[1]) for key, row in tables["deployments"].items()}
        _merge(self.models, models, news["full"])
        hosted = {
            key: None if row is None else row[2] if len(row) > 2 else [row[0]]
            for key, row in tables["deployments"].items()
        }
        _merge(self.deployments, deployments, news["full"])
        _merge(self.hosted, hosted, news["full"])
        _merge(self.embedded, tables["embedded"], news["full"])
        _merge(self.copies, tables["copies"], news["full"])
        _merge(self.client_state, tables["client_state"], news["full"])

    def ask_for_all(self) -> None:
        """Have the next news be everything, after an error left in doubt what was taken."""
        self.generation = -1


def _merge(known: dict[str, Any], rows: Mapping[str, Any], full: bool) -> None:
    if full:
        known.clear()
    for key, row in rows.items():
        if row is None:
            known.pop(key, None)
        else:
            known[key] = row
