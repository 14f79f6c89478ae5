"""What the repository controller needs to know; made from the settings by whoever deploys it."""

from dataclasses import dataclass

from protocol.limits import Limits
from repository_loader.plan import PlanSettings
from repository_loader.repository import LoaderOptions


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """Options of the controller and of the replicas that it deploys.

    `load_models` None loads every model of the repositories. `gpu_memory_bytes` 0 has each GPU tell its memory.
    `response_cache_bytes` 0 is no response cache.
    """

    repositories: tuple[str, ...]
    loader: LoaderOptions
    plan: PlanSettings
    limits: Limits
    load_models: tuple[str, ...] | None = None
    lane_tcp: bool = True
    health_check_period_s: float = 2.0
    drain_timeout_s: float = 10.0
    max_batch_duration_s: float = 600.0
    gpu_memory_bytes: int = 0
    log_verbosity: int = 0
    response_cache_bytes: int = 0
