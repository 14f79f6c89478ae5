"""Where models ran that a change puts elsewhere: they serve there until they are ready in their new places.

A version that is loaded anew in its place is changed there by its replicas. One that goes to another place (packed, and
now isolated, say) is in the plan twice as long as that is on trial, once as `leaving`. One that keeps one of its places
serves there meanwhile.
"""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Final

from repository_loader.cluster_facts import ClusterFacts
from repository_loader.deployment_plan import DeploymentPlan, ModelPlan, Place, Plan
from repository_loader.plan import prune

Version = tuple[str, int]
_INGRESS: Final[Place] = ("", "")
_WHOLE: Final = 1e-6


def beside_former(
    before: Plan, new: Collection[Version], stays: Plan, facts: ClusterFacts, make: Callable[[Plan], Plan]
) -> Plan:
    """Return a plan for versions that are to be loaded, beside what ran of those that go elsewhere.

    Where the cluster may have no room for both, what ran goes first.

    Args:
        before: the plan until now.
        new: the versions that are placed anew.
        stays: what of `before` stays in any case.
        facts: the cluster.
        make: makes a plan beside what stays.
    """
    plan = make(stays)
    were, places = _places(before), _places(plan)
    moved = {key for key in new if key in were and key in places and were[key].isdisjoint(places[key])}
    if not moved:
        return plan
    former = _marked(prune(before, lambda model: _version(model) in moved), moved, leaving=True)
    deployments, embedded = (*stays.deployments, *former.deployments), (*stays.embedded, *former.embedded)
    both = make(replace(stays, deployments=deployments, embedded=embedded))
    alike = both.unplaced == plan.unplaced and _places(both) == places
    return both if alike and has_room(before, both, facts) else plan


def without_former(plan: Plan, names: Collection[str]) -> Plan:
    """Return a plan in which the models are in their new places alone."""
    return prune(plan, lambda model: not model.leaving or model.name not in names)


def with_former(plan: Plan, names: Collection[str]) -> Plan:
    """Return a plan in which the models that leave stay where they are, and are nowhere else."""
    back = {version for version in plan.leaving if version[0] in names}
    return _marked(prune(plan, lambda model: model.leaving or _version(model) not in back), back, leaving=False)


def _marked(plan: Plan, versions: Collection[Version], *, leaving: bool) -> Plan:
    def each(model: ModelPlan) -> ModelPlan:
        return replace(model, leaving=leaving) if _version(model) in versions else model

    deployments = tuple(
        replace(deployment, models=tuple(map(each, deployment.models))) for deployment in plan.deployments
    )
    return replace(plan, deployments=deployments, embedded=tuple(map(each, plan.embedded)))


def _version(model: ModelPlan) -> Version:
    return model.name, model.version


def has_room(before: Plan, plan: Plan, facts: ClusterFacts) -> bool:
    """Whether all replicas, as many as there may be, find the CPUs, the memory and the GPUs that they reserve.

    Those of a deployment that reserves other amounts from now on go only once Serve has started their successors.
    """
    sizes = {_size(deployment) for deployment in plan.deployments}
    replaced = [deployment for deployment in before.deployments if _size(deployment) not in sizes]
    both = (*plan.deployments, *replaced)
    return _have_nodes(both, facts) and _have_gpus(both, facts)


def _have_nodes(deployments: Iterable[DeploymentPlan], facts: ClusterFacts) -> bool:
    free = [(node.num_cpus, node.memory_bytes or math.inf) for node in facts.nodes]
    for deployment in sorted(deployments, key=lambda each: -each.num_cpus):
        nodes = [place for place, node in enumerate(facts.nodes) if deployment.needs.met_by((node,))]
        num_cpus, reserved_bytes = deployment.num_cpus, deployment.reserved_memory_bytes
        for _ in range(_most_replicas(deployment)):
            for node in nodes:
                cpus, memory_bytes = free[node]
                left = cpus - num_cpus, memory_bytes - reserved_bytes
                if min(left) > -_WHOLE:
                    free[node] = left
                    break
            else:
                return False
    return True


def _have_gpus(deployments: Iterable[DeploymentPlan], facts: ClusterFacts) -> bool:
    cards: dict[int, float] = {}
    others = 0
    for deployment in deployments:
        share, replicas = deployment.num_gpus, _most_replicas(deployment)
        if deployment.gpu is not None:
            cards[deployment.gpu] = cards.get(deployment.gpu, 0.0) + share * replicas
        elif share:
            others += math.ceil(share) * replicas if share > 1 else math.ceil(replicas / math.floor(1 / share + _WHOLE))
    return max(cards.values(), default=0.0) <= 1 + _WHOLE and len(cards) + others <= facts.num_gpus


def _most_replicas(deployment: DeploymentPlan) -> int:
    return deployment.replica_count if deployment.autoscaling is None else deployment.autoscaling.max_replicas


def _size(deployment: DeploymentPlan) -> tuple[str, str, float, int, float, int | None]:
    reserved = deployment.num_cpus, deployment.reserved_memory_bytes, deployment.num_gpus
    return deployment.app_name, deployment.name, *reserved, deployment.gpu


def _places(plan: Plan) -> dict[Version, set[Place]]:
    found: dict[Version, set[Place]] = {}
    for deployment in plan.deployments:
        for model in deployment.models:
            if not model.leaving:
                found.setdefault(_version(model), set()).add(deployment.place)
    for model in plan.embedded:
        if not model.leaving:
            found.setdefault(_version(model), set()).add(_INGRESS)
    return found
