"""Reads from Serve, and from the replicas of packed groups, what became of each model version."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

from deployments.control.directory import LOADING, READY, VersionEntry
from deployments.control.model_table import ModelTable
from deployments.serve_internals import DeploymentState, application_states, handle_of
from repository_loader.plan import DeploymentPlan, ModelPlan

logger = logging.getLogger(__name__)

_HEALTHY = frozenset({"HEALTHY", "UPSCALING", "DOWNSCALING"})
_DESCRIBE_TIMEOUT_S = 10.0
_REASON_MARK = "ModelLoadError: "


class StatusReader:
    """Brings a table of models up to date."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._replaced: set[tuple[str, str]] = set()

    def replicas_changed(self, deployment: tuple[str, str]) -> None:
        """Note that a packed group's replicas are others now, so that they are asked again what they loaded."""
        self._replaced.add(deployment)

    async def read(self, table: ModelTable) -> None:
        """Ask Serve for the status of every application, and take what it says.

        Raises:
            Exception: of Ray's, when Serve's controller or a replica does not answer.
        """
        applications = await asyncio.to_thread(application_states)
        versions: dict[tuple[str, int], list[_Part]] = {}
        for deployment in table.deployments:
            state = applications.get(deployment.app_name, {}).get(deployment.name)
            if state is None:
                continue
            if deployment.placement == "packed" and state.status in _HEALTHY:
                await self._read_packed(deployment, table)
                continue
            for model in deployment.models:
                versions.setdefault((model.name, model.version), []).append(_Part(model, deployment, state))
        for parts in versions.values():
            self._take(parts, table)

    def _take(self, parts: Sequence["_Part"], table: ModelTable) -> None:
        """Take the states of the deployments that run one version: one that is healthy makes it ready."""
        model = parts[0].model
        entry = table.entry(model)
        states = {part.state.status: part.state for part in parts}
        if not _HEALTHY.isdisjoint(states):
            if entry.state != READY and not table.missing_step(model):
                entry.loaded("", time.monotonic() - self._started)
                logger.info("successfully loaded '%s' version %d", model.name, model.version)
            if entry.state == READY:
                self._take_failures(parts, entry)
        elif states.keys() <= {"DEPLOY_FAILED"}:
            table.fail(model, _reason(states["DEPLOY_FAILED"].message))
        elif states.keys() <= {"DEPLOY_FAILED", "UNHEALTHY"} and not entry.replacing:
            entry.lost_its_replicas()
            logger.error("'%s' version %d: %s", model.name, model.version, entry.reason)

    def _take_failures(self, parts: Sequence["_Part"], entry: VersionEntry) -> None:
        """Note why some of the instance groups of a version that is ready failed to load."""
        failed = [part for part in parts if part.state.status == "DEPLOY_FAILED"]
        reason = "; ".join(part.failure() for part in failed)
        if reason and entry.reason != reason:
            model = parts[0].model
            logger.error("'%s' version %d serves, but %s", model.name, model.version, reason)
        entry.reason = reason

    async def _read_packed(self, deployment: DeploymentPlan, table: ModelTable) -> None:
        key = (deployment.app_name, deployment.name)
        entries = [table.entry(model) for model in deployment.models]
        if key not in self._replaced and not any(entry.state == LOADING or entry.replacing for entry in entries):
            return
        self._replaced.discard(key)
        try:
            async with asyncio.timeout(_DESCRIBE_TIMEOUT_S):
                described = await handle_of(deployment.name, deployment.app_name).describe.remote()
        except BaseException:
            self._replaced.add(key)
            raise
        for name, version, reason, seconds in described["models"]:
            found = table.find(name, version)
            if found is not None:
                found.loaded(reason, seconds)


class _Part(NamedTuple):
    """The instances of a model version on one device."""

    model: ModelPlan
    deployment: DeploymentPlan
    state: DeploymentState

    def failure(self) -> str:
        device = "CPU" if self.deployment.gpu is None else f"GPU {self.deployment.gpu}"
        return f"its instances on {device} failed to load: {_reason(self.state.message)}"


def _reason(message: str) -> str:
    """Return the reason that a replica gave, out of Serve's text around it."""
    _, mark, reason = message.rpartition(_REASON_MARK)
    if mark:
        return reason.strip()
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1] if lines else "the replica did not start"
