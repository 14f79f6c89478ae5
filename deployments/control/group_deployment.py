"""A group of the plan as a Serve application: the options of its deployments and the user_config they load from."""

from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from deployments.control.controller_options import ControllerOptions
from deployments.replica.hosted_model import HostedModel
from deployments.replica.model_replica import MAX_BATCH_SIZE, ModelReplica
from deployments.serve_internals import LANE_ROUTER, pin_version
from repository_loader.package import ModelPackage
from repository_loader.plan import DeploymentPlan

MAX_ONGOING_REQUESTS = 100_000
_START_TIMEOUT_S = 300.0


def group_application(
    app: str,
    deployments: list[DeploymentPlan],
    packages: dict[str, ModelPackage],
    options: ControllerOptions,
    places: dict[str, list[tuple[str, str]]],
) -> serve.Application:
    """Return the application of one group.

    The last deployment of the list (the highest version) is the one that `serve.get_app_handle(app)` reaches; the
    others are bound to it so that Serve deploys them too. `places` tells which deployments run a model.
    """
    bound: list[Any] = []
    for plan in deployments:
        deployment = serve.deployment(ModelReplica).options(
            name=plan.name,
            num_replicas=plan.replica_count,
            max_ongoing_requests=MAX_ONGOING_REQUESTS,
            user_config=_user_config(plan, packages, places),
            health_check_period_s=options.health_check_period_s,
            graceful_shutdown_timeout_s=options.drain_timeout_s + 5.0,
            graceful_shutdown_wait_loop_s=0.1,
            max_constructor_retry_count=1,
            ray_actor_options={"num_cpus": plan.num_cpus, "num_gpus": plan.num_gpus},
            request_router_config=RequestRouterConfig(request_router_class=LANE_ROUTER),
        )
        # Replicas restart only for other resources; what they load follows from user_config, in place.
        deployment = pin_version(deployment, "1")
        strict = plan.placement != "packed"
        arguments = (strict, options.lane_tcp, options.limits, options.drain_timeout_s, options.log_verbosity)
        bound.append(deployment.bind(*arguments, *bound))
    application: serve.Application = bound[-1]
    return application


def _user_config(
    plan: DeploymentPlan, packages: dict[str, ModelPackage], places: dict[str, list[tuple[str, str]]]
) -> dict[str, Any]:
    hosted = []
    watch: set[tuple[str, str]] = set()
    here = {model.name for model in plan.models}
    for model in plan.models:
        hosted.append(HostedModel.of(model, packages).to_dict())
        for name in model.dependencies:
            if name not in here:
                watch.update(places.get(name, ()))
    batching = [model.package.config.dynamic_batching for model in plan.models]
    sizes = [max(1, model.package.config.max_batch_size) for model in plan.models]
    delays_us = [policy.max_queue_delay_microseconds for policy in batching]
    return {
        "models": hosted,
        "watch": sorted(watch),
        "batching": {"max_batch_size": min(MAX_BATCH_SIZE, max(sizes)), "wait_s": min(delays_us) / 1e6},
    }
