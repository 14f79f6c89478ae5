"""What shall run in the cluster: deployments, their models, their resources. Values only; the rules are in `plan`."""

from dataclasses import asdict, dataclass, field, replace

from protocol.by_name import ByName
from repository_loader.autoscaling import Autoscaling
from repository_loader.node_needs import ANY_NODE, NodeNeeds
from repository_loader.overrides import Placement, PlacementChoice, read_overrides
from repository_loader.package import InstanceSpec, ModelPackage
from repository_loader.serialisation import Json, package_to_dict

Place = tuple[str, str]
"""A Serve application and a deployment of it."""


@dataclass(frozen=True, slots=True)
class PlanSettings(ByName):
    """Choices of the operator; the model's own `eagleray.*` parameters come before them.

    A model takes `memory_factor` times its file plus `memory_base_bytes`, or `gpu_memory_base_bytes` on a GPU, where
    CUDA with the libraries took 590 to 740 MiB of an H100 for each process. `assumed_gpu_memory_bytes` stands in where
    the cluster does not tell. `gpu_headroom` is the share of a card's memory that stays free. `keep_packed` has the
    process that small models share run without one, so that the next is loaded at once.
    """

    placement: PlacementChoice = "auto"
    num_cpus_per_replica: float = 0.05
    memory_factor: float = 2.5
    memory_base_bytes: int = 256 << 20
    gpu_memory_base_bytes: int = 512 << 20
    assumed_gpu_memory_bytes: int = 16 << 30
    gpu_headroom: float = 0.2
    keep_packed: bool = False


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model version in one process: `specs` are the instances it has there, none for an ensemble.

    `dependencies` are the models of an ensemble's steps, `why` is the reason for the placement. One that is `leaving`
    serves here until the same version is ready in another place.
    """

    name: str
    version: int
    package: ModelPackage
    placement: Placement
    specs: tuple[InstanceSpec, ...]
    file_bytes: int
    dependencies: tuple[str, ...] = ()
    why: str = ""
    leaving: bool = False

    def to_dict(self) -> Json:
        """Return the plan as JSON values."""
        return {
            "name": self.name,
            "version": self.version,
            "package": package_to_dict(self.package),
            "placement": self.placement,
            "specs": [asdict(spec) for spec in self.specs],
            "file_bytes": self.file_bytes,
            "dependencies": list(self.dependencies),
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """One Serve deployment: `models` are in each of its `replica_count` replicas; resources are for one.

    `gpu` is the card, by its number in the cluster, that the replicas share; None on the CPU, and where each replica
    has several whole GPUs. A deployment that is a `spill` gets what the GPUs of the same model have no idle instance
    for. `needs` say on which nodes replicas may be. With `autoscaling`, `replica_count` is that of the start.
    """

    app_name: str
    name: str
    placement: Placement
    models: tuple[ModelPlan, ...]
    replica_count: int
    num_cpus: float
    num_gpus: float
    memory_bytes: int
    gpu: int | None = None
    spill: bool = False
    needs: NodeNeeds = ANY_NODE
    autoscaling: Autoscaling | None = None

    @property
    def place(self) -> Place:
        """Where it is found in Serve."""
        return self.app_name, self.name

    @property
    def device(self) -> str:
        """Say what one replica runs on, and what share of it is asked for: `0.25 of GPU 1`, `2 GPUs`, `CPU`."""
        if self.gpu is not None:
            return f"{self.num_gpus:g} of GPU {self.gpu}"
        return f"{self.num_gpus:g} GPUs" if self.num_gpus else "CPU"

    @property
    def reserved_memory_bytes(self) -> int:
        """Memory of a node that is reserved for one replica: what its models say they take; estimates reserve none."""
        if self.num_gpus:
            return 0
        return sum(read_overrides(model.package.config).memory_bytes or 0 for model in self.models)

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
            "gpu": self.gpu,
            "spill": self.spill,
            "accelerator_type": self.needs.accelerator_type,
            "node_labels": dict(self.needs.labels),
            "autoscaling": None if self.autoscaling is None else asdict(self.autoscaling),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that shall run: `embedded` models live in the ingress, `unplaced` ones nowhere (name to reason)."""

    deployments: tuple[DeploymentPlan, ...] = ()
    embedded: tuple[ModelPlan, ...] = ()
    unplaced: dict[str, str] = field(default_factory=dict)

    @property
    def models(self) -> tuple[ModelPlan, ...]:
        """Every model that runs, once for each of its places."""
        return (*self.embedded, *(model for deployment in self.deployments for model in deployment.models))

    @property
    def leaving(self) -> set[tuple[str, int]]:
        """The versions that serve where they were until they are ready elsewhere."""
        return {(model.name, model.version) for model in self.models if model.leaving}

    @property
    def serving(self) -> "Plan":
        """The plan without the versions that are still to be ready in their new places."""
        moving = self.leaving
        if not moving:
            return self

        def serve(models: tuple[ModelPlan, ...]) -> tuple[ModelPlan, ...]:
            return tuple(model for model in models if model.leaving or (model.name, model.version) not in moving)

        deployments = (replace(each, models=serve(each.models)) for each in self.deployments)
        return replace(self, deployments=tuple(deployments), embedded=serve(self.embedded))

    def to_dict(self) -> Json:
        """Return the plan as JSON values."""
        return {
            "deployments": [deployment.to_dict() for deployment in self.deployments],
            "embedded": [model.to_dict() for model in self.embedded],
            "unplaced": dict(self.unplaced),
        }
