"""Reads the repository, makes the plan and has Serve match it; tells the ingresses what there is."""

import asyncio
import logging
import time
from typing import Any

import ray
from ray import serve

from deployments.backends.python.auto_complete import complete
from deployments.control.controller_options import ControllerOptions
from deployments.control.directory import LOADING, NO_REPLICA, READY, UNAVAILABLE, Directory, ModelEntry, VersionEntry
from deployments.control.group_deployment import group_application
from deployments.replica.hosted_model import HostedModel, packages_by_name
from deployments.replica.replica_logging import set_up_logging
from repository_loader.config_json import config_to_json
from repository_loader.plan import ClusterResources, DeploymentPlan, ModelPlan, Plan, make_plan
from repository_loader.repository import Snapshot, load_repositories

logger = logging.getLogger(__name__)

_BUSY_POLL_S = 0.1
_REPLACING_POLL_S = 1.0
# A poll costs Serve's controller and this one some 20 ms of CPU for each few deployments, beside the models.
_IDLE_POLL_S = 5.0
_WATCH_S = 20.0
_REASON_MARK = "ModelLoadError: "


class RepositoryController:
    """One replica; all it knows can be read again from the repository and from Serve's own list of applications."""

    def __init__(self, options: ControllerOptions) -> None:
        set_up_logging(options.log_verbosity)
        self._options = options
        self._directory = Directory()
        self._plan: Plan | None = None
        self._changed = asyncio.Condition()
        self._started = time.monotonic()
        self._embedded_reports: dict[str, dict[str, Any]] = {}
        self._failure = ""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="repository controller")

    def check_health(self) -> None:
        """Fail, so that Serve replaces the controller, when its task has ended."""
        if self._task.done():
            raise RuntimeError(f"the controller's task has ended: {self._failure}")

    async def watch(self, generation: int) -> dict[str, Any]:
        """Return the directory once it is newer than `generation`, or after 20 s as it is."""
        try:
            async with asyncio.timeout(_WATCH_S), self._changed:
                await self._changed.wait_for(lambda: self._directory.generation > generation)
        except TimeoutError:
            pass
        return self._directory.to_dict()

    async def report_embedded(self, ingress_id: str, report: dict[str, Any]) -> None:
        """Take from an ingress what became of the models it hosts: `{"models": [[name, version, reason, seconds]]}`."""
        self._embedded_reports[ingress_id] = report
        for name, version, reason, seconds in report["models"]:
            entry = self._directory.models[name].versions.get(version)
            if entry is not None and entry.placement == "embedded":
                entry.loaded(reason, seconds)
        await self._publish()

    async def _publish(self) -> None:
        directory = self._directory
        while self._plan is not None and self._fail_dependents():
            pass  # an ensemble that fails may be a step of another
        directory.settled = self._plan is not None and all(
            entry.state != LOADING for model in directory.models.values() for entry in model.versions.values()
        )
        async with self._changed:
            directory.generation += 1
            self._changed.notify_all()

    async def _run(self) -> None:
        try:
            await self._load()
            while True:
                changed = await self._take_status()
                changed |= self._fail_dependents()
                if changed:
                    await self._publish()
                await asyncio.sleep(self._poll_s())
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
            logger.exception("the repository controller failed")
            raise

    def _poll_s(self) -> float:
        if not self._directory.settled:
            return _BUSY_POLL_S
        versions = (entry for model in self._directory.models.values() for entry in model.versions.values())
        return _REPLACING_POLL_S if any(entry.replacing for entry in versions) else _IDLE_POLL_S

    async def _load(self) -> None:
        options = self._options
        snapshot = await asyncio.to_thread(
            load_repositories, options.repositories, options.loader, complete, options.load_models
        )
        for finding in snapshot.findings:
            logger.warning("%s", finding)
        resources = await asyncio.to_thread(cluster_resources, options.gpu_memory_bytes)
        plan = make_plan(snapshot, options.plan, resources)
        self._describe(snapshot, plan)
        self._plan = plan
        await self._publish()
        packages, places = packages_by_name(plan), _places(plan)
        targets = [
            serve.RunTarget(group_application(app, group, packages, options, places), name=app, route_prefix=None)
            for app, group in _by_application(plan).items()
        ]
        if targets:
            await asyncio.to_thread(
                serve.run_many,
                targets,
                wait_for_ingress_deployment_creation=False,
                wait_for_applications_running=False,
            )

    def _describe(self, snapshot: Snapshot, plan: Plan) -> None:
        directory = self._directory
        for name, found in snapshot.models.items():
            config = "" if found.config is None else config_to_json(found.config)
            backend = "" if found.config is None else found.config.backend or found.config.platform
            reason = found.failure or plan.unplaced.get(name, "")
            directory.models[name] = entry = ModelEntry(config, backend, reason)
            for finding in found.findings:
                logger.log(logging.ERROR if finding.severity == "error" else logging.WARNING, "%s", finding)
            if reason:
                logger.error("failed to load '%s': %s", name, reason)
                for package in found.packages:
                    entry.versions[package.version] = VersionEntry(UNAVAILABLE, reason)
        for deployment in plan.deployments:
            directory.deployments.append((deployment.app_name, deployment.name))
            device = f"GPU x {deployment.num_gpus:g}" if deployment.num_gpus else "CPU"
            for model in deployment.models:
                versions = directory.models[model.name].versions
                if model.version in versions:
                    versions[model.version].replicas += deployment.replica_count
                    versions[model.version].device += f" + {device}"
                else:
                    versions[model.version] = VersionEntry(
                        LOADING, "", deployment.placement, device, deployment.replica_count
                    )
        for model in plan.embedded:
            directory.models[model.name].versions[model.version] = VersionEntry(LOADING, "", "embedded", "CPU", 1)
        packages = packages_by_name(plan)
        directory.embedded = [HostedModel.of(model, packages).to_dict() for model in plan.embedded]

    async def _take_status(self) -> bool:
        """Read from Serve how each deployment is; returns whether anything changed."""
        plan = self._plan
        assert plan is not None
        if not plan.deployments:
            return False
        status = await asyncio.to_thread(serve.status)
        changed = False
        for deployment in plan.deployments:
            app = status.applications.get(deployment.app_name)
            overview = app.deployments.get(deployment.name) if app is not None else None
            if overview is None:
                continue
            status_name = str(overview.status.value)
            for model in deployment.models:
                changed |= await self._take_deployment_status(deployment, model, status_name, overview.message)
        return changed

    async def _take_deployment_status(
        self, deployment: DeploymentPlan, model: ModelPlan, status: str, message: str
    ) -> bool:
        entry = self._directory.models[model.name].versions[model.version]
        before = (entry.state, entry.reason)
        if status in ("HEALTHY", "UPSCALING", "DOWNSCALING"):
            if deployment.placement == "packed":
                if entry.state == LOADING or entry.replacing:
                    await self._take_packed(deployment)
            elif entry.state != READY and not self._missing_step(model):
                entry.state, entry.reason, entry.replacing = READY, "", False
                entry.seconds = time.monotonic() - self._started
                logger.info("successfully loaded '%s' version %d", model.name, model.version)
        elif status in ("DEPLOY_FAILED", "UNHEALTHY"):
            replacing = status == "UNHEALTHY"
            reason = NO_REPLICA if replacing else _reason(message)
            if (entry.state, entry.reason) != (UNAVAILABLE, reason):
                entry.state, entry.reason, entry.replacing = UNAVAILABLE, reason, replacing
                logger.error("failed to load '%s' version %d: %s", model.name, model.version, reason)
        return before != (entry.state, entry.reason)

    def _fail_dependents(self) -> bool:
        """Make ensembles unavailable whose steps failed to load; returns whether anything changed."""
        plan = self._plan
        assert plan is not None
        changed = False
        models = [model for deployment in plan.deployments for model in deployment.models]
        for model in (*models, *plan.embedded):
            entry = self._directory.models[model.name].versions[model.version]
            reason = self._missing_step(model)
            if reason and not entry.failed:
                entry.state, entry.reason, entry.replacing = UNAVAILABLE, reason, False
                changed = True
        return changed

    def _missing_step(self, model: ModelPlan) -> str:
        """Return why an ensemble cannot run: a step that failed to load; "" when there is none."""
        for name in model.dependencies:
            needed = self._directory.models.get(name)
            if needed is None or not all(version.failed for version in needed.versions.values()):
                continue
            cause = needed.reason or next((version.reason for version in needed.versions.values()), "")
            return (
                f"ensemble '{model.name}' depends on '{name}' which has no loaded version. "
                f"Model '{name}' loading failed with error: {cause}"
            )
        return ""

    async def _take_packed(self, deployment: DeploymentPlan) -> None:
        handle = serve.get_deployment_handle(deployment.name, deployment.app_name)
        described = await handle.describe.remote()
        for name, version, reason, seconds in described["models"]:
            self._directory.models[name].versions[version].loaded(reason, seconds)


def cluster_resources(gpu_memory_bytes: int) -> ClusterResources:
    """Ask Ray what the cluster has."""
    total = ray.cluster_resources()
    gpus = int(total.get("GPU", 0))
    return ClusterResources(num_cpus=float(total.get("CPU", 0)), num_gpus=gpus, gpu_memory_bytes=gpu_memory_bytes)


def _places(plan: Plan) -> dict[str, list[tuple[str, str]]]:
    places: dict[str, list[tuple[str, str]]] = {}
    for deployment in plan.deployments:
        for model in deployment.models:
            places.setdefault(model.name, []).append((deployment.app_name, deployment.name))
    return places


def _by_application(plan: Plan) -> dict[str, list[DeploymentPlan]]:
    applications: dict[str, list[DeploymentPlan]] = {}
    for deployment in plan.deployments:
        applications.setdefault(deployment.app_name, []).append(deployment)
    return applications


def _reason(message: str) -> str:
    """Return the reason that a replica gave, out of Serve's text around it."""
    _, mark, reason = message.rpartition(_REASON_MARK)
    if mark:
        return reason.strip()
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1] if lines else "the replica did not start"
