"""Where models ran that a change puts elsewhere: they serve there until they are ready in their new places.

A version that is loaded anew in its place is changed there by its replicas. One that goes to another place (packed, and
now isolated, say) is in the plan twice as long as that is on trial, once as `leaving`.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from repository_loader.plan import ClusterFacts, ModelPlan, Plan

Version = tuple[str, int]
_Place = tuple[str, str]
_INGRESS: Final[_Place] = ("", "")
_WHOLE: Final = 1e-6


def beside_former(
    before: Plan, new: Collection[Version], stays: Plan, facts: ClusterFacts, make: Callable[[Plan], Plan]
) -> Plan:
    """Return a plan for versions that are to be loaded, beside what ran of them in other places.

    Where the cluster may have no room for both, what ran goes first.

    Args:
        before: the plan until now.
        new: the versions that are placed anew.
        stays: what of `before` stays in any case.
        facts: the cluster.
        make: makes a plan beside what stays.
    """
    plan = make(stays)
    places = _places(plan)
    deployments = [
        replace(deployment, models=left)
        for deployment in before.deployments
        if (left := _left(deployment.models, (deployment.app_name, deployment.name), new, places))
    ]
    embedded = _left(before.embedded, _INGRESS, new, places)
    if not deployments and not embedded:
        return plan
    both = make(replace(stays, deployments=(*stays.deployments, *deployments), embedded=(*stays.embedded, *embedded)))
    alike = both.unplaced == plan.unplaced and _places(both) == places
    return both if alike and _has_room(both, facts) else plan


def leaving(plan: Plan) -> set[Version]:
    """Return the versions that serve where they were until they are ready elsewhere."""
    models = (*plan.embedded, *(model for deployment in plan.deployments for model in deployment.models))
    return {(model.name, model.version) for model in models if model.leaving}


def returned(plan: Plan, stay: Callable[[ModelPlan], bool]) -> Plan:
    """Return a plan in which those that stay leave no longer."""

    def each(model: ModelPlan) -> ModelPlan:
        return replace(model, leaving=False) if model.leaving and stay(model) else model

    deployments = tuple(
        replace(deployment, models=tuple(map(each, deployment.models))) for deployment in plan.deployments
    )
    return replace(plan, deployments=deployments, embedded=tuple(map(each, plan.embedded)))


def _left(
    models: tuple[ModelPlan, ...], place: _Place, new: Collection[Version], places: dict[Version, set[_Place]]
) -> tuple[ModelPlan, ...]:
    """Return those of the models in a place that are placed anew, and in other places."""
    return tuple(
        replace(model, leaving=True)
        for model in models
        if (key := (model.name, model.version)) in new and key in places and place not in places[key]
    )


def _has_room(plan: Plan, facts: ClusterFacts) -> bool:
    """Whether all replicas, as many as there may be, find a node with the CPUs and the memory that they reserve."""
    free = [(node.num_cpus, node.memory_bytes or math.inf) for node in facts.nodes]
    for deployment in sorted(plan.deployments, key=lambda each: -each.num_cpus):
        nodes = [place for place, node in enumerate(facts.nodes) if deployment.needs.met_by((node,))]
        scaled = deployment.autoscaling
        for _ in range(deployment.replica_count if scaled is None else scaled.max_replicas):
            for node in nodes:
                cpus, memory_bytes = free[node]
                left = cpus - deployment.num_cpus, memory_bytes - deployment.reserved_memory_bytes
                if min(left) > -_WHOLE:
                    free[node] = left
                    break
            else:
                return False
    return True


def _places(plan: Plan) -> dict[Version, set[_Place]]:
    found: dict[Version, set[_Place]] = {}
    for deployment in plan.deployments:
        for model in deployment.models:
            if not model.leaving:
                found.setdefault((model.name, model.version), set()).add((deployment.app_name, deployment.name))
    for model in plan.embedded:
        if not model.leaving:
            found.setdefault((model.name, model.version), set()).add(_INGRESS)
    return found
