"""What runs the new versions of models that are on trial."""

from collections.abc import Iterable

from deployments.control.desired_state import DesiredState, Trial
from deployments.control.former_places import Version
from repository_loader.deployment_plan import DeploymentPlan, ModelPlan, Place


def tried_parts(desired: DesiredState, trial: Trial) -> Iterable[tuple[DeploymentPlan | None, ModelPlan]]:
    """Yield the new versions of a trial, each with the deployment that runs it, None for what ingresses host."""

    def new(model: ModelPlan) -> bool:
        tried = model.name in trial.before and not model.leaving
        return tried and model.package in desired.snapshot.models[model.name].packages

    for deployment in desired.plan.deployments:
        yield from ((deployment, model) for model in filter(new, deployment.models))
    yield from ((None, model) for model in filter(new, desired.plan.embedded))


def tried(desired: DesiredState) -> set[Place]:
    """Return the deployments of new versions that are on trial."""
    found = (part for trial in desired.trials for part in tried_parts(desired, trial))
    return {deployment.place for deployment, _ in found if deployment is not None}


def may_come_back(desired: DesiredState) -> dict[Version, str]:
    """Return the versions that change on trial, and the revisions that are wanted again where something else fails.

    What is tried in one process alone has not taken the place of anything when it fails.
    """
    if not desired.trials:
        return {}
    trials = {name: number for number, trial in enumerate(desired.trials) for name in trial.before}
    process_counts = [0] * len(desired.trials)
    formers: dict[Version, tuple[int, str]] = {}
    plan, before = desired.plan, desired.on_trial
    places = [(deployment, model) for deployment in plan.deployments for model in deployment.models]
    for deployment, model in [*places, *((None, model) for model in plan.embedded)]:
        if model.leaving or model.name not in trials:
            continue
        ran = before[model.name].model
        former = None if ran is None else ran.package(model.version)
        if former != model.package:
            process_counts[trials[model.name]] += _process_count(deployment)
            if former is not None:
                formers[model.name, model.version] = trials[model.name], former.revision
    return {version: revision for version, (number, revision) in formers.items() if process_counts[number] > 1}


def _process_count(deployment: DeploymentPlan | None) -> int:
    """Return how many processes run a version, 2 where there may be several."""
    return 2 if deployment is None or deployment.autoscaling is not None else deployment.replica_count
