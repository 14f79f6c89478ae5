"""A group of the plan as a Serve application: the options of its deployments and the user_config they load from."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import orjson
from ray import serve
from ray.serve.config import RequestRouterConfig

from deployments.control.code_version import code_version
from deployments.control.controller_options import ControllerOptions
from deployments.control.gpu_cards import card_resources
from deployments.replica.hosted_model import Packages
from deployments.replica.model_replica import MAX_BATCH_SIZE, ModelReplica
from deployments.replica.replica_options import ReplicaOptions
from deployments.serve_internals import LANE_ROUTER, OWNER_KEY, pin_version
from repository_loader.deployment_plan import DeploymentPlan, Place
from repository_loader.overrides import read_overrides
from repository_loader.traffic import Traffic

MAX_ONGOING_REQUESTS = 100_000


def deployment_options(
    plan: DeploymentPlan,
    packages: Packages,
    options: ControllerOptions,
    places: Mapping[str, list[Place]],
    owner: str,
    traffic: Mapping[str, Traffic] = MappingProxyType({}),
    *,
    slow_end: bool = False,
) -> dict[str, Any]:
    """Return the options of one deployment; equal options need no new deployment.

    `places` tells which deployments run a model, `owner` the Serve application on whose behalf it runs, `traffic` how
    the versions of a model share requests; with a `slow_end` a replica that Serve ends may take as long as a batch.
    """
    return {
        "name": plan.name,
        "num_replicas": plan.replica_count,
        "max_ongoing_requests": MAX_ONGOING_REQUESTS,
        "user_config": user_config(plan, packages, places, owner, traffic),
        "health_check_period_s": options.health_check_period_s,
        "graceful_shutdown_timeout_s": waits_s(options, slow_end=slow_end),
        "graceful_shutdown_wait_loop_s": 0.1,
        "max_constructor_retry_count": 1,
        # What needs other resources is there before what it replaces goes.
        "max_surge_percent": 100,
        "ray_actor_options": _actor_options(plan),
        "request_router_config": _lane_router(),
    }


@cache
def _lane_router() -> RequestRouterConfig:
    """Serve pickles the class of each that is made, which takes as long as the options of some deployments."""
    return RequestRouterConfig(request_router_class=LANE_ROUTER)


@cache
def _replica() -> serve.Deployment:
    """Return the deployment that each one is made from, with other options: Serve takes 10 ms for a new one."""
    return serve.deployment(ModelReplica)


def waits_s(options: ControllerOptions, *, slow_end: bool) -> float:
    """Return how long Serve waits for a replica that it ends, in seconds: longer than it takes for what it has."""
    return (max(options.drain_timeout_s, options.unload_timeout_s) if slow_end else options.drain_timeout_s) + 5.0


def group_application(
    group_options: Sequence[Mapping[str, Any]],
    plans: Sequence[DeploymentPlan],
    options: ControllerOptions,
    count: Callable[[str, str], int | None],
) -> serve.Application:
    """Return the application of one group: its deployments' options, in the order of their plans.

    The last of them (the highest version) is the one that `serve.get_app_handle(app)` reaches; the others are bound
    to it so that Serve deploys them too. `count` says how many replicas an autoscaled deployment has just now.
    """
    bound: list[Any] = []
    for deployment_options, plan in zip(group_options, plans, strict=True):
        of_replica = ReplicaOptions(
            strict=plan.placement != "packed",
            limits=options.limits,
            lane_tcp=options.lane_tcp,
            drain_timeout_s=options.drain_timeout_s,
            unload_timeout_s=options.unload_timeout_s,
            max_batch_duration_s=options.max_batch_duration_s,
            log=options.log,
            response_cache_bytes=options.response_cache_bytes,
            load_retry_count=options.load_retry_count,
            load_thread_count=options.load_thread_count,
            max_queue_s=options.max_queue_s,
            rate_limit=options.rate_limit,
            metrics=options.metrics,
        )
        replicas = max(1, count(plan.app_name, plan.name) or plan.replica_count)
        deployment = _replica().options(**{**deployment_options, "num_replicas": replicas})
        # Replicas restart for other resources, options or code only; what they load follows from user_config, in place.
        deployment = pin_version(deployment, _digest(repr(of_replica)))
        bound.append(deployment.bind(of_replica, *bound))
    application: serve.Application = bound[-1]
    return application


def _digest(options: str) -> str:
    return hashlib.sha256(f"{code_version()} {options}".encode()).hexdigest()[:16]


def _actor_options(plan: DeploymentPlan) -> dict[str, Any]:
    """Return what each replica asks Ray for."""
    if plan.gpu is None:
        options: dict[str, Any] = {"num_cpus": plan.num_cpus, "num_gpus": plan.num_gpus}
        if plan.reserved_memory_bytes:
            options["memory"] = plan.reserved_memory_bytes
        if plan.needs.accelerator_type:
            options["accelerator_type"] = plan.needs.accelerator_type
        if plan.needs.labels:
            options["label_selector"] = dict(plan.needs.labels)
        return options
    return {"num_cpus": plan.num_cpus, "num_gpus": 0, "resources": card_resources(plan.gpu, plan.num_gpus, plan.needs)}


def user_config(
    plan: DeploymentPlan,
    packages: Packages,
    places: Mapping[str, list[Place]],
    owner: str,
    traffic: Mapping[str, Traffic] = MappingProxyType({}),
) -> dict[str, str]:
    """Return what a replica of the deployment loads.

    It is one string: Serve's controller copies a user_config, value by value, several times a second.
    """
    steps = {name for model in plan.models for name in model.dependencies}
    here = {model.name for model in plan.models if not model.leaving}
    # A step that is here may still have another place, which it leaves once it has been loaded here.
    watch = {place for name in steps for place in places.get(name, ())} - {plan.place}
    scaled = {name for name in steps - here if name in packages and read_overrides(packages[name].config).autoscaling}
    sizes = [max(1, model.package.config.max_batch_size) for model in plan.models] or [1]
    delays_us = [model.package.config.dynamic_batching.max_queue_delay_microseconds for model in plan.models] or [0]
    load = {
        "models": [packages.told(model) for model in plan.models],
        "watch": sorted(watch),
        "scaled": sorted(scaled),
        "traffic": {name: traffic[name].to_dict() for name in steps & traffic.keys()},
        "spill": plan.spill,
        "batching": {"max_batch_size": min(MAX_BATCH_SIZE, max(sizes)), "wait_s": min(delays_us) / 1e6},
    }
    return {OWNER_KEY: owner, "load": orjson.dumps(load, option=orjson.OPT_SORT_KEYS).decode()}
