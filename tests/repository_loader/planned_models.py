"""Models and clusters to make plans of."""

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.cluster_facts import ClusterFacts, NodeFacts
from repository_loader.deployment_plan import DeploymentPlan, Plan, PlanSettings
from repository_loader.normalisation import normalise
from repository_loader.package import InstanceSpec, ModelPackage
from repository_loader.snapshot import RepositoryModel, Snapshot

GIB = 1 << 30
CPUS = ClusterFacts((NodeFacts(num_cpus=8),))
GPUS = ClusterFacts((NodeFacts(num_cpus=8, num_gpus=2, gpu_memory_bytes=16 * GIB),))
MIXED = ClusterFacts(
    (
        NodeFacts(8),
        NodeFacts(8, 1, accelerator_type="L4", gpu_memory_bytes=24 * GIB, labels=(("zone", "a"),)),
        NodeFacts(8, 2, accelerator_type="A100", gpu_memory_bytes=80 * GIB, labels=(("zone", "b"),)),
    )
)
ISOLATED = PlanSettings(placement="isolated")
ONNX, PYTHON = 'backend: "onnxruntime" ', 'backend: "python" '


def model(name: str, text: str = "", versions: tuple[int, ...] = (1,), gpu_count: int = 0) -> RepositoryModel:
    config = text_format.Parse(f'name: "{name}" {text}', ModelConfig())
    list(normalise(config, range(gpu_count)))
    packages = tuple(
        ModelPackage(name, version, config, f"/r/{name}", f"/r/{name}/{version}", "") for version in versions
    )
    return RepositoryModel(name, f"/r/{name}", config, packages, (), None)


def ensemble(name: str, *steps: str, more: str = "") -> RepositoryModel:
    listed = " ".join(f'step {{ model_name: "{step}" }}' for step in steps)
    return model(name, f'platform: "ensemble" ensemble_scheduling {{ {listed} }} {more}')


def snapshot(*models: RepositoryModel) -> Snapshot:
    return Snapshot({model.name: model for model in models})


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "eagleray.{key}" value {{ string_value: "{value}" }} }} '


def only(plan: Plan) -> DeploymentPlan:
    assert plan.unplaced == {}
    (deployment,) = plan.deployments
    return deployment


def cpu(*names: str) -> tuple[InstanceSpec, ...]:
    return tuple(InstanceSpec(name, "CPU", 0) for name in names)


def gpu(*names: str) -> tuple[InstanceSpec, ...]:
    return tuple(InstanceSpec(name, "GPU", 0) for name in names)
