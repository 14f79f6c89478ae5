"""What the repository controller needs to know; made from the settings by whoever deploys it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from deployments.core.metrics_options import DEFAULT_OPTIONS, MetricsOptions
from deployments.core.rate_limit import Given
from deployments.log.log_options import DEFAULT_LOG, LogOptions
from protocol.by_name import ByName
from protocol.limits import Limits
from repository_loader.deployment_plan import PlanSettings
from repository_loader.repository import choose_models
from repository_loader.snapshot import LoaderOptions

ControlMode = Literal["none", "poll", "explicit"]
CONTROLLER: Final = "RepositoryController"
"""The controller's deployment."""


@dataclass(frozen=True, slots=True)
class ControllerOptions(ByName):
    """Options of the controller and of the replicas that it deploys.

    `load_models` are names and patterns (`*`) of what to load at the start in explicit mode. `gpu_memory_bytes` 0 has
    each GPU tell its memory. `response_cache_bytes` 0 is no response cache, `rate_limit` None no rate limiter.
    `ingress` is the deployment that follows the directory. A controller goes on with what another one was told that
    was `deployed` with it; whoever deploys again has the repositories read again. `unload_timeout_s` is how long what
    is unloaded or replaced in a process that goes on has to answer what it has taken, `drain_timeout_s` how long a
    replica has that Serve ends. Of a node that drains it ends replicas so long before the node goes, replaced or not.
    """

    repositories: tuple[str, ...]
    loader: LoaderOptions
    plan: PlanSettings
    limits: Limits
    control_mode: ControlMode = "none"
    load_models: tuple[str, ...] = ()
    load_retry_count: int = 0
    load_thread_count: int = 4
    repository_poll_s: float = 15.0
    repository_quiet_s: float = 2.0
    ingress: str = "Ingress"
    deployed: str = ""
    lane_tcp: bool = True
    health_check_period_s: float = 2.0
    drain_timeout_s: float = 10.0
    unload_timeout_s: float = 600.0
    max_batch_duration_s: float = 600.0
    max_queue_s: float = 2.0
    gpu_memory_bytes: int = 0
    log: LogOptions = DEFAULT_LOG
    response_cache_bytes: int = 0
    rate_limit: Given | None = None
    metrics: MetricsOptions = DEFAULT_OPTIONS

    def models_at_start(self) -> list[str] | None:
        """Return the models to load at the start, None for all of the repositories; blocks."""
        if self.control_mode != "explicit":
            return None
        return self.models_called(self.load_models)

    def models_called(self, names: Sequence[str]) -> list[str]:
        """Return the models that names and patterns of `load_models` stand for; blocks."""
        return choose_models(self.repositories, self.loader, names)
