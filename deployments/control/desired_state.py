"""What shall run: the models, the plan that follows from them and the cluster, and the changes that are on trial.

Every change of what runs is a function here from one desired state to the next. Nothing else changes it, so a
controller that knows the last state goes on from there, whatever its predecessor was doing.
"""

import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from deployments.control.canary import Canary
from deployments.control.controller_options import ControllerOptions
from deployments.control.directory import RENAMED, UNLOADED
from deployments.control.former_places import Version, beside_former, with_former, without_former
from deployments.control.gone_versions import Gone, latest_gone, left_out, not_loaded, with_not_read, with_renamed
from deployments.control.postponed import Postponed, joined, parted, reasons_of
from protocol.short_error import short_text
from repository_loader.cluster_facts import ClusterFacts
from repository_loader.deployment_plan import DeploymentPlan, Plan
from repository_loader.ensemble_graph import steps_of
from repository_loader.namespaces import identifiers, shared_name
from repository_loader.overrides import read_overrides
from repository_loader.package import IN_PLACE_PARAMETERS, ModelPackage, lasting
from repository_loader.plan import make_plan, prune
from repository_loader.snapshot import Override, RepositoryModel, Snapshot
from repository_loader.traffic import Traffic

logger = logging.getLogger(__name__)

MAX_OUTCOMES: Final = 1024
"""Of how many commands is known what became of them: as many as may wait for that at once."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Why a model is loaded: asked for by name (`explicit`) or as an ensemble's step, and what it was loaded with."""

    explicit: bool = True
    override: Override | None = None


@dataclass(frozen=True, slots=True)
class Before:
    """What there was of a model; `model` is None where it did not run, `waited` what was known where it could not."""

    model: RepositoryModel | None
    origin: Origin | None
    waited: RepositoryModel | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """A change that is undone if any of the models does not load; `before` says what was there before, by name.

    `command` is who made it, for the model `asked`; "" for nobody who waits. `renamed` is what ran under names that it
    has no longer. `makes_room` says that it ends, and what ran before goes, where the cluster has no room for both.
    `postponed` was so until then.
    """

    command: str
    asked: str
    before: Mapping[str, Before]
    renamed: Mapping[str, Before] = field(default_factory=dict)
    makes_room: bool = False
    postponed: tuple[Postponed, ...] = ()


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The models that shall run, and their plan for a cluster.

    `origins` are those of the models in the snapshot; `gone` are versions that do not run any more, or could not be
    loaded, with the reason, by model; `outcomes` says what became of the latest commands: None as long as it is open,
    "", or an error. `given_traffic` is what commands say of the models' traffic in place of their configurations;
    `canaries` are the latest of each model. `repositories` are those to load models from, each with the names of models
    that are not called as their folders, by folder. `client_settings` are the log and trace settings that clients have
    changed. `postponed` are models that run as they did before the last deployment.
    """

    snapshot: Snapshot
    plan: Plan
    facts: ClusterFacts
    origins: Mapping[str, Origin] = field(default_factory=dict)
    gone: Gone = field(default_factory=dict)
    trials: tuple[Trial, ...] = ()
    outcomes: Mapping[str, str | None] = field(default_factory=dict)
    given_traffic: Mapping[str, Traffic] = field(default_factory=dict)
    canaries: Mapping[str, Canary] = field(default_factory=dict)
    repositories: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    client_settings: Mapping[str, Any] = field(default_factory=dict)
    postponed: tuple[Postponed, ...] = ()

    @property
    def traffic(self) -> dict[str, Traffic]:
        """How the versions of each model share its requests; only models where anything is said of that.

        What serves while another is on trial shares them as before: weights of a version that loads would leave none.
        """
        found = {}
        served = {name: before.model for name, before in self.on_trial.items() if before.model is not None}
        for name, planned in self.snapshot.models.items():
            model = served.get(name, planned)
            if not model.packages:  # whose configuration may be why
                continue
            config, given = model.config, self.given_traffic.get(name)
            if given is None and config is not None and not IN_PLACE_PARAMETERS.isdisjoint(config.parameters):
                given = read_overrides(config).traffic
            if given and (traffic := given.among({package.version for package in model.packages})):
                found[name] = traffic
        return found

    def applications(self) -> dict[str, list[DeploymentPlan]]:
        """Return the plan's deployments by application."""
        applications: dict[str, list[DeploymentPlan]] = {}
        for deployment in self.plan.deployments:
            applications.setdefault(deployment.app_name, []).append(deployment)
        return applications

    @property
    def waiting(self) -> frozenset[str]:
        """Models that run nowhere, or not as they were deployed: another cluster might have what they need."""
        failed = {name for name, model in self.snapshot.models.items() if model.failure}
        return frozenset(self.plan.unplaced) | failed | reasons_of(self.postponed).keys()

    @property
    def failed(self) -> frozenset[str]:
        """Models that could not be loaded and run no more, or of which versions could not be beside those that run."""
        return frozenset(name for name, reasons in self.gone.items() if set(reasons.values()) - {UNLOADED, RENAMED})

    @property
    def known(self) -> set[str]:
        """What models are called that run, or ran, under no other name now."""
        return self.snapshot.models.keys() | {name for name, why in self.gone.items() if RENAMED not in why.values()}

    @property
    def on_trial(self) -> dict[str, Before]:
        """What there was before of every model that is on trial."""
        return {name: before for trial in self.trials for name, before in trial.before.items()}

    def runs(self, name: str) -> bool:
        """Whether a model shall run."""
        model = self.snapshot.models.get(name)
        return model is not None and bool(model.packages) and name not in self.plan.unplaced

    def dependents(self, names: Collection[str]) -> set[str]:
        """Return the ensembles that have one of the models in them, at whatever depth."""
        found: set[str] = set()
        before = -1
        while len(found) > before:
            before = len(found)
            for name, model in self.snapshot.models.items():
                if not {*names, *found}.isdisjoint(steps_of(model)):
                    found.add(name)
        return found - set(names)


