"""What shall run in the cluster: deployments, their models, their resources. Values only; the rules are in `plan`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from repository_loader.overrides import Placement
from repository_loader.package import InstanceSpec, ModelPackage
from repository_loader.serialisation import (
    Json,
    package_from_dict,
    package_to_dict,
    spec_from_dict,
    spec_to_dict,
)


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Choices of the operator; the model's own `eagleray.*` parameters come before them.

    A model takes `memory_factor` times its file plus `memory_base_bytes`. `assumed_gpu_memory_bytes` stands in where
    the cluster does not tell.
    """

    placement: Placement = "isolated"
    num_cpus_per_replica: float = 0.05
    memory_factor: float = 2.5
    memory_base_bytes: int = 256 << 20
    assumed_gpu_memory_bytes: int = 16 << 30


@dataclass(frozen=True, slots=True)
class ClusterResources:
    """What the whole cluster has when nothing runs on it; `gpu_memory_bytes` is that of one GPU, 0 if unknown.

    `max_node_num_cpus` is the largest node's, which bounds one replica; 0 is unknown.
    """

    num_cpus: float
    num_gpus: int = 0
    gpu_memory_bytes: int = 0
    max_node_num_cpus: float = 0


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model version in one process: `specs` are the instances it has there, none for an ensemble.

    `dependencies` are the models of an ensemble's steps.
    """

    name: str
    version: int
    package: ModelPackage
    placement: Placement
    specs: tuple[InstanceSpec, ...]
    file_bytes: int
    dependencies: tuple[str, ...] = ()

    def to_dict(self) -> Json:
        """Return the plan as JSON values."""
        return {
            "name": self.name,
            "version": self.version,
            "package": package_to_dict(self.package),
            "placement": self.placement,
            "specs": [spec_to_dict(spec) for spec in self.specs],
            "file_bytes": self.file_bytes,
            "dependencies": list(self.dependencies),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelPlan":
        """Rebuild what `to_dict` took apart."""
        return cls(
            values["name"],
            values["version"],
            package_from_dict(values["package"]),
            values["placement"],
            tuple(map(spec_from_dict, values["specs"])),
            values["file_bytes"],
            tuple(values["dependencies"]),
        )


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """One Serve deployment: `models` are in each of its `replica_count` replicas; resources are for one."""

    app_name: str
    name: str
    placement: Placement
    models: tuple[ModelPlan, ...]
    replica_count: int
    num_cpus: float
    num_gpus: float
    memory_bytes: int

    def to_dict(self) -> Json:
        """Return the plan as JSON values."""
        return {
            "app_name": self.app_name,
            "name": self.name,
            "placement": self.placement,
            "models": [model.to_dict() for model in self.models],
            "replica_count": self.replica_count,
            "num_cpus": self.num_cpus,
            "num_gpus": self.num_gpus,
            "memory_bytes": self.memory_bytes,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "DeploymentPlan":
        """Rebuild what `to_dict` took apart."""
        return cls(**{**values, "models": tuple(map(ModelPlan.from_dict, values["models"]))})


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that shall run: `embedded` models live in the ingress, `unplaced` ones nowhere (name to reason)."""

    deployments: tuple[DeploymentPlan, ...] = ()
    embedded: tuple[ModelPlan, ...] = ()
    unplaced: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> Json:
        """Return the plan as JSON values."""
        return {
            "deployments": [deployment.to_dict() for deployment in self.deployments],
            "embedded": [model.to_dict() for model in self.embedded],
            "unplaced": dict(self.unplaced),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Plan":
        """Rebuild what `to_dict` took apart."""
        return cls(
            tuple(map(DeploymentPlan.from_dict, values["deployments"])),
            tuple(map(ModelPlan.from_dict, values["embedded"])),
            dict(values["unplaced"]),
        )
