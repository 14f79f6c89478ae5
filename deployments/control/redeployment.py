"""What ran until Eagleray was deployed anew serves on until what the new deployment asks for is ready in its place."""

import logging
import secrets
from collections.abc import Collection, Iterator
from dataclasses import replace

from deployments.control.controller_options import ControllerOptions
from deployments.control.desired_state import (
    Before,
    DesiredState,
    Origin,
    Trial,
    replanned,
    reverted,
    with_revisions,
    with_steps,
)
from deployments.control.gone_versions import left_out
from deployments.control.postponed import Postponed, reasons_of, waiting_ensembles
from repository_loader.deployment_plan import Plan
from repository_loader.ensemble_graph import linked
from repository_loader.plan import make_plan, prune
from repository_loader.snapshot import Snapshot

logger = logging.getLogger(__name__)


def beside_what_ran(options: ControllerOptions, former: DesiredState, fresh: DesiredState) -> DesiredState:
    """Have models that run already, and now run otherwise or elsewhere, do so on trial.

    What of them does not load serves on as it did, with all that it is linked to by ensembles. What runs makes room
    where the cluster has none for both. What cannot be read any more, or has no place, is postponed, unless that would
    leave others no place.

    Args:
        options: those of the new deployment.
        former: the state that was kept under other options.
        fresh: what was read and placed under the new ones.
    """
    former = _served(options, former)
    # Again, as only now it is known what was isolated: that keeps its place where there is not room for all.
    fresh = replace(fresh, plan=make_plan(fresh.snapshot, options.plan, fresh.facts, former=former.plan))
    nonce = secrets.token_hex(4)
    postponed = tuple(_postponed(options, former, fresh, nonce))
    for some in (postponed, tuple(group for group in postponed if not group.can_be_read), ()):
        desired = _beside(options, former, fresh, some, nonce)
        if desired.plan.unplaced.keys() <= fresh.plan.unplaced.keys():
            break
    for name, reason in reasons_of(desired.postponed).items():
        logger.error("'%s' serves on as it is: %s", name, reason)
    return desired


def _beside(
    options: ControllerOptions,
    former: DesiredState,
    fresh: DesiredState,
    postponed: tuple[Postponed, ...],
    nonce: str,
) -> DesiredState:
    """Return the new state with these models postponed, and all others on trial that ran and change."""
    stay = {name for group in postponed for name in (*group.models, *group.steps)}
    ran = {name for name in fresh.snapshot.models if fresh.runs(name) and former.runs(name)} - stay
    if not ran and not stay:
        return fresh
    before = former.snapshot.models
    models = {
        name: with_revisions(model, before[name], nonce) if name in ran else model
        for name, model in fresh.snapshot.models.items()
    }
    again = models.keys() - stay
    models |= {name: before[name] for name in stay}
    models |= waiting_ensembles(models, reasons_of(postponed), ran | stay)
    snapshot = replace(fresh.snapshot, models=dict(sorted(models.items())))
    plan = _plan_beside(options, former, fresh, snapshot, ran | stay, again)
    steps = {name: Origin(explicit=False) for name in stay - fresh.origins.keys()}
    gone = {name: dict(reasons) for name, reasons in fresh.gone.items() if name not in stay}
    desired = replace(
        fresh, snapshot=snapshot, plan=plan, origins={**fresh.origins, **steps}, gone=gone, postponed=postponed
    )
    moved = {name for name, _ in plan.leaving}
    changed = {
        name: Before(before[name], former.origins.get(name))
        for name in sorted(ran)
        if desired.runs(name) and (name in moved or models[name].packages != before[name].packages)
    }
    for name in changed:
        if left := left_out(before[name], models[name]):
            gone[name] = left
    groups = [{name: changed[name] for name in sorted(group & changed.keys())} for group in linked(snapshot.models)]
    return replace(desired, trials=tuple(Trial("", "", group, makes_room=True) for group in groups if group))


def _plan_beside(
    options: ControllerOptions,
    former: DesiredState,
    fresh: DesiredState,
    snapshot: Snapshot,
    ran: Collection[str],
    again: Collection[str],
) -> Plan:
    """Place `again` beside what ran; versions that go do so at once where others would have no place beside them."""
    placed = replace(former, facts=fresh.facts, plan=prune(former.plan, lambda model: model.name in ran))
    plan = replanned(options, placed, snapshot, again)
    if plan.unplaced.keys() - fresh.plan.unplaced.keys():
        stay = {(name, package.version) for name in ran for package in snapshot.models[name].packages}
        kept = prune(placed.plan, lambda model: (model.name, model.version) in stay)
        plan = replanned(options, replace(placed, plan=kept), snapshot, again)
    return plan


def _postponed(
    options: ControllerOptions, former: DesiredState, fresh: DesiredState, nonce: str
) -> Iterator[Postponed]:
    """Return what ran and cannot as it was deployed now, each with what changes with it, as ensembles link them."""
    before, now = former.snapshot.models, fresh.snapshot.models
    cannot = {
        name: model.failure or fresh.plan.unplaced.get(name, "")
        for name, model in now.items()
        if former.runs(name) and not fresh.runs(name)
    }
    if not cannot:
        return
    changes = cannot.keys() | {
        name
        for name, model in now.items()
        if former.runs(name)
        and fresh.runs(name)
        and with_revisions(model, before[name], nonce).packages != before[name].packages
    }
    for group in linked(before, now, within=changes):
        names = sorted(group)
        first = next((name for name in names if name in cannot), None)
        if first is None:
            continue
        because = f"model '{first}' cannot run as it was deployed last: {cannot[first]}"
        steps = {name for name in with_steps(former.snapshot, names) if name not in now and former.runs(name)}
        if steps and options.loader.namespacing:  # one may be known by an identifier now
            continue
        yield Postponed(
            {name: now[name] for name in names}, {name: cannot.get(name, because) for name in names}, frozenset(steps)
        )


def _served(options: ControllerOptions, former: DesiredState) -> DesiredState:
    """Return a state without what was still on trial in it."""
    for trial in former.trials:
        former = reverted(options, former, trial, {}, "")
    return former