def overrides(desired: DesiredState, here: Callable[[str], str] = str) -> dict[str, Override]:
    """Return what models were loaded with in place of what their repository has.

    `here` is told where the files of each were written, maybe on another node, and returns where they are on this one.
    """
    given = {name: origin.override for name, origin in desired.origins.items() if origin.override is not None}
    return {name: replace(each, model_path=each.model_path and here(each.model_path)) for name, each in given.items()}


def not_polled(name: str) -> str:
    """Return Triton's text for a model that its repository does not have."""
    return f"failed to load '{name}', failed to poll from model repository"


def alike(desired: DesiredState, name: str) -> set[str]:
    """Return under which names models run, or are steps of those, that have one name, given as it is or identified."""
    plain = shared_name(name) or name
    models = desired.snapshot.models
    known = {step for model in models.values() for step in steps_of(model)}
    known |= models.keys()
    return {plain, *identifiers(plain, known)} & known


def renamed(options: ControllerOptions, desired: DesiredState, read: Snapshot) -> set[str]:
    """Return what runs under a name that another repository has now too, or under the identifier of one it has alone.

    A name is known as it is or by identifiers, and never as both.
    """
    if not options.loader.namespacing:
        return set()
    return {
        other
        for name in read.models
        for other in alike(desired, name) & desired.snapshot.models.keys()
        if bool(shared_name(other)) != bool(shared_name(name))
    }


def touched(options: ControllerOptions, desired: DesiredState, read: Snapshot) -> set[str]:
    """Return the models that change when those that were read are loaded."""
    return read.models.keys() | renamed(options, desired, read)


def replaced(before: DesiredState, after: DesiredState, names: Collection[str]) -> bool:
    """Whether any of the models, or of the ensembles that have them, was loaded or unloaded between two states."""
    concerned = {*names, *before.dependents(names), *after.dependents(names)}
    return any(before.snapshot.models.get(name) is not after.snapshot.models.get(name) for name in concerned)


