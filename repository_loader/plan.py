"""Turns a snapshot into a plan: a pure function of repository, settings and cluster."""

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from urllib.parse import quote, unquote

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.auto_placement import place_automatically
from repository_loader.backend_traits import traits_of
from repository_loader.cluster_facts import ClusterFacts
from repository_loader.deployment_plan import DeploymentPlan, ModelPlan, Plan, PlanSettings
from repository_loader.device_parts import ANY_GPU, DevicePart, device_parts, in_one_process, own_processes
from repository_loader.ensemble_graph import step_models, without_step
from repository_loader.filled_batches import further_weights_bytes
from repository_loader.model_files import is_ensemble
from repository_loader.node_needs import NodeNeeds
from repository_loader.overrides import OverrideError, Overrides, Placement, read_overrides
from repository_loader.package import ModelPackage
from repository_loader.packed_asks import PackedAsks
from repository_loader.placement_order import placement_order
from repository_loader.python_based_backend import weights_bytes
from repository_loader.side_files import named_environment
from repository_loader.snapshot import RepositoryModel, Snapshot

PACKED_APP = "eagleray-packed"
PACKED_DEPLOYMENT = "models"
GPU_STEP = 0.01

_ITS_OWN = "eagleray-model-"
_WHOLE = 1e-6
_NONE: Mapping[str, str] = MappingProxyType({})
_PROCESS_BYTES = 64 << 20
"""Less than any replica takes."""
_REPLICA_BYTES = 100 << 20
"""What most replicas take besides their models."""
_ALONE = 0.5
"""The share of the memory that may go to replicas for no other reason than that models are better alone."""
_MAX_NAME_BYTES = 225
"""Of application and deployment together: Serve names log files after both, with 30 bytes more in all of 255."""


class _Unplaceable(Exception):
    """The cluster cannot hold the model."""


def app_name(model_name: str) -> str:
    """Return the name of the Serve application of a model: its own, unless Serve or Eagleray could take it for another.

    Different models have different names, and none has one of Eagleray's own (`eagleray`, `eagleray-packed`).
    """
    # Serve makes a logging format of the name, in which "%" would stand for something.
    safe = quote(model_name, safe=" -_.").replace("%", "=")
    return f"{_ITS_OWN}{safe}" if safe.startswith("eagleray") else safe


def model_of(app: str) -> str:
    """Return the model whose application it is: the inverse of `app_name`."""
    return unquote(app.removeprefix(_ITS_OWN).replace("=", "%"))


def make_plan(
    snapshot: Snapshot,
    settings: PlanSettings,
    facts: ClusterFacts,
    kept: Plan | None = None,
    again: Collection[str] = (),
    waits: Mapping[str, str] = _NONE,
    former: Plan | None = None,
) -> Plan:
    """Place every loadable model. Pure but for the sizes of model files, which it asks the disk for.

    Models that are in `kept` already stay where they are; the others get what is left, and so do those named in
    `again`, beside what `kept` still has of them. Those in `waits` get nothing, for these reasons. What was isolated in
    `former` comes first, lest it lose its place to another model that is placed again.
    """
    return _Planner(settings, facts, kept or Plan(), again).plan(snapshot, waits, former or Plan())


def prune(plan: Plan, keep: Callable[[ModelPlan], bool]) -> Plan:
    """Return a plan without the models that are not to be kept; deployments that lose all of theirs go too."""
    deployments = [
        replace(deployment, models=models)
        for deployment in plan.deployments
        if (models := tuple(filter(keep, deployment.models)))
    ]
    return replace(plan, deployments=tuple(deployments), embedded=tuple(filter(keep, plan.embedded)))


