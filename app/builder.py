"""The Serve application `eagleray`: the ingress and the repository controller.

`serve deploy serve_config.yaml` names `eagleray:build` as its import path and gives the settings in `args`.
"""

import logging
import secrets
from typing import Any

from pydantic import ValidationError
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from app.environment import environment, near_setting, unknown_variables
from app.ingress.count import ingresses_per_node
from app.ingress.ingress import Ingress
from app.listener_files import check_listeners
from app.listeners import Listener, clash
from app.names import INGRESS
from app.other_eagleray import other_eagleray
from app.refusals import refusals
from app.settings import Settings
from app.triton_flags import merged_settings
from deployments.control.controller_options import CONTROLLER, ControllerOptions
from deployments.control.repository_controller import RepositoryController
from deployments.serve_internals import ON_HEAD, proxy_addresses, refuses_routers, share_of_node
from protocol.limits import Limits

MAX_NODES = 1000


def build(args: dict[str, Any]) -> serve.Application:
    """Return the application for these settings; those that `args` leaves out come from the environment.

    `args` may hold whatever flag `eagleray serve` takes, named with underscores.

    Whatever it refuses leaves the application that runs as it is.

    Raises:
        RuntimeError: the processes of the cluster might run another Eagleray, or Serve runs HAProxy.
        ValueError: there is no such setting or value, or a file cannot be used without which no ingress listens.
    """
    if other := other_eagleray():
        raise RuntimeError(other)
    if refuses_routers():
        raise RuntimeError(
            "Ray Serve is set to run HAProxy (RAY_SERVE_ENABLE_HA_PROXY): it takes no request router then, and by one "
            "Eagleray finds the replicas of models; start the cluster without that variable"
        )
    merged, warnings = merged_settings(args, environment())
    settings = _settings(merged)
    check_listeners(settings)
    _check_proxies(settings)
    for warning in (*unknown_variables(), *warnings):
        # Serve's logger: the one that `serve deploy` has set up in the process that builds.
        logging.getLogger("ray.serve").warning("%s", warning)
    limits = Limits.of_input_size(settings.http_max_input_size)
    per_node = ingresses_per_node(settings)
    deployed = secrets.token_hex(8)
    controller = serve.deployment(RepositoryController).options(
        name=CONTROLLER,
        num_replicas=1,
        max_ongoing_requests=10_000,
        # The head is never given back, and without it nothing could be told to Serve.
        ray_actor_options={"num_cpus": 0, "resources": ON_HEAD if settings.min_ingress_nodes else {}},
        health_check_period_s=settings.health_check_period_s,
        graceful_shutdown_wait_loop_s=0.1,
        # When `eagleray` is deleted it ends what it has deployed.
        graceful_shutdown_timeout_s=10.0,
    )
    ingress = serve.deployment(Ingress).options(
        name=INGRESS,
        autoscaling_config=AutoscalingConfig(
            # No `initial_replicas`: at each `serve deploy` Serve would want just as many, and end the others, until it
            # asks the policy.
            min_replicas=1,
            max_replicas=MAX_NODES * per_node,
            # A node that is dead stays dead. Until Serve wants one ingress less it tries to place another in its stead,
            # and calls the application unhealthy.
            upscale_delay_s=0.0,
            downscale_delay_s=0.0,
            policy=AutoscalingPolicy(
                policy_function="eagleray.scaling:OnEveryNode",
                policy_kwargs={"per_node": per_node, "min_nodes": settings.min_ingress_nodes},
            ),
        ),
        max_ongoing_requests=10_000,
        # Those that are deployed anew serve before the ones that they replace end: they share the ports meanwhile.
        max_surge_percent=100,
        user_config={},
        ray_actor_options={"num_cpus": 0, "resources": share_of_node(f"eagleray-ingress-{deployed}", per_node)},
        health_check_period_s=settings.health_check_period_s,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=settings.drain_delay_s + settings.exit_timeout_secs + 5.0,
    )
    bound = controller.bind(controller_options(settings, limits, deployed))
    return ingress.bind(settings.model_dump(exclude_unset=True), limits, bound)


def _settings(merged: dict[str, Any]) -> Settings:
    """Return the settings; says what is wrong with them in a line, without values, which may be secrets.

    Raises:
        ValueError: there is no such setting or value.
    """
    try:
        return Settings(**merged)
    except ValidationError as error:
        sentences = [f"args: {sentence}" for sentence in refusals(error, near_setting)]
    raise ValueError("; ".join(sentences))


def _check_proxies(settings: Settings) -> None:
    """See that Ray Serve's own proxies leave the ports alone: the kernel would deal connections out to both.

    Raises:
        ValueError: they listen on one of them.
    """
    theirs = [
        Listener(f"the proxies of Ray Serve ({options})", address, port) for options, address, port in proxy_addresses()
    ]
    if told := clash([*theirs, *settings.listeners()]):
        raise ValueError(f"args: {told}")


def controller_options(settings: Settings, limits: Limits, deployed: str) -> ControllerOptions:
    """Translate the settings for the controller of the application that is `deployed` so."""
    return ControllerOptions(
        repositories=settings.model_repository,
        loader=settings.loader_options(),
        plan=settings.plan_settings(),
        limits=limits,
        control_mode=settings.model_control_mode,
        load_models=settings.load_model,
        load_retry_count=settings.model_load_retry_count,
        load_thread_count=settings.model_load_thread_count,
        repository_poll_s=settings.repository_poll_secs,
        repository_quiet_s=settings.repository_quiet_secs,
        ingress=INGRESS,
        deployed=deployed,
        lane_tcp=settings.lane_tcp,
        health_check_period_s=settings.health_check_period_s,
        drain_timeout_s=min(10.0, settings.exit_timeout_secs),
        unload_timeout_s=settings.unload_timeout_s(),
        max_batch_duration_s=settings.max_batch_duration_s,
        max_queue_s=settings.max_queue_s,
        gpu_memory_bytes=settings.gpu_memory_bytes,
        log=settings.log_options(),
        response_cache_bytes=settings.response_cache_bytes(),
        rate_limit=settings.rate_limits(),
        metrics=settings.metrics_options(),
    )
