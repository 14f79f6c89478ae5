"""The plan as operators read it: what becomes of each model, where, and why."""

from dataclasses import asdict
from typing import Any

from repository_loader.deployment_plan import DeploymentPlan, ModelPlan, Plan


def report_plan(plan: Plan) -> dict[str, Any]:
    """Return plain data: the deployments with what one replica of each takes, and what is elsewhere or nowhere."""
    return {
        "deployments": [_deployment(each) for each in plan.deployments],
        "embedded": [_model(each) for each in plan.embedded],
        "unplaced": dict(plan.unplaced),
    }


def _deployment(deployment: DeploymentPlan) -> dict[str, Any]:
    return {
        "key": f"{deployment.app_name}#{deployment.name}",
        "application": deployment.app_name,
        "deployment": deployment.name,
        "placement": deployment.placement,
        "models": [_model(each) for each in deployment.models],
        "replicas": deployment.replica_count,
        "cpus": deployment.num_cpus,
        "gpus": deployment.num_gpus,
        "gpu": deployment.gpu,
        "device": deployment.device,
        "memory_bytes": deployment.memory_bytes,
        "spill": deployment.spill,
        "needs": str(deployment.needs),
        "autoscaling": None if deployment.autoscaling is None else asdict(deployment.autoscaling),
    }


def _model(model: ModelPlan) -> dict[str, Any]:
    return {
        "name": model.name,
        "version": model.version,
        "why": model.why,
        "instances": len(model.specs),
        "file_bytes": model.file_bytes,
    }
