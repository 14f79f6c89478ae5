"""What shall run: the repositories as they were read, and the plan that follows from them and the cluster."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

from deployments.backends.python.auto_complete import complete
from deployments.control.controller_options import ControllerOptions
from repository_loader.plan import ClusterFacts, DeploymentPlan, Plan, make_plan
from repository_loader.planned_repository import read_and_plan
from repository_loader.repository import Snapshot

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DesiredState:
    """A snapshot of the repositories, and its plan for a cluster."""

    snapshot: Snapshot
    plan: Plan
    facts: ClusterFacts

    def applications(self) -> dict[str, list[DeploymentPlan]]:
        """Return the plan's deployments by application."""
        applications: dict[str, list[DeploymentPlan]] = {}
        for deployment in self.plan.deployments:
            applications.setdefault(deployment.app_name, []).append(deployment)
        return applications

    @property
    def waiting(self) -> frozenset[str]:
        """Models that run nowhere: another cluster might have what they need."""
        return frozenset(self.plan.unplaced) | {name for name, model in self.snapshot.models.items() if model.failure}


def read_desired_state(options: ControllerOptions, facts: ClusterFacts) -> DesiredState:
    """Read the repositories for such a cluster, log what there is to say about them, and plan; blocks."""
    snapshot, plan = read_and_plan(
        options.repositories, options.loader, options.plan, facts, complete, options.load_models
    )
    for finding in snapshot.findings:
        logger.warning("%s", finding)
    _log(snapshot, plan, snapshot.models)
    return DesiredState(snapshot, plan, facts)


def place_waiting(options: ControllerOptions, facts: ClusterFacts, before: DesiredState) -> DesiredState:
    """Read again what waits, now that the cluster is another, and place it beside what runs; blocks.

    What has a place keeps it, also where the cluster has shrunk: Serve puts its replicas back when it can.
    """
    read, _ = read_and_plan(options.repositories, options.loader, options.plan, facts, complete, before.waiting)
    models = {
        name: read.models.get(name, model) if name in before.waiting else model
        for name, model in before.snapshot.models.items()
    }
    snapshot = replace(before.snapshot, models=models)
    plan = make_plan(snapshot, options.plan, facts, before.plan)
    desired = DesiredState(snapshot, plan, facts)
    _log(snapshot, plan, before.waiting - desired.waiting)
    return desired


def _log(snapshot: Snapshot, plan: Plan, names: Iterable[str]) -> None:
    for name in sorted(names):
        model = snapshot.models[name]
        for finding in model.findings:
            logger.log(logging.ERROR if finding.severity == "error" else logging.WARNING, "%s", finding)
        if reason := model.failure or plan.unplaced.get(name, ""):
            logger.error("failed to load '%s': %s", name, reason)