def loaded(
    options: ControllerOptions,
    desired: DesiredState,
    read: Snapshot,
    origins: Mapping[str, Origin],
    command: str = "",
    asked: str = "",
    failed: Collection[Version] = (),
) -> DesiredState:
    """Have the models that were read run in place of what ran of them, on trial where anything differs.

    `origins` are those of the models that were asked for; others that were read are steps of them, or ensembles that
    they are steps of. What runs of a model that cannot be read any more serves on; an ensemble that does not fit a step
    which changes does not. Of the versions that have `failed`, those of the models that were asked for and of their
    steps are loaded again.
    """
    failed = [version for version in failed if version[0] in with_steps(read, origins)]
    nonce = secrets.token_hex(4)
    others = renamed(options, desired, read)
    formerly = {each: Before(desired.snapshot.models[each], desired.origins.get(each)) for each in others}
    explicit = {each for each, origin in desired.origins.items() if origin.explicit}
    asked_for = {shared_name(each) or each for each in others & explicit}
    if others:
        desired = unloaded(options, desired, others)
    models, all_origins = dict(desired.snapshot.models), dict(desired.origins)
    gone = dict(desired.gone)
    before: dict[str, Before] = {}
    above_changes = desired.dependents(_changes(desired, read, failed, nonce))
    for name, found in read.models.items():
        old = _serving(desired, name, failed)
        called = shared_name(name) or name
        origin = origins.get(name) or all_origins.get(name) or Origin(explicit=called in asked_for)
        if found.failure is not None and old is not None and not (steps_of(found) and name in above_changes):
            logger.error("'%s' serves on as it is: %s", name, found.failure)
            gone = with_not_read(gone, found, old)
            continue
        new = with_revisions(found, old, nonce)
        was_explicit = name in all_origins and all_origins[name].explicit
        if old is None or new.packages != old.packages or new.failure != old.failure:
            waited = None if desired.runs(name) else desired.snapshot.models.get(name)
            before[name] = Before(old, all_origins.get(name), waited)
        models[name] = new
        all_origins[name] = replace(origin, explicit=origin.explicit or was_explicit)
        gone.pop(name, None)
        if left := left_out(old, new):
            gone[name] = left
    if options.loader.namespacing:
        gone = with_renamed(gone, read.models)
    snapshot = replace(desired.snapshot, models=dict(sorted(models.items())))
    plan = replanned(options, desired, snapshot, before)
    postponed, ended = _still_postponed(desired, snapshot)
    changed = replace(desired, snapshot=snapshot, plan=plan, origins=all_origins, gone=gone, postponed=postponed)
    log_findings(snapshot, plan, before)
    if not before:
        return _resolved(changed, command, "")
    trial = Trial(command, asked, before, formerly, postponed=ended)
    outcomes = {**desired.outcomes, command: None} if command else desired.outcomes
    return replace(changed, trials=(*desired.trials, trial), outcomes=_latest(outcomes))


def unloaded(
    options: ControllerOptions, desired: DesiredState, names: Iterable[str], command: str = ""
) -> DesiredState:
    """Have models run no longer."""
    models, origins = dict(desired.snapshot.models), dict(desired.origins)
    gone = {name: dict(reasons) for name, reasons in desired.gone.items()}
    given, canaries = dict(desired.given_traffic), dict(desired.canaries)
    for name in names:
        old = models.pop(name, None)
        for known in (origins, given, canaries):
            known.pop(name, None)
        reasons = gone.pop(name, {})
        left = [*reasons, *(package.version for package in (old.packages if old else ()))]
        if left:
            gone[name] = dict.fromkeys(left, RENAMED if RENAMED in reasons.values() else UNLOADED)
    snapshot = replace(desired.snapshot, models=models)
    plan, (postponed, _) = _tidy(options, desired, snapshot), _still_postponed(desired, snapshot)
    changed = replace(desired, snapshot=snapshot, plan=plan, origins=origins, gone=latest_gone(gone))
    changed = replace(changed, given_traffic=given, canaries=canaries, postponed=postponed)
    return _resolved(changed, command, "")


def with_traffic(
    desired: DesiredState, name: str, traffic: Traffic | None, canary: Canary | None, command: str = ""
) -> DesiredState:
    """Share a model's requests otherwise (None: as its configuration says), on behalf of a canary or a command."""
    given, canaries = dict(desired.given_traffic), dict(desired.canaries)
    given.pop(name, None)
    canaries.pop(name, None)
    if traffic is not None:
        given[name] = traffic
    if canary is not None:
        canaries[name] = canary
    return _resolved(replace(desired, given_traffic=given, canaries=canaries), command, "")


def with_repositories(
    desired: DesiredState, repositories: Mapping[str, Mapping[str, str]], command: str = ""
) -> DesiredState:
    """Have models be loaded from other repositories from now on; what is loaded stays."""
    return _resolved(replace(desired, repositories=repositories), command, "")