class _Planner:
    def __init__(self, settings: PlanSettings, facts: ClusterFacts, kept: Plan, again: Collection[str]) -> None:
        self._settings = settings
        self._facts = facts
        self._deployments: list[DeploymentPlan] = []
        self._packed: list[ModelPlan] = []
        self._embedded: list[ModelPlan] = list(kept.embedded)
        self._taken = [0.0] * facts.num_gpus
        self._taken_cpus = 0.0
        self._taken_memory_bytes = 0
        self._packed_asks = PackedAsks()
        # The CPUs and bytes that their replicas reserve; what is kept for them without models does too.
        self._packed_needs = (settings.num_cpus_per_replica if settings.keep_packed else 0.0, 0)
        self._kinds: dict[int, NodeNeeds] = {}
        self._ensembles: dict[str, str] = {}
        self._kept = {model.name for model in kept.embedded}
        for deployment in kept.deployments:
            self._kept.update(model.name for model in deployment.models)
            if deployment.placement == "packed":
                self._packed += deployment.models
                for model in deployment.models:
                    self._packed_asks = self._packed_asks.beside(read_overrides(model.package.config))
                self._packed_needs = self._packed_asks.needs(settings.num_cpus_per_replica)
            else:
                self._add(deployment)
        self._kept.difference_update(again)

    def plan(self, snapshot: Snapshot, waits: Mapping[str, str], former: Plan) -> Plan:
        unplaced = {name: reason for name, reason in waits.items() if name in snapshot.models}
        self._ensembles = self._packed_ensembles(snapshot)
        for model in placement_order(snapshot.models, former, self._facts.num_gpus):
            if not model.packages or model.name in self._kept or model.name in unplaced:
                continue
            before = (list(self._deployments), list(self._packed), list(self._embedded), list(self._taken))
            before_needs = (self._taken_cpus, self._taken_memory_bytes, dict(self._kinds))
            before_packed = (self._packed_asks, self._packed_needs)
            try:
                self._check_steps(model, unplaced)
                for package in model.packages:
                    self._place(package)
            except (_Unplaceable, OverrideError) as reason:
                self._deployments, self._packed, self._embedded, self._taken = before
                self._taken_cpus, self._taken_memory_bytes, self._kinds = before_needs
                self._packed_asks, self._packed_needs = before_packed
                unplaced[model.name] = str(reason)
        if self._packed or self._settings.keep_packed:
            self._deployments.append(self._packed_deployment())
        return Plan(
            tuple(sorted(self._deployments, key=_by_version)),
            tuple(sorted(self._embedded, key=lambda model: (model.name, model.version))),
            dict(sorted(unplaced.items())),
        )

    def _packed_ensembles(self, snapshot: Snapshot) -> dict[str, str]:
        """Return an ensemble that `auto` packs for each model that is a step of one."""
        found: dict[str, str] = {}
        for model in snapshot.models.values():
            config = model.packages[-1].config if model.packages else None
            if config is None or not is_ensemble(config):
                continue
            with contextlib.suppress(OverrideError):
                overrides = read_overrides(config)
                placement = overrides.placement or self._settings.placement
                if placement == "auto" and place_automatically(config, overrides, (), 0, "")[0] == "packed":
                    found |= dict.fromkeys(step_models(config), model.name)
        return found

    def _check_steps(self, model: RepositoryModel, unplaced: dict[str, str]) -> None:
        for step in step_models(model.packages[-1].config):
            if step in unplaced:
                raise _Unplaceable(without_step(model.name, step, unplaced[step]))

    def _place(self, package: ModelPackage) -> None:
        config = package.config
        overrides = read_overrides(config)
        parts = self._parts(config, overrides.needs)
        steps = step_models(config) if is_ensemble(config) else ()
        file_bytes = weights_bytes(package)
        placement, why = self._placement(config, overrides, parts, steps, file_bytes)
        model = ModelPlan(package.name, package.version, package, placement, (), file_bytes, steps, why)
        if placement == "isolated":
            self._isolate(model, parts, overrides)
            return
        specs = in_one_process(parts)
        if _shares_no_process(config, overrides, len(specs)):
            specs = own_processes(specs)
        model = replace(model, specs=specs)
        if placement == "packed":
            self._pack(model, overrides)
        else:
            self._embedded.append(model)

    def _pack(self, model: ModelPlan, overrides: Overrides) -> None:
        self._packed.append(model)
        asks, share = self._packed_asks.beside(overrides), self._settings.num_cpus_per_replica
        if len(self._packed) == 1 or asks != self._packed_asks:
            self._packed_asks, self._packed_needs = asks, (0.0, 0)
            self._check_memory(model.name, asks.replica_count, asks.memory_bytes)
            self._check_cpus(model.name, asks.replica_count, asks.cpus(share))
            self._packed_needs = asks.needs(share)

    def _placement(
        self,
        config: ModelConfig,
        overrides: Overrides,
        parts: Sequence[DevicePart],
        steps: Sequence[str],
        file_bytes: int,
    ) -> tuple[Placement, str]:
        for model in self._embedded:
            if model.name in steps and not model.leaving:
                return "embedded", f"only the ingress reaches its step '{model.name}'"
        wanted = overrides.placement or self._settings.placement
        if wanted == "auto":
            ensemble = self._ensembles.get(config.name, "")
            return place_automatically(config, overrides, parts, file_bytes, ensemble, room=self._has_room())
        on_gpu = any(part.gpu is not None for part in parts)
        if on_gpu and (wanted == "packed" or overrides.placement is None):
            return "isolated", "runs on a GPU"
        if wanted == "embedded" and config.HasField("sequence_batching"):
            return "packed", "each ingress would hold sequences of its own"
        return wanted, f"--placement {wanted}" if overrides.placement is None else "its configuration says so"

    def _has_room(self) -> bool:
        """Whether one replica more finds CPUs, beside the packed models, and those that are alone leave memory."""
        share, memory_bytes = self._settings.num_cpus_per_replica, self._facts.memory_bytes
        if self._free_cpus(max(self._packed_needs[0], share)) < share - _WHOLE:
            return False
        replicas = 1 + sum([deployment.replica_count for deployment in self._deployments])
        return not memory_bytes or replicas * _REPLICA_BYTES <= memory_bytes * _ALONE

    def _parts(self, config: ModelConfig, needs: NodeNeeds) -> list[DevicePart]:
        """Return the model's parts, all of which the cluster has the devices for."""
        parts = device_parts(config, self._facts.num_gpus)
        if needs:
            parts = self._on_such_nodes(config.name, parts, needs)
        gpus = [part.gpu for part in parts if part.gpu is not None]
        if gpus and not self._facts.num_gpus:
            raise _Unplaceable(f"model '{config.name}' needs a GPU and the cluster has none")
        if gpus and max(gpus) >= self._facts.num_gpus:
            raise _Unplaceable(
                f"model '{config.name}' needs {max(gpus) + 1} GPUs and the cluster has {self._facts.num_gpus}"
            )
        if traits_of(config).needs_gpu and any(part.gpu is None for part in parts):
            raise _Unplaceable(
                f"model '{config.name}' of backend '{config.backend}' runs on GPUs only, not on KIND_CPU"
            )
        if not parts:
            raise _Unplaceable(f"model '{config.name}' has no instance group that is not passive")
        return parts

    def _on_such_nodes(self, name: str, parts: list[DevicePart], needs: NodeNeeds) -> list[DevicePart]:
        """Return the parts where only some nodes will do: no more cards than those have."""
        nodes = needs.met_by(self._facts.nodes)
        if not nodes:
            raise _Unplaceable(f"model '{name}' needs a node with {needs} and the cluster has none")
        count = sum(node.num_gpus for node in nodes)
        on_gpus = [part for part in parts if part.gpu is not None]
        if on_gpus and not count:
            raise _Unplaceable(f"model '{name}' needs a GPU on a node with {needs} and the cluster has none")
        return [*on_gpus[:count], *(part for part in parts if part.gpu is None)]

    def _isolate(self, model: ModelPlan, parts: Sequence[DevicePart], overrides: Overrides) -> None:
        """Give each part a deployment; `eagleray.replicas` are divided among the GPUs."""
        on_gpus = [part for part in parts if part.gpu is not None]
        if overrides.autoscaling is not None and on_gpus:
            # Ray finds a place for each replica, on whatever card.
            on_gpus = [DevicePart(ANY_GPU, on_gpus[0].instances)]
            parts = [*on_gpus, *(part for part in parts if part.gpu is None)]
        for index, part in enumerate(on_gpus):
            replicas = overrides.replicas
            if replicas is not None:
                replicas = replicas // len(on_gpus) + (index < replicas % len(on_gpus))
            if replicas != 0:
                self._add_part(model, part, len(parts) > 1, replicas, overrides)
        for part in parts:
            if part.gpu is None:
                self._add_part(model, part, len(parts) > 1, overrides.replicas, overrides)

    def _add_part(
        self, model: ModelPlan, part: DevicePart, divided: bool, replicas: int | None, overrides: Overrides
    ) -> None:
        specs = part.instances
        apart = _needs_processes(model.package.config, overrides, len(specs))
        if apart:
            specs = own_processes(specs)
        replicas = replicas or 1
        scaled = None if divided and part.gpu is None else overrides.autoscaling
        if scaled is not None:
            replicas = max(1, scaled.min_replicas)
        memory_bytes = self._memory_bytes(model, overrides, on_gpu=part.gpu is not None)
        if part.gpu is None:
            self._check_memory(model.name, replicas, overrides.memory_bytes or 0)
        num_cpus = self._settings.num_cpus_per_replica if overrides.num_cpus is None else overrides.num_cpus
        self._check_cpus(model.name, replicas, num_cpus)
        num_gpus, gpu, suffix = 0.0, part.gpu, ""
        if gpu is not None:
            memory_bytes *= len(specs) if apart else 1
            num_gpus = self._share(model.name, memory_bytes, overrides)
            cards = self._find_gpu(model.name, gpu, replicas, num_gpus, overrides.needs)
            if scaled is not None and num_gpus and not self._free_gpus():
                raise _Unplaceable(f"model '{model.name}' needs a GPU for itself as it scales, of which 0 are free")
            gpu = cards if scaled is None else None
        if divided:
            suffix = "-cpu" if part.gpu is None else "-any" if part.gpu == ANY_GPU else f"-gpu{part.gpu}"
        application, deployment = app_name(model.name), f"v{model.version}{suffix}"
        if len(application) + len(deployment) > _MAX_NAME_BYTES:
            raise _Unplaceable(
                f"model '{model.name}' has too long a name for replicas of its own; shorten it, or have it 'packed'"
            )
        self._add(
            DeploymentPlan(
                application,
                deployment,
                "isolated",
                (replace(model, specs=specs),),
                replicas,
                num_cpus,
                num_gpus,
                memory_bytes,
                gpu,
                spill=divided and part.gpu is None,
                needs=overrides.needs,
                autoscaling=scaled,
            )
        )

    def _add(self, deployment: DeploymentPlan) -> None:
        self._deployments.append(deployment)
        num_cpus, memory_bytes = _needs_of(deployment)
        self._taken_cpus += num_cpus
        self._taken_memory_bytes += memory_bytes
        if deployment.gpu is not None:
            self._kinds[deployment.gpu] = deployment.needs
            if deployment.gpu < len(self._taken):
                self._taken[deployment.gpu] += deployment.num_gpus * deployment.replica_count
            return
        for gpu in self._free_gpus()[: math.ceil(deployment.num_gpus) * deployment.replica_count]:
            self._taken[gpu] = 1.0

    def _free_gpus(self) -> list[int]:
        """Return the GPUs that nothing is planned on, the last first."""
        return [gpu for gpu in reversed(range(len(self._taken))) if not self._taken[gpu]]

    def _packed_deployment(self) -> DeploymentPlan:
        """One replica holds every packed model; replicas are the most that any of them asks for."""
        models = sorted(self._packed, key=lambda model: (model.name, model.version))
        overrides = [read_overrides(model.package.config) for model in models]
        weights = sum(
            int(model.file_bytes * self._settings.memory_factor) if given.memory_bytes is None else given.memory_bytes
            for model, given in zip(models, overrides, strict=True)
        )
        return DeploymentPlan(
            PACKED_APP,
            PACKED_DEPLOYMENT,
            "packed",
            tuple(models),
            self._packed_asks.replica_count,
            self._packed_asks.cpus(self._settings.num_cpus_per_replica),
            0.0,
            self._settings.memory_base_bytes + weights,
        )

    def _memory_bytes(self, model: ModelPlan, overrides: Overrides, *, on_gpu: bool) -> int:
        if overrides.memory_bytes is not None:
            return overrides.memory_bytes
        if not model.specs and model.dependencies:
            return 0
        weights = int(model.file_bytes * self._settings.memory_factor)
        if not on_gpu:
            return weights + self._settings.memory_base_bytes
        package = model.package
        weights += further_weights_bytes(package.config, package.file_path)
        return weights + self._settings.gpu_memory_base_bytes

    def _share(self, name: str, memory_bytes: int, overrides: Overrides) -> float:
        """Return the share of a GPU for one replica: of the memory that is left beside the headroom."""
        if overrides.num_gpus is not None:
            return overrides.num_gpus
        gpu_memory = self._facts.gpu_memory_bytes or self._settings.assumed_gpu_memory_bytes
        if overrides.memory_bytes is not None and overrides.memory_bytes > gpu_memory:
            raise _Unplaceable(
                f"model '{name}' needs {memory_bytes} bytes of a GPU's memory and the smallest GPU has {gpu_memory}"
            )
        share = memory_bytes / (gpu_memory * (1 - self._settings.gpu_headroom))
        share = 1.0 if share >= 1 else max(GPU_STEP, math.ceil(round(share / GPU_STEP, 6)) * GPU_STEP)
        return round(share, 4)

    def _find_gpu(self, name: str, gpu: int, replicas: int, num_gpus: float, needs: NodeNeeds) -> int | None:
        """Return the GPU that carries the replicas, None where each of them has whole GPUs, which Ray then chooses."""
        count = self._facts.num_gpus
        if num_gpus > 1:
            needed, largest = math.ceil(num_gpus) * replicas, max(node.num_gpus for node in self._facts.nodes)
            if needed > count:
                raise _Unplaceable(f"model '{name}' needs {needed} GPUs and the cluster has {count}")
            if num_gpus > largest:
                raise _Unplaceable(
                    f"a replica of model '{name}' needs {num_gpus:g} GPUs and the largest node has {largest}"
                )
            if needed > len(self._free_gpus()):
                raise _Unplaceable(f"model '{name}' needs {needed} GPUs, of which {len(self._free_gpus())} are free")
            return None
        if gpu == ANY_GPU:
            fit = [number for number in range(count) if self._kinds.get(number, needs) == needs]
            if not fit:
                raise _Unplaceable(f"model '{name}' needs a GPU{_with(needs)}, of which 0 are free")
            gpu = min(fit, key=lambda number: (self._taken[number], number))
        if self._kinds.get(gpu, needs) != needs:
            taken = _with(self._kinds[gpu]) or " on any node"
            raise _Unplaceable(f"model '{name}' needs GPU {gpu}{_with(needs)}, which was taken{taken}")
        needed_share, left = num_gpus * replicas, 1 - self._taken[gpu]
        if needed_share > 1 + _WHOLE:
            raise _Unplaceable(f"model '{name}' needs {needed_share:g} of GPU {gpu}")
        if needed_share > left + _WHOLE:
            raise _Unplaceable(
                f"model '{name}' needs {needed_share:g} of GPU {gpu}, of which {max(left, 0):.2g} is free"
            )
        return gpu

    def _check_memory(self, name: str, replicas: int, memory_bytes: int) -> None:
        largest, total = self._facts.largest_node_memory_bytes, self._facts.memory_bytes
        if 0 < largest < memory_bytes:
            raise _Unplaceable(
                f"a replica of model '{name}' needs {memory_bytes} bytes of memory and the largest node has {largest}"
            )
        needed = replicas * max(memory_bytes, _PROCESS_BYTES)
        if replicas > 1 and 0 < total < needed:
            raise _Unplaceable(
                f"{replicas} replicas of model '{name}' need {needed} bytes of memory and the cluster has {total}"
            )
        free = total - self._taken_memory_bytes - self._packed_needs[1]
        needed = replicas * memory_bytes
        if needed and total and needed > free:
            raise _Unplaceable(f"model '{name}' needs {needed} bytes of memory and the cluster has {max(free, 0)} free")

    def _free_cpus(self, packed: float) -> float:
        """Return the CPUs that are left where the packed models take so many."""
        return self._facts.num_cpus - self._taken_cpus - packed

    def _check_cpus(self, name: str, replicas: int, num_cpus: float) -> None:
        """Refuse what the cluster cannot hold beside what is planned already."""
        largest, total = self._facts.largest_node_num_cpus, self._facts.num_cpus
        if num_cpus > largest:
            raise _Unplaceable(
                f"a replica of model '{name}' needs {num_cpus:g} CPUs and the largest node has {largest:g}"
            )
        if num_cpus * replicas > total:
            raise _Unplaceable(f"model '{name}' needs {num_cpus * replicas:g} CPUs and the cluster has {total:g}")
        free = self._free_cpus(self._packed_needs[0])
        if num_cpus * replicas > free + _WHOLE:
            raise _Unplaceable(
                f"model '{name}' needs {num_cpus * replicas:g} CPUs and the cluster has {max(0, round(free, 2)):g} free"
            )


