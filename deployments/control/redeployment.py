"""What ran until Eagleray was deployed anew serves on until what the new deployment asks for is ready in its place."""

import secrets
from collections.abc import Mapping
from dataclasses import replace

from deployments.control.controller_options import ControllerOptions
from deployments.control.desired_state import Before, DesiredState, Trial, note_gone, replanned, with_revisions
from deployments.control.former_places import with_former
from repository_loader.deployment_plan import ModelPlan
from repository_loader.ensemble_graph import step_models
from repository_loader.plan import prune


def beside_what_ran(options: ControllerOptions, former: DesiredState, fresh: DesiredState) -> DesiredState:
    """Have models that run already, and now run otherwise or elsewhere, do so on trial.

    What of them does not load serves on as it did, with all that it is linked to by ensembles. What runs makes room
    where the cluster has none for both.

    Args:
        options: those of the new deployment.
        former: the state that was kept under other options.
        fresh: what was read and placed under the new ones.
    """
    former = _served(former)
    ran = [name for name in fresh.snapshot.models if fresh.runs(name) and former.runs(name)]
    if not ran:
        return fresh
    nonce = secrets.token_hex(4)
    before = former.snapshot.models
    models = {
        name: with_revisions(model, before[name], nonce) if name in ran else model
        for name, model in fresh.snapshot.models.items()
    }
    snapshot = replace(fresh.snapshot, models=models)
    placed = replace(former, facts=fresh.facts, plan=prune(former.plan, lambda model: model.name in ran))
    plan = replanned(options, placed, snapshot, models)
    if plan.unplaced.keys() - fresh.plan.unplaced.keys():  # for the sake of versions that go
        stay = {(name, package.version) for name in ran for package in models[name].packages}
        kept = prune(placed.plan, lambda model: (model.name, model.version) in stay)
        plan = replanned(options, replace(placed, plan=kept), snapshot, models)
    desired = replace(fresh, snapshot=snapshot, plan=plan)
    moved = {name for name, _ in plan.leaving}
    changed = {
        name: Before(before[name], former.origins.get(name))
        for name in ran
        if desired.runs(name) and (name in moved or models[name].packages != before[name].packages)
    }
    gone = {name: dict(reasons) for name, reasons in fresh.gone.items()}
    for name in changed:
        note_gone(gone, name, before[name], models[name])
    trials = tuple(Trial("", "", each, makes_room=True) for each in _linked(desired, changed))
    return replace(desired, gone=gone, trials=trials)


def _served(former: DesiredState) -> DesiredState:
    """Return a state without what was still on trial in it."""
    tried = former.on_trial
    served = {name: before.model for name, before in tried.items() if before.model is not None}
    models = {name: model for name, model in former.snapshot.models.items() if name not in tried} | served
    origins = {**former.origins, **{name: before.origin for name, before in tried.items() if before.origin is not None}}

    def ran(model: ModelPlan) -> bool:
        return model.name not in tried or (
            model.name in served and served[model.name].package(model.version) is not None
        )

    snapshot, plan = replace(former.snapshot, models=models), prune(with_former(former.plan, tried), ran)
    return replace(former, snapshot=snapshot, plan=plan, origins=origins, trials=())


def _linked(desired: DesiredState, changed: Mapping[str, Before]) -> list[dict[str, Before]]:
    """Return what has changed, by what is linked by ensembles."""
    groups: list[set[str]] = []
    for name, model in desired.snapshot.models.items():
        linked = {name, *(step_models(model.config) if model.config is not None else ())}
        together = [each for each in groups if not linked.isdisjoint(each)]
        groups = [each for each in groups if linked.isdisjoint(each)]
        groups.append(linked.union(*together))
    found = ({name: before for name, before in changed.items() if name in group} for group in groups)
    return [each for each in found if each]
