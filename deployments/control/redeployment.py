"""What ran until Eagleray was deployed anew serves on until what the new deployment asks for is ready in its place."""

import secrets
from collections.abc import Mapping
from dataclasses import replace

from deployments.control.controller_options import ControllerOptions
from deployments.control.desired_state import Before, DesiredState, Trial, replanned, with_revisions
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
    ran = [name for name in fresh.snapshot.models if fresh.runs(name) and former.runs(name)]
    if former.trials or not ran:  # of what was on trial nobody knows what serves
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
    desired = replace(fresh, snapshot=snapshot, plan=plan)
    moved = {name for name, _ in plan.leaving}
    changed = {
        name: Before(before[name], former.origins.get(name))
        for name in ran
        if desired.runs(name) and (name in moved or models[name].packages != before[name].packages)
    }
    return replace(desired, trials=tuple(Trial("", "", each, makes_room=True) for each in _linked(desired, changed)))


def _linked(desired: DesiredState, changed: Mapping[str, Before]) -> list[dict[str, Before]]:
    """Return what has changed, by what is linked by ensembles."""
    found: list[dict[str, Before]] = []
    for name, before in changed.items():
        config = desired.snapshot.models[name].config
        linked = {name, *(step_models(config) if config is not None else ()), *desired.dependents([name])}
        together = [each for each in found if not linked.isdisjoint(each)]
        found = [each for each in found if linked.isdisjoint(each)]
        found.append({known: row for each in together for known, row in each.items()} | {name: before})
    return found