def displaced(desired: DesiredState, changed: DesiredState) -> str:
    """Return why a model that runs has no place in a changed state, "" when all of them have one."""
    return next((reason for name, reason in sorted(changed.plan.unplaced.items()) if desired.runs(name)), "")


def with_dependents(desired: DesiredState, name: str) -> set[str]:
    """Return a model, and the steps of it that nobody asked for by name and nothing else needs."""
    going = {name}
    candidates = [name]
    while candidates:
        for step in steps_of(desired.snapshot.models.get(candidates.pop())):
            origin = desired.origins.get(step)
            if step in going or origin is None or origin.explicit or desired.dependents([step]) - going:
                continue
            going.add(step)
            candidates.append(step)
    return going


def committed(options: ControllerOptions, desired: DesiredState, *ended: Trial) -> DesiredState:
    """End trials whose models are all ready, or need the room of what ran in their place before: that goes."""
    trials = tuple(trial for trial in desired.trials if not any(trial is each for each in ended))
    ready = [name for trial in ended for name in trial.before]
    desired = replace(desired, trials=trials, plan=without_former(desired.plan, ready))
    desired = replace(desired, plan=_tidy(options, desired, desired.snapshot))
    for trial in ended:
        desired = _resolved(desired, trial.command, "")
    return desired


def reverted(
    options: ControllerOptions,
    desired: DesiredState,
    trial: Trial,
    reasons: Mapping[str, Mapping[int, str]],
    error: str,
) -> DesiredState:
    """Undo a trial: what ran before serves on, what had not run does not, for the reasons given by version.

    What waited, and has not failed itself, waits on: an ensemble for its step, say. Of a model that serves on it is
    kept which versions failed beside it.
    """
    models, origins = dict(desired.snapshot.models), dict(desired.origins)
    undone = [group for group in trial.postponed if group.models.keys().isdisjoint(reasons)]
    postponed = joined(desired.postponed, undone, trial.before)
    gone = dict(desired.gone)
    for name, before in trial.before.items():
        tried = models.pop(name, None)
        gone.pop(name, None)
        was = before.model if name in reasons else before.model or before.waited
        if was is not None and before.origin is not None:
            models[name], origins[name] = was, before.origin
        else:
            was = None
            origins.pop(name, None)
        if (why := not_loaded(tried, was, reasons.get(name, {}))) or was is None:
            gone[name] = why
    for name, before in trial.renamed.items():
        gone.pop(name, None)
        if before.model is not None and before.origin is not None:
            models[name], origins[name] = before.model, before.origin
    snapshot = replace(desired.snapshot, models=dict(sorted(models.items())))
    trials = tuple(other for other in desired.trials if other is not trial)
    desired = replace(desired, snapshot=snapshot, origins=origins, trials=trials, postponed=postponed)
    desired = replace(desired, plan=with_former(desired.plan, trial.before), gone=latest_gone(gone))
    waits = {name: reason for name, reason in desired.plan.unplaced.items() if name not in trial.before}
    desired = replace(desired, plan=_tidy(options, desired, snapshot, waits))  # what ran comes before what waits
    return _resolved(replace(desired, plan=_tidy(options, desired, snapshot)), trial.command, short_text(error))


def _still_postponed(desired: DesiredState, snapshot: Snapshot) -> tuple[tuple[Postponed, ...], tuple[Postponed, ...]]:
    """Return as `parted`: what is loaded or unloaded was said later."""
    before, after = desired.snapshot.models, snapshot.models
    changed = {name for name in before.keys() | after.keys() if after.get(name) is not before.get(name)}
    return parted(desired.postponed, changed)


def _changes(desired: DesiredState, read: Snapshot, failed: Collection[Version], nonce: str) -> set[str]:
    """Return the models that run and are loaded otherwise than they do."""
    return {
        name
        for name, found in read.models.items()
        if found.failure is None
        and (old := _serving(desired, name, failed)) is not None
        and with_revisions(found, old, nonce).packages != old.packages
    }


def with_steps(read: Snapshot, names: Iterable[str]) -> set[str]:
    """Return models, and those of their steps at whatever depth."""
    found: set[str] = set()
    candidates = [*names]
    while candidates:
        if (name := candidates.pop()) not in found:
            found.add(name)
            candidates += steps_of(read.models.get(name))
    return found


