"""Turns a snapshot into a plan: a pure function of repository, settings and cluster."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from repository_loader.backend_traits import traits_of
from repository_loader.deployment_plan import ClusterResources, DeploymentPlan, ModelPlan, Plan, PlanSettings
from repository_loader.ensemble_graph import step_models
from repository_loader.model_files import files_bytes, is_ensemble
from repository_loader.overrides import OverrideError, Overrides, Placement, read_overrides
from repository_loader.package import InstanceSpec
from repository_loader.snapshot import RepositoryModel, Snapshot

__all__ = ["ClusterResources", "DeploymentPlan", "ModelPlan", "Plan", "PlanSettings", "app_name", "make_plan"]

PACKED_APP = "eagleray-packed"
PACKED_DEPLOYMENT = "models"
GPU_STEP = 0.05


class _Unplaceable(Exception):
    """No cluster of this size can hold the model."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The instances of a model version on one kind of device: what one GPU, or the CPU, carries.

    `instances` are all of them there; `device_count` is the number of GPUs, 1 for the CPU.
    """

    on_gpu: bool
    instances: tuple[InstanceSpec, ...]
    device_count: int


def app_name(model_name: str) -> str:
    """Return the name of the Serve application of a model: its own, unless Serve or Eagleray could take it for another.

    Different models have different names, and none has one of Eagleray's own (`eagleray`, `eagleray-packed`).
    """
    safe = quote(model_name, safe=" -_.")
    return f"eagleray-model-{safe}" if safe.startswith("eagleray") else safe


def make_plan(snapshot: Snapshot, settings: PlanSettings, resources: ClusterResources) -> Plan:
    """Place every loadable model. Pure but for the sizes of model files, which it asks the disk for."""
    return _Planner(settings, resources).plan(snapshot)


class _Planner:
    def __init__(self, settings: PlanSettings, resources: ClusterResources) -> None:
        self._settings = settings
        self._resources = resources
        self._deployments: list[DeploymentPlan] = []
        self._packed: list[tuple[ModelPlan, Overrides]] = []
        self._embedded: list[ModelPlan] = []

    def plan(self, snapshot: Snapshot) -> Plan:
        unplaced: dict[str, str] = {}
        for model in _dependencies_first(snapshot.models):
            if not model.packages:
                continue
            try:
                self._check_steps(model, unplaced)
                deployments, packed, embedded = self._place(model)
            except (_Unplaceable, OverrideError) as reason:
                unplaced[model.name] = str(reason)
                continue
            self._deployments += deployments
            self._packed += packed
            self._embedded += embedded
        if self._packed:
            self._deployments.append(self._packed_deployment())
        return Plan(
            tuple(sorted(self._deployments, key=_by_version)),
            tuple(sorted(self._embedded, key=lambda model: (model.name, model.version))),
            dict(sorted(unplaced.items())),
        )

    def _check_steps(self, model: RepositoryModel, unplaced: dict[str, str]) -> None:
        for step in step_models(model.packages[-1].config):
            if step in unplaced:
                raise _Unplaceable(
                    f"ensemble '{model.name}' depends on '{step}' which has no loaded version. "
                    f"Model '{step}' loading failed with error: {unplaced[step]}"
                )

    def _place(
        self, model: RepositoryModel
    ) -> tuple[list[DeploymentPlan], list[tuple[ModelPlan, Overrides]], list[ModelPlan]]:
        deployments: list[DeploymentPlan] = []
        packed: list[tuple[ModelPlan, Overrides]] = []
        embedded: list[ModelPlan] = []
        for package in model.packages:
            overrides = read_overrides(package.config)
            parts = self._parts(package.config)
            steps = step_models(package.config) if is_ensemble(package.config) else ()
            placement = self._placement(overrides, parts, steps)
            base = ModelPlan(
                package.name,
                package.version,
                package,
                placement,
                (),
                files_bytes(package.file_path) if package.file_path else 0,
                steps,
            )
            if placement == "isolated":
                for part in parts:
                    deployments.append(self._isolated(base, part, len(parts) > 1, overrides))
                continue
            specs = tuple(spec for part in parts for spec in _on_every_device(part))
            plan = replace(base, specs=specs)
            if placement == "packed":
                packed.append((plan, overrides))
            else:
                embedded.append(plan)
        return deployments, packed, embedded

    def _placement(self, overrides: Overrides, parts: Sequence[_Part], steps: Sequence[str]) -> Placement:
        # Only the ingress itself can reach what is embedded in it.
        if any(model.name in steps for model in self._embedded):
            return "embedded"
        wanted = overrides.placement or self._settings.placement
        on_gpu = any(part.on_gpu for part in parts)
        if on_gpu and (wanted == "packed" or overrides.placement is None):
            return "isolated"
        return wanted

    def _parts(self, config: ModelConfig) -> list[_Part]:
        """Divide a model's instances by the kind of device; an ensemble is one part without instances."""
        if is_ensemble(config):
            return [_Part(False, (), 1)]
        gpu_specs: list[InstanceSpec] = []
        cpu_specs: list[InstanceSpec] = []
        devices = 1
        for group in config.instance_group:
            if group.passive:
                continue
            kind = ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_")
            on_gpu = kind == "GPU" or (kind == "MODEL" and self._resources.num_gpus > 0)
            if kind == "GPU":
                devices = max(devices, len(set(group.gpus)))
            listed = gpu_specs if on_gpu else cpu_specs
            listed.extend(InstanceSpec(f"{group.name}_{index}", kind, 0) for index in range(group.count))
        if gpu_specs and self._resources.num_gpus == 0:
            raise _Unplaceable(f"model '{config.name}' needs a GPU and the cluster has none")
        if gpu_specs and devices > self._resources.num_gpus:
            raise _Unplaceable(
                f"model '{config.name}' needs {devices} GPUs and the cluster has {self._resources.num_gpus}"
            )
        if cpu_specs and traits_of(config.backend).needs_gpu:
            raise _Unplaceable(
                f"model '{config.name}' of backend '{config.backend}' runs on GPUs only, not on KIND_CPU"
            )
        if not gpu_specs and not cpu_specs:
            raise _Unplaceable(f"model '{config.name}' has no instance group that is not passive")
        parts = (_Part(True, tuple(gpu_specs), devices), _Part(False, tuple(cpu_specs), 1))
        return [part for part in parts if part.instances]

    def _isolated(self, base: ModelPlan, part: _Part, divided: bool, overrides: Overrides) -> DeploymentPlan:
        shared = traits_of(base.package.config.backend).releases_gil or not part.instances
        specs = part.instances if shared else part.instances[:1]
        replicas = part.device_count * (1 if shared else len(part.instances))
        memory = self._memory_bytes(base, overrides)
        num_gpus = self._num_gpus(part, shared, memory, overrides) if part.on_gpu else 0.0
        replicas = overrides.replicas or replicas
        self._check_fits(base.name, replicas, num_gpus, self._num_cpus(overrides))
        suffix = ("-gpu" if part.on_gpu else "-cpu") if divided else ""
        return DeploymentPlan(
            app_name(base.name),
            f"v{base.version}{suffix}",
            "isolated",
            (replace(base, specs=specs),),
            replicas,
            self._num_cpus(overrides),
            num_gpus,
            memory,
        )

    def _packed_deployment(self) -> DeploymentPlan:
        """One replica holds every packed model; replicas are the most that any of them asks for."""
        models = sorted((model for model, _ in self._packed), key=lambda model: (model.name, model.version))
        overrides = [given for _, given in self._packed]
        asked = sum(given.num_cpus or 0.0 for given in overrides)
        return DeploymentPlan(
            PACKED_APP,
            PACKED_DEPLOYMENT,
            "packed",
            tuple(models),
            max(given.replicas or 1 for given in overrides),
            max(self._settings.num_cpus_per_replica, round(asked, 4)),
            0.0,
            sum(self._memory_bytes(model, given) for model, given in self._packed),
        )

    def _num_cpus(self, overrides: Overrides) -> float:
        return self._settings.num_cpus_per_replica if overrides.num_cpus is None else overrides.num_cpus

    def _memory_bytes(self, model: ModelPlan, overrides: Overrides) -> int:
        if overrides.memory_bytes is not None:
            return overrides.memory_bytes
        if not model.specs and model.dependencies:
            return 0
        return int(model.file_bytes * self._settings.memory_factor) + self._settings.memory_base_bytes

    def _num_gpus(self, part: _Part, shared: bool, memory_bytes: int, overrides: Overrides) -> float:
        """Return the share of a GPU for one replica.

        Replicas that must share a GPU, because each holds one instance, never ask for more than it has together.
        """
        if overrides.num_gpus is not None:
            return overrides.num_gpus
        per_gpu = 1 if shared else len(part.instances)
        gpu_memory = self._resources.gpu_memory_bytes or self._settings.assumed_gpu_memory_bytes
        share = memory_bytes / gpu_memory
        share = 1.0 if share >= 1 else max(GPU_STEP, math.ceil(round(share / GPU_STEP, 6)) * GPU_STEP)
        return round(min(share, math.floor(10_000 / per_gpu) / 10_000), 4)

    def _check_fits(self, name: str, replicas: int, num_gpus: float, num_cpus: float) -> None:
        """Refuse what the cluster could not hold even if nothing else ran on it."""
        cluster = self._resources
        if num_gpus > 0:
            per_gpu = math.floor(round(1 / num_gpus, 6)) if num_gpus < 1 else 1
            needed = math.ceil(replicas / per_gpu) if num_gpus < 1 else math.ceil(num_gpus) * replicas
            if needed > cluster.num_gpus:
                raise _Unplaceable(f"model '{name}' needs {needed} GPUs and the cluster has {cluster.num_gpus}")
        largest = cluster.max_node_num_cpus or cluster.num_cpus
        if num_cpus > largest:
            raise _Unplaceable(
                f"a replica of model '{name}' needs {num_cpus:g} CPUs and the largest node has {largest:g}"
            )
        if num_cpus * replicas > cluster.num_cpus:
            raise _Unplaceable(
                f"model '{name}' needs {num_cpus * replicas:g} CPUs and the cluster has {cluster.num_cpus:g}"
            )


def _by_version(deployment: DeploymentPlan) -> tuple[str, int, str]:
    return deployment.app_name, deployment.models[0].version, deployment.name


def _on_every_device(part: _Part) -> Iterator[InstanceSpec]:
    """Return the instances of one process that sees every GPU itself."""
    for device in range(part.device_count):
        for spec in part.instances:
            name = spec.name if device == 0 else f"{spec.name}_gpu{device}"
            yield replace(spec, name=name, device=device)


def _dependencies_first(models: dict[str, RepositoryModel]) -> Iterator[RepositoryModel]:
    """Yield models so that an ensemble comes after the models of its steps; cycles have no packages by now."""
    done: set[str] = set()
    for root in sorted(models):
        stack = [root]
        opened: set[str] = set()
        while stack:
            model = models[stack[-1]]
            opened.add(model.name)
            steps = step_models(model.packages[-1].config) if model.packages else ()
            waiting = [name for name in steps if name in models and name not in done and name not in opened]
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            if model.name not in done:
                done.add(model.name)
                yield model