def _needs_of(deployment: DeploymentPlan) -> tuple[float, int]:
    """Return the CPUs and the bytes of memory that all replicas reserve."""
    replicas = deployment.replica_count
    return deployment.num_cpus * replicas, deployment.reserved_memory_bytes * replicas


def _needs_processes(config: ModelConfig, overrides: Overrides, instance_count: int) -> bool:
    """Return whether the instances of a model get processes of their own in a replica that serves nothing else."""
    if is_ensemble(config) or traits_of(config).releases_gil:
        return False
    other_python = named_environment(config)
    return instance_count > 1 or bool(other_python) or overrides.execution_timeout_ms is not None


def _shares_no_process(config: ModelConfig, overrides: Overrides, instance_count: int) -> bool:
    """Return whether they do in a process that serves other models too.

    An operator who says that its code may run on the event loop says that it may run in that process.
    """
    if is_ensemble(config) or traits_of(config).releases_gil:
        return False
    return not overrides.inline or _needs_processes(config, overrides, instance_count)


def _with(needs: NodeNeeds) -> str:
    return f" on a node with {needs}" if needs else ""


def _by_version(deployment: DeploymentPlan) -> tuple[str, int, str]:
    return deployment.app_name, min((model.version for model in deployment.models), default=0), deployment.name
