"""What a cluster that can grow would have to have, for the models that wait: said to Ray's autoscaler."""

from collections.abc import Iterable, Iterator
from math import ceil
from typing import Final

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from repository_loader.cluster_facts import ClusterFacts
from repository_loader.deployment_plan import DeploymentPlan, Plan, PlanSettings
from repository_loader.overrides import OverrideError, read_overrides
from repository_loader.snapshot import Snapshot

MAX_BUNDLES = 10_000
_SHARE: Final = PlanSettings().num_cpus_per_replica
"""Of a CPU, for a model that does not say how much."""

Bundle = dict[str, float]


def demand(snapshot: Snapshot, plan: Plan, facts: ClusterFacts) -> list[Bundle]:
    """Return the bundles that must fit into the cluster at once, those of what runs included; none if nothing waits.

    Only models that a larger cluster would hold count: those with a part on GPUs, those that ask for CPUs, and where
    there is no CPU, any.
    """
    waiting = [
        model.config
        for name, model in snapshot.models.items()
        if model.config is not None and (name in plan.unplaced or model.failure)
    ]
    cards = 0
    bundles: list[Bundle] = []
    for config in waiting:
        try:
            overrides = read_overrides(config)
        except OverrideError:
            continue
        replicas = overrides.replicas or 1
        listed = _gpus(config)
        needs = overrides.needs.resources()
        if listed is not None and (overrides.num_gpus or 0) > 1:
            bundles += [{"GPU": ceil(overrides.num_gpus or 0), **needs}] * replicas
        elif listed is not None:
            cards = max(cards, max(listed, default=facts.num_gpus) + 1)
            bundles += [{"GPU": 1, **needs}] if needs else []
        elif config.name in plan.unplaced and (cpus := overrides.num_cpus or (0 if facts.num_cpus else _SHARE)):
            bundles += [{"CPU": cpus}] * replicas
    if not cards and not bundles:
        return []
    card: Bundle = {"GPU": 1}
    return [*([card] * cards), *bundles, *_of_running(plan.deployments)][:MAX_BUNDLES]


def _gpus(config: ModelConfig) -> list[int] | None:
    """Return the GPUs that a model lists, empty for any of them; None when it runs on none."""
    groups = [group for group in config.instance_group if not group.passive]
    kinds = {ModelInstanceGroup.Kind.Name(group.kind) for group in groups}
    if not kinds & {"KIND_GPU", "KIND_MODEL"}:
        return None
    listed = [gpu for group in groups for gpu in group.gpus]
    return listed if listed or "KIND_GPU" not in kinds else [0]


def _of_running(deployments: Iterable[DeploymentPlan]) -> Iterator[Bundle]:
    for deployment in deployments:
        bundle: Bundle = {"CPU": deployment.num_cpus} if deployment.num_cpus else {}
        if deployment.gpu is None and deployment.num_gpus:
            bundle["GPU"] = deployment.num_gpus
        yield from [bundle] * (deployment.replica_count if bundle else 0)
