"""Ensembles that each ingress hosts too, beside their replicas."""

from collections.abc import Iterator
from dataclasses import replace

from repository_loader.deployment_plan import ModelPlan, Plan
from repository_loader.overrides import Overrides, read_overrides
from repository_loader.traffic import NO_TRAFFIC


def copied_ensembles(plan: Plan) -> Iterator[ModelPlan]:
    """Yield the ensembles whose steps all run in other processes than their own, and those that have an embedded step.

    One is nothing but hops from step to step, so clients' requests save two of them when it runs where they arrive. Its
    replicas are for deployment handles and for models that call it. An ensemble with resources of its own, or with a
    bound of its own on what is under way, has them in its replicas only, unless just the ingress reaches a step.
    """
    plan = plan.serving
    embedded = {model.name for model in plan.embedded}
    for deployment in plan.deployments:
        here = {model.name for model in deployment.models}
        for model in deployment.models:
            if not embedded.isdisjoint(model.dependencies) or (
                model.dependencies and here.isdisjoint(model.dependencies) and not _has_its_own(model)
            ):
                yield model


def _has_its_own(model: ModelPlan) -> bool:
    config = model.package.config
    chosen = replace(read_overrides(config), traffic=NO_TRAFFIC)
    return chosen != Overrides() or bool(config.ensemble_scheduling.max_inflight_requests)