def _serving(desired: DesiredState, name: str, failed: Collection[Version]) -> RepositoryModel | None:
    """Return what runs of a model without the versions that have failed, None where nothing does."""
    if not desired.runs(name):
        return None
    model = desired.snapshot.models[name]
    packages = tuple(package for package in model.packages if (name, package.version) not in failed)
    if packages == model.packages:
        return model
    return replace(model, packages=packages, fingerprint="") if packages else None  # not all that its files ask for


def with_revisions(found: RepositoryModel, old: RepositoryModel | None, nonce: str) -> RepositoryModel:
    """Give each version the revision that it runs with, or a new one if it has to be loaded again."""
    return replace(found, packages=tuple(_revised(package, old, nonce) for package in found.packages))


def _revised(package: ModelPackage, old: RepositoryModel | None, nonce: str) -> ModelPackage:
    running = None if old is None else old.package(package.version)
    if running is not None and running.revision.partition("@")[0] == package.revision:
        alike = replace(running, config=lasting(running.config), revision="")
        if alike == replace(package, config=lasting(package.config), revision=""):
            return replace(package, revision=running.revision)
    return replace(package, revision=f"{package.revision}@{nonce}")


def replanned(options: ControllerOptions, desired: DesiredState, snapshot: Snapshot, again: Collection[str]) -> Plan:
    """Place models anew; of what ran of them, versions that they no longer have stay for now, or have elsewhere.

    What waits for a place waits on: room that a change frees is there once the change has been made.
    """
    waits = {name: reason for name, reason in desired.plan.unplaced.items() if name not in again}
    new = {(name, package.version) for name in again for package in snapshot.models[name].packages}
    stays = prune(desired.plan, lambda model: model.name in snapshot.models and (model.name, model.version) not in new)
    facts = desired.facts
    return beside_former(
        desired.plan,
        new,
        stays,
        facts,
        lambda kept: make_plan(snapshot, options.plan, facts, kept, again, waits, desired.plan),
    )


def _tidy(
    options: ControllerOptions, desired: DesiredState, snapshot: Snapshot, waits: Mapping[str, str] | None = None
) -> Plan:
    """Keep of the plan what the snapshot has, and what ran before those that are on trial; place all but what waits."""
    runs = {name: [*model.packages] for name, model in snapshot.models.items()}
    for name, before in desired.on_trial.items():
        runs.setdefault(name, []).extend(before.model.packages if before.model is not None else ())
    kept = prune(desired.plan, lambda model: model.package in runs.get(model.name, ()))
    placed = _placed(kept)
    lost = {
        name
        for name, model in snapshot.models.items()
        if name in placed and any(package not in placed[name] for package in model.packages)
    }
    kept = prune(kept, lambda model: model.name not in lost)
    return make_plan(snapshot, options.plan, desired.facts, kept, waits=waits or {}, former=desired.plan)


def _placed(plan: Plan) -> dict[str, list[ModelPackage]]:
    placed: dict[str, list[ModelPackage]] = {}
    for model in plan.models:
        placed.setdefault(model.name, []).append(model.package)
    return placed


def _resolved(desired: DesiredState, command: str, outcome: str) -> DesiredState:
    return replace(desired, outcomes=_latest({**desired.outcomes, command: outcome})) if command else desired


def _latest(outcomes: Mapping[str, str | None]) -> dict[str, str | None]:
    """Forget the oldest commands of those that have ended; open ones are as few as trials."""
    ended = [command for command, outcome in outcomes.items() if outcome is not None]
    old = set(ended[: max(0, len(ended) - MAX_OUTCOMES)])
    return {command: outcome for command, outcome in outcomes.items() if command not in old}


def log_findings(snapshot: Snapshot, plan: Plan, names: Iterable[str]) -> None:
    """Log what there is to say of models that were read."""
    for name in sorted(names):
        model = snapshot.models[name]
        for finding in model.findings:
            logger.log(logging.ERROR if finding.severity == "error" else logging.WARNING, "%s", finding)
        if reason := model.failure or plan.unplaced.get(name, ""):
            logger.error("failed to load '%s': %s", name, reason)
