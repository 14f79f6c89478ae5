"""The state of every model version of the desired state, as the controller knows it."""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.control.canary import Canary
from deployments.control.desired_state import DesiredState
from deployments.control.directory import (
    LOADING,
    READY,
    TRIED_AGAIN,
    UNAVAILABLE,
    UNLOADED,
    UNLOADING,
    ModelEntry,
    VersionEntry,
)
from deployments.control.embedded_reports import EmbeddedReports
from deployments.control.former_places import Version
from deployments.control.postponed import reasons_of
from deployments.control.second_tries import SecondTries
from deployments.control.trial_parts import may_come_back
from deployments.log.line_format import about
from deployments.replica.hosted_model import Packages, key_of, packages_by_name
from repository_loader.config_json import config_to_json
from repository_loader.copied_ensembles import copied_ensembles
from repository_loader.deployment_plan import DeploymentPlan, ModelPlan, Place, Plan
from repository_loader.ensemble_graph import without_step
from repository_loader.snapshot import RepositoryModel
from repository_loader.traffic import Traffic

logger = logging.getLogger(__name__)

_RAN = (READY, LOADING, UNLOADING)
LONG_GONE_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Missing:
    """Why an ensemble cannot serve; `unloaded` says that nothing has failed."""

    reason: str
    unloaded: bool


