"""The state of every model version of the desired state, as the controller knows it."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deployments.control.desired_state import DesiredState
from deployments.control.directory import LOADING, READY, UNAVAILABLE, ModelEntry, VersionEntry
from deployments.replica.hosted_model import HostedModel, packages_by_name
from repository_loader.config_json import config_to_json
from repository_loader.plan import DeploymentPlan, ModelPlan, Plan

logger = logging.getLogger(__name__)


class ModelTable:
    """Entries by model, and the deployments that run them."""

    def __init__(self) -> None:
        self.models: dict[str, ModelEntry] = {}
        self.plan = Plan()
        self.deployments: tuple[DeploymentPlan, ...] = ()
        self._leaving: tuple[DeploymentPlan, ...] = ()
        self._embedded: dict[str, dict[str, Any]] = {}

    def replace(self, desired: DesiredState, refused: Mapping[str, str]) -> None:
        """Take a new desired state; versions that run as before keep their state.

        `refused` says why applications were not deployed, by name.
        """
        before, self.models, self.plan = self.models, {}, desired.plan
        for name, found in desired.snapshot.models.items():
            config = "" if found.config is None else config_to_json(found.config)
            backend = "" if found.config is None else found.config.backend or found.config.platform
            reason = found.failure or desired.plan.unplaced.get(name, "")
            versions = {package.version: VersionEntry(UNAVAILABLE, reason) for package in found.packages if reason}
            self.models[name] = ModelEntry(config, backend, reason, versions)
        for deployment in desired.plan.deployments:
            for model in deployment.models:
                self._place(model, deployment.placement, deployment.device, deployment.replica_count)
        for model in desired.plan.embedded:
            self._place(model, "embedded", "CPU", 1)
        packages = packages_by_name(desired.plan)
        self._embedded = {
            f"{model.name}/{model.version}": HostedModel.of(model, packages).to_dict()
            for model in desired.plan.embedded
        }
        for name, entry in self.models.items():
            if name in before and before[name].config == entry.config:
                _keep_states(entry, before[name])
        self._follow(tuple(each for each in desired.plan.deployments if each.app_name not in refused))
        for deployment in desired.plan.deployments:
            if deployment.app_name in refused:
                for model in deployment.models:
                    self.fail(model, refused[deployment.app_name])

    def _follow(self, deployments: tuple[DeploymentPlan, ...]) -> None:
        """Have the ingresses use these; what ran the models before serves until `swept`."""
        keys = {(each.app_name, each.name) for each in deployments}
        before = (*self._leaving, *self.deployments)
        self._leaving = tuple(each for each in before if (each.app_name, each.name) not in keys)
        self.deployments = deployments

    def swept(self) -> None:
        """Forget the deployments that have been ended."""
        self._leaving = ()

    def _place(self, model: ModelPlan, placement: str, device: str, replicas: int) -> None:
        versions = self.models[model.name].versions
        known = versions.get(model.version)
        if known is None:
            versions[model.version] = VersionEntry(LOADING, "", placement, device, replicas)
        else:
            known.replicas += replicas
            known.device += f" + {device}"

    def entry(self, model: ModelPlan) -> VersionEntry:
        """Return the entry of a model version of the plan."""
        return self.models[model.name].versions[model.version]

    def find(self, name: str, version: int) -> VersionEntry | None:
        """Return an entry, None when there is none."""
        model = self.models.get(name)
        return None if model is None else model.versions.get(version)

    def fail(self, model: ModelPlan, reason: str) -> None:
        """Note and log why a version will not be ready."""
        entry = self.entry(model)
        if not entry.failed or entry.reason != reason:
            entry.failed_to_load(reason)
            logger.error("failed to load '%s' version %d: %s", model.name, model.version, reason)

    def take_embedded(self, rows: Iterable[Sequence[Any]]) -> None:
        """Take from an ingress what became of the models it hosts: `[[name, version, reason, seconds]]`."""
        for name, version, reason, seconds in rows:
            entry = self.find(name, version)
            if entry is not None and entry.placement == "embedded":
                entry.loaded(reason, seconds)

    def fail_dependents(self) -> None:
        """Make ensembles unavailable whose steps failed to load."""
        models = [model for deployment in self.deployments for model in deployment.models]
        models += self.plan.embedded
        failed = True
        while failed:  # an ensemble that fails may be a step of another
            failed = False
            for model in models:
                reason = self.missing_step(model)
                if reason and not self.entry(model).failed:
                    self.entry(model).failed_to_load(reason)
                    failed = True

    def missing_step(self, model: ModelPlan) -> str:
        """Return why an ensemble cannot run: a step that failed to load; "" when there is none."""
        for name in model.dependencies:
            needed = self.models.get(name)
            if needed is None or not all(version.failed for version in needed.versions.values()):
                continue
            cause = needed.reason or next((version.reason for version in needed.versions.values()), "")
            return (
                f"ensemble '{model.name}' depends on '{name}' which has no loaded version. "
                f"Model '{name}' loading failed with error: {cause}"
            )
        return ""

    @property
    def settled(self) -> bool:
        """Whether every model has been tried."""
        return all(version.state != LOADING for model in self.models.values() for version in model.versions.values())

    @property
    def replacing(self) -> bool:
        """Whether a version waits for Serve to replace its replicas."""
        return any(version.replacing for model in self.models.values() for version in model.versions.values())

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return what followers are told, as plain data."""
        return {
            "models": {name: entry.to_dict() for name, entry in self.models.items()},
            "deployments": {
                f"{each.app_name}#{each.name}": [each.app_name, each.name]
                for each in (*self._leaving, *self.deployments)
            },
            "embedded": self._embedded,
        }


def _keep_states(entry: ModelEntry, before: ModelEntry) -> None:
    for number, version in entry.versions.items():
        known = before.versions.get(number)
        if known is None or version.state != LOADING or known.placement != version.placement:
            continue
        if known.state == READY or known.replacing:
            version.state, version.reason = known.state, known.reason
            version.seconds, version.replacing = known.seconds, known.replacing
