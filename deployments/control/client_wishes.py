"""What clients have asked for, in a form that other code reads too: whoever is deployed anew goes on with that."""

from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.control.controller_options import ControllerOptions
from deployments.control.desired_state import DesiredState
from deployments.control.directory import UNLOADED
from repository_loader.repository import normalised
from repository_loader.snapshot import Override
from repository_loader.traffic import Traffic


@dataclass(frozen=True, slots=True)
class ClientWishes:
    """The models that are loaded by name, with what takes the place of their files, and those that were unloaded.

    `traffic` is what commands, or a canary's last step, have said of models. `repositories` are those that models are
    loaded from, with names by folder, `given` those of them that were not registered by clients. `asked` is the
    `load_models` of who has kept all this, None where that is not known.
    """

    loaded: Mapping[str, Override | None] = field(default_factory=dict)
    unloaded: Collection[str] = frozenset()
    traffic: Mapping[str, Traffic] = field(default_factory=dict)
    repositories: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    given: Collection[str] = frozenset()
    asked: Collection[str] | None = None

    @classmethod
    def of(cls, desired: DesiredState, options: ControllerOptions) -> "ClientWishes":
        """Return what a state knows of them; models and repositories are a matter of clients in explicit mode only."""
        if options.control_mode != "explicit":
            return cls(traffic=desired.given_traffic, asked=options.load_models)
        left = {name for name, reasons in desired.gone.items() if set(reasons.values()) == {UNLOADED}}
        return cls(
            {name: origin.override for name, origin in desired.origins.items() if origin.explicit},
            left - desired.snapshot.models.keys(),
            desired.given_traffic,
            desired.repositories,
            {normalised(path) for path in options.repositories},
            options.load_models,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "loaded": {name: None if each is None else _override_row(each) for name, each in self.loaded.items()},
            "unloaded": sorted(self.unloaded),
            "traffic": {name: traffic.to_dict() for name, traffic in self.traffic.items()},
            "repositories": {path: dict(names) for path, names in self.repositories.items()},
            "given": sorted(self.given),
            "asked": None if self.asked is None else list(self.asked),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ClientWishes":
        """Read `to_dict`'s form, in which later versions may have more."""
        return cls(
            {name: None if row is None else _override(row) for name, row in data["loaded"].items()},
            frozenset(data["unloaded"]),
            {name: Traffic.from_dict(row) for name, row in data["traffic"].items()},
            data["repositories"],
            frozenset(data["given"]),
            data.get("asked"),
        )

    @property
    def registered(self) -> list[str]:
        """The repositories that clients have registered."""
        return [path for path in self.repositories if path not in self.given]


def _override_row(override: Override) -> dict[str, str]:
    config = b64encode(override.config.SerializeToString()).decode()
    return {"config": config, "model_path": override.model_path}


def _override(row: Mapping[str, str]) -> Override:
    return Override(ModelConfig.FromString(b64decode(row["config"])), row["model_path"])
