"""Ensembles that each ingress hosts too, beside their replicas."""

from collections.abc import Iterator
from dataclasses import replace

from repository_loader.deployment_plan import ModelPlan, Plan
from repository_loader.overrides import Overrides, read_overrides
from repository_loader.traffic import NO_TRAFFIC


def copied_ensembles(plan: Plan) -> Iterator[ModelPlan]:
    """Yield the ensembles whose steps all run in other processes than their own.

    One is nothing but hops from step to step, so clients' requests save two of them when it runs where they arrive. Its
    replicas are for deployment handles and for models that call it. An ensemble with resources of its own, or with a
    bound of its own on what is under way, has them in its replicas only.
    """
    for deployment in plan.deployments:
        here = {model.name for model in deployment.models}
        for model in deployment.models:
            config = model.package.config
            if not model.dependencies or not here.isdisjoint(model.dependencies):
                continue
            chosen = replace(read_overrides(config), traffic=NO_TRAFFIC)
            if chosen == Overrides() and not config.ensemble_scheduling.max_inflight_requests:
                yield model