class ModelTable:
    """Entries by model, and the deployments that run them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left_s: dict[Version, float] = {}
        """When versions were unloaded."""
        self._next_gone_s = math.inf
        self.models: dict[str, ModelEntry] = {}
        self.plan = Plan()
        self.deployments: tuple[DeploymentPlan, ...] = ()
        self.reports = EmbeddedReports(clock)
        self.moving: set[Version] = set()
        """The versions that are on trial in another place than that which the table tells of."""
        self.moved = False
        """Whether there are versions that were so until now."""
        self.refused: Mapping[str, str] = {}
        """Why applications were not deployed, by name."""
        self._json: dict[str, tuple[ModelConfig, str, dict[int, str]]] = {}
        self._names: Collection[str] = ()
        self._names_are_all = False
        self._wanted: frozenset[str] = frozenset()
        self._postponed: Mapping[str, str] = {}
        self._leaving: tuple[DeploymentPlan, ...] = ()
        self._embedded: dict[str, dict[str, Any]] = {}
        self._copies: dict[str, dict[str, Any]] = {}
        self.tries = SecondTries(clock)

    def replace(self, desired: DesiredState, refused: Mapping[str, str]) -> None:
        """Take a new desired state, and what was not deployed; versions that run as before keep their state."""
        before, self.models, self.plan = self.models, {}, desired.plan
        self.tries.forget_all_but(desired.snapshot.models)
        moving, self.moving = self.moving, desired.plan.leaving
        self.moved = bool(moving - self.moving)
        self.refused = refused
        self._postponed = reasons_of(desired.postponed)
        self._take_models(desired)
        packages = packages_by_name(desired.plan, may_come_back(desired))
        self._json = {name: known for name, known in self._json.items() if name in desired.snapshot.models}
        self._embedded = _hosted_rows(desired.plan.embedded, packages)
        self._copies = _hosted_rows(copied_ensembles(desired.plan), packages)
        anew = untried(desired)
        for name, entry in self.models.items():
            if name in before:
                _keep_states(name, entry, before[name], moving, anew)
        self._note_left(before)
        self._hold(desired)
        self._follow(desired.plan.deployments)
        for deployment in desired.plan.deployments:
            if deployment.app_name in refused:
                for model in filter(self.shows, deployment.models):
                    self.fail(model, refused[deployment.app_name])
        self.reports.forget_all_but(self._embedded_digests())
        self._take_reports()

    def _embedded_digests(self) -> dict[Version, str]:
        return {key_of(row): row["digest"] for row in self._embedded.values()}

    def _take_models(self, desired: DesiredState) -> None:
        """Take the models and versions that there are, were, or could not be had, where they run, and their traffic."""
        on_trial, self._wanted = desired.on_trial, frozenset(desired.snapshot.models)
        for name, found in desired.snapshot.models.items():
            reason = found.failure or desired.plan.unplaced.get(name, "")
            versions = {package.version: VersionEntry(UNAVAILABLE, reason) for package in found.packages if reason}
            before = on_trial.get(name)
            shown = found if before is None or before.model is None else before.model
            self.models[name] = self._entry(shown, reason, versions)
        for deployment in desired.plan.deployments:
            for model in filter(self.shows, deployment.models):
                self._place(model, deployment.placement, deployment.device, deployment.replica_count)
        for model in filter(self.shows, desired.plan.embedded):
            self._place(model, "embedded", "CPU", 1)
        for name, reasons in desired.gone.items():
            versions = self.models.setdefault(name, ModelEntry()).versions
            for version, reason in reasons.items():
                beside = desired.runs(name) and reason != UNLOADED
                versions.setdefault(version, VersionEntry(UNAVAILABLE, reason, held=beside))
        traffic = desired.traffic
        for name in traffic.keys() | desired.canaries.keys() & self.models.keys():
            self.models[name].traffic = _traffic_row(traffic.get(name, Traffic()), desired.canaries.get(name))

    def _entry(self, shown: RepositoryModel, reason: str, versions: dict[int, VersionEntry]) -> ModelEntry:
        config = shown.config
        if config is None:
            return ModelEntry("", "", reason, versions, namespace=shown.namespace)
        known, text, others = self._json.get(shown.name, (None, "", {}))
        if known is not config:
            text = config_to_json(config)
            differing = [package for package in shown.packages if package.config != config]
            others = {package.version: config_to_json(package.config) for package in differing}
            self._json[shown.name] = (config, text, others)
        backend, namespace = config.backend or config.platform, shown.namespace
        return ModelEntry(text, backend, reason, versions, namespace=namespace, other_configs=others)

    def _note_left(self, before: Mapping[str, ModelEntry]) -> None:
        """Note when versions were unloaded; those that were so under a former controller are long gone."""
        now_s, noted, self._left_s = self._clock(), self._left_s, {}
        for name, entry in self.models.items():
            known = before[name].versions if name in before else {}
            for number, version in entry.versions.items():
                if version.left:
                    self._left_s[name, number] = noted.get((name, number), now_s if number in known else -math.inf)
        self._next_gone_s = -math.inf
        self.note_long_gone()

    def note_long_gone(self) -> None:
        """Note which versions were unloaded an hour ago; looks only when one may have been."""
        now_s = self._clock()
        if now_s < self._next_gone_s:
            return
        self._next_gone_s = math.inf
        for (name, number), left_s in self._left_s.items():
            if now_s - left_s >= LONG_GONE_S:
                self.models[name].versions[number].long_gone = True
            else:
                self._next_gone_s = min(self._next_gone_s, left_s + LONG_GONE_S)

    def _hold(self, desired: DesiredState) -> None:
        """Send no requests to versions that did not run before their trial, where others of the model do."""
        for name, before in desired.on_trial.items():
            ran = {package.version for package in before.model.packages} if before.model is not None else set()
            for number, version in self.models[name].versions.items():
                version.held = bool(ran) and number not in ran and not version.left

    def _follow(self, deployments: Iterable[DeploymentPlan]) -> None:
        """Have the ingresses use these; what ran the models before keeps its lanes until it has `left`.

        Applications of the names in `refused` are somebody else's.
        """
        before = (*self._leaving, *self.deployments)
        self.deployments = tuple(each for each in deployments if each.app_name not in self.refused)
        keys = {each.place for each in self.deployments}
        self._leaving = tuple(each for each in before if each.place not in keys and each.app_name not in self.refused)

    def left(self, running: Collection[Place], hosted: Collection[Version] | None) -> None:
        """Forget the deployments that have ended; versions that run nowhere now, packed ones too, are unloaded.

        `running` are the deployments that Serve has, `hosted` the versions that packed replicas have, None if they
        were not asked.
        """
        self._leaving = tuple(each for each in self._leaving if each.place in running)
        leaving = {(model.name, model.version) for each in self._leaving for model in each.models}
        for name, entry in self.models.items():
            for number, version in entry.versions.items():
                if version.state != UNLOADING or (name, number) in leaving:
                    continue
                if version.placement != "packed" or (hosted is not None and (name, number) not in hosted):
                    version.state = UNAVAILABLE

    @property
    def unloading(self) -> bool:
        """Whether something is yet to end."""
        return bool(self._leaving) or any(
            version.state == UNLOADING for model in self.models.values() for version in model.versions.values()
        )

    @property
    def failed(self) -> frozenset[Version]:
        """The versions that have a place and failed to load there."""
        return frozenset(
            (name, number)
            for name, model in self.models.items()
            for number, version in model.versions.items()
            if version.failed and version.placement and not version.left
        )

    @property
    def hindered(self) -> frozenset[Version]:
        """The versions that had been ready, failed to load where they have their place now, and are tried again."""
        return frozenset(
            (name, number)
            for name, model in self.models.items()
            for number, version in model.versions.items()
            if version.replacing and not version.left
            if version.fails_to_start or (name, number) in self.tries.failed
        )

    def shows(self, model: ModelPlan) -> bool:
        """Whether a model version of the plan is where the table tells of it."""
        return model.leaving or (model.name, model.version) not in self.moving

    def _place(self, model: ModelPlan, placement: str, device: str, replicas: int) -> None:
        versions = self.models.setdefault(model.name, ModelEntry()).versions
        known = versions.get(model.version)
        if known is None:
            versions[model.version] = VersionEntry(LOADING, "", placement, device, replicas)
        else:
            known.replicas += replicas
            known.device += f" + {device}"

    def know(self, names: Collection[str], *, all_repositories: bool) -> None:
        """Take the names of all models in the repositories, loaded or not; there may be more in others."""
        self._names, self._names_are_all = names, all_repositories

    def entry(self, model: ModelPlan) -> VersionEntry:
        """Return the entry of a model version of the plan."""
        return self.models[model.name].versions[model.version]

    def succeed(self, names: Iterable[str]) -> None:
        """Note that all versions of models that were on trial are ready."""
        for name in names:
            for number, version in self.models[name].versions.items():
                if not version.left and (not version.failed or (name, number) in self.moving):
                    if version.state != READY:
                        logger.info("successfully loaded '%s' version %d", name, number, extra=about(name, number))
                    version.loaded("", version.seconds)

    def lose_places(self, names: Collection[str]) -> None:
        """Note that versions of models will be ready in their new places alone, and are not there yet."""
        for name, number in self.moving:
            if name in names:
                self.models[name].versions[number].state = LOADING

    def find(self, name: str, version: int) -> VersionEntry | None:
        """Return an entry, None when there is none."""
        model = self.models.get(name)
        return None if model is None else model.versions.get(version)

    def fail(self, model: ModelPlan, reason: str) -> None:
        """Note and log why a version will not be ready."""
        entry = self.entry(model)
        if not entry.failed or entry.reason != reason:
            entry.failed_to_load(reason)
            whose = about(model.name, model.version)
            logger.error("failed to load '%s' version %d: %s", model.name, model.version, reason, extra=whose)

    def keep_ingresses(self, alive: Collection[str]) -> None:
        """Forget what ingresses told that are not alive."""
        gone = self.reports.keep(alive)
        for ingress in gone:
            self.tries.take(("", ingress), ())
        if gone:
            self._take_reports()

    def take_embedded(self, rows: Collection[Sequence[Any]], node: str, ingress: str) -> None:
        """Take from an ingress what became of the models it hosts: `[[name, version, reason, seconds, digest]]`.

        A version is ready when any ingress serves it; its reason says then where it failed to load.
        """
        self.reports.take(ingress, node, rows)
        self.tries.take(("", ingress), rows)
        for other, told in self.reports.failed.items():  # what failed there may have been loaded here
            self.tries.take(("", other), told)
        self._take_reports()

    def _take_reports(self) -> None:
        again = self.tries.failed
        for (name, version), outcome in self.reports.outcomes(self._embedded_digests()).items():
            entry = self.find(name, version)
            if entry is None or entry.placement != "embedded" or entry.held or entry.left:
                continue
            before = entry.reason
            self.take_row(entry, outcome.row)
            if not outcome.beside:
                continue
            entry.reason = f"{outcome.beside}{TRIED_AGAIN if (name, version) in again else ''}"
            if entry.reason != before:
                whose = about(name, version)
                logger.error("'%s' version %d serves, but %s", name, version, entry.reason, extra=whose)

    def take_row(self, entry: VersionEntry, row: Sequence[Any]) -> None:
        """Take what became of a version in a process that hosts several: `name, version, reason, seconds, digest`."""
        name, version, reason, seconds, digest = row
        if reason and (entry.state == READY or entry.replacing) and self.tries.has_loaded(name, version, digest):
            entry.failed_this_time(reason)
        else:
            entry.loaded(reason, seconds)

    def _failed_ensembles(self) -> dict[str, dict[int, _Missing]]:
        """Return what ensembles lack whose steps failed to load or were unloaded, by name and version."""
        models = [model for deployment in self.deployments for model in deployment.models if model.dependencies]
        models += [model for model in self.plan.embedded if model.dependencies]
        failed: dict[str, dict[int, _Missing]] = {}
        count = -1
        while len(failed) > count:  # an ensemble that fails may be a step of another
            count = len(failed)
            for model in models:
                missing = self._missing_step(model, failed)
                if missing is not None:
                    failed.setdefault(model.name, {})[model.version] = missing
        return failed

    def _missing_step(self, model: ModelPlan, failed: Mapping[str, Mapping[int, _Missing]]) -> _Missing | None:
        for name in model.dependencies:
            needed = self.models.get(name)
            if needed is None:
                continue
            also = failed.get(name, {})
            if not all(version.failed or version.left or number in also for number, version in needed.versions.items()):
                continue
            causes = [also.get(number) or _Missing(each.reason, each.left) for number, each in needed.versions.items()]
            cause = needed.reason or next((each.reason for each in causes), "")
            reason = without_step(model.name, name, cause or UNLOADED)
            return _Missing(reason, unloaded=not needed.reason and all(each.unloaded for each in causes))
        return None

    @property
    def settled(self) -> bool:
        """Whether every model has been tried."""
        return all(
            version.state != LOADING or version.held
            for model in self.models.values()
            for version in model.versions.values()
        )

    @property
    def replacing(self) -> bool:
        """Whether a version waits for Serve to replace its replicas."""
        return any(version.replacing for model in self.models.values() for version in model.versions.values())

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return what followers get, as plain data."""
        failed = self._failed_ensembles()
        rows = {name: self._told(name, failed.get(name, {})).to_dict() for name in self.models}
        for name in self._names:
            rows.setdefault(name, ModelEntry().to_dict())
        for name in rows.keys() - set(self._names) - self._wanted if self._names_are_all else ():
            rows[name]["removed"] = all(version.state == UNAVAILABLE for version in self.models[name].versions.values())
        return {
            "models": rows,
            "deployments": {
                f"{each.app_name}#{each.name}": _deployment_row(each) for each in (*self._leaving, *self.deployments)
            },
            "embedded": self._embedded,
            "copies": self._copies,
        }

    def _told(self, name: str, failed: Mapping[int, _Missing]) -> ModelEntry:
        """Return an entry with what has failed for another model's sake, and why it is not as it was deployed last."""
        entry, postponed = self.models[name], self._postponed.get(name)
        if not failed and postponed is None:
            return entry
        changed = {}
        for number, version in entry.versions.items():
            if number in failed and not version.failed:
                missing = failed[number]
                told = replace(version, stepless=missing.unloaded)
                told.failed_to_load(missing.reason)
                changed[number] = told
            elif postponed is not None and version.state == READY:
                reason = f"it serves on as before the last deployment: {postponed}"
                reason = f"{version.reason}; {reason}" if version.reason else reason
                changed[number] = replace(version, reason=reason)
        return replace(entry, versions={**entry.versions, **changed})


