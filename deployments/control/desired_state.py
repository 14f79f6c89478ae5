"""What shall run: the repositories as they were read, and the plan that follows from them and the cluster."""

import logging
from dataclasses import dataclass

import ray

from deployments.backends.python.auto_complete import complete
from deployments.control.controller_options import ControllerOptions
from repository_loader.plan import ClusterResources, DeploymentPlan, Plan, make_plan
from repository_loader.repository import Snapshot, load_repositories

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DesiredState:
    """A snapshot of the repositories, and its plan."""

    snapshot: Snapshot
    plan: Plan

    def applications(self) -> dict[str, list[DeploymentPlan]]:
        """Return the plan's deployments by application."""
        applications: dict[str, list[DeploymentPlan]] = {}
        for deployment in self.plan.deployments:
            applications.setdefault(deployment.app_name, []).append(deployment)
        return applications


def read_desired_state(options: ControllerOptions) -> DesiredState:
    """Read the repositories, log what there is to say about them, and plan; blocks."""
    snapshot = load_repositories(options.repositories, options.loader, complete, options.load_models)
    for finding in snapshot.findings:
        logger.warning("%s", finding)
    plan = make_plan(snapshot, options.plan, cluster_resources(options.gpu_memory_bytes))
    for name, model in snapshot.models.items():
        for finding in model.findings:
            logger.log(logging.ERROR if finding.severity == "error" else logging.WARNING, "%s", finding)
        if reason := model.failure or plan.unplaced.get(name, ""):
            logger.error("failed to load '%s': %s", name, reason)
    return DesiredState(snapshot, plan)


def cluster_resources(gpu_memory_bytes: int) -> ClusterResources:
    """Ask Ray what the cluster has."""
    total = ray.cluster_resources()
    gpus = int(total.get("GPU", 0))
    return ClusterResources(num_cpus=float(total.get("CPU", 0)), num_gpus=gpus, gpu_memory_bytes=gpu_memory_bytes)