def _hosted_rows(models: Iterable[ModelPlan], packages: Packages) -> dict[str, dict[str, Any]]:
    return {f"{model.name}/{model.version}": packages.told(model) for model in models}


def _deployment_row(deployment: DeploymentPlan) -> list[Any]:
    """Return application and deployment, and the names of its models unless that is the application's."""
    row: list[Any] = [deployment.app_name, deployment.name]
    names = sorted({model.name for model in deployment.models})
    return row if names == [deployment.app_name] else [*row, names]


def _traffic_row(traffic: Traffic, canary: Canary | None) -> dict[str, Any]:
    """Return what followers get of a model's traffic: `step` and `canary_version` are what ingresses measure."""
    row = traffic.to_dict()
    if canary is not None:
        row |= {"canary": canary.to_dict(), "step": canary.measured, "canary_version": canary.rules.version}
    return row


def untried(desired: DesiredState) -> set[Version]:
    """Return the versions on trial that did not run before: they are ready when their trial has ended."""
    found: set[Version] = set()
    for name, before in desired.on_trial.items():
        ran = {package.version for package in before.model.packages} if before.model is not None else set()
        tried = {package.version for package in desired.snapshot.models[name].packages}
        found.update((name, version) for version in tried - ran)
    return found


def _keep_states(
    name: str, entry: ModelEntry, before: ModelEntry, moved: Collection[Version], anew: Collection[Version]
) -> None:
    """Have versions be as they were that run where they did, or have `moved` and were ready before that counted.

    One that had failed, and is loaded `anew`, has not failed any more.
    """
    for number, version in entry.versions.items():
        known = before.versions.get(number)
        if known is None or ((known.failed or known.replacing) and (name, number) in anew):
            continue
        stays = (name, number) in moved or known.placement == version.placement
        if version.left and known.state in _RAN:
            version.state, version.placement = UNLOADING, known.placement
        elif version.state == LOADING and not known.left and stays:
            version.state, version.reason, version.seconds = known.state, known.reason, known.seconds
            version.replacing, version.fails_to_start = known.replacing, known.fails_to_start
