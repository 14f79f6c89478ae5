"""What a replica needs to know to start; what it loads it hears later, by its `user_config`."""

from dataclasses import dataclass

from deployments.core.metrics_options import DEFAULT_OPTIONS, MetricsOptions
from deployments.core.rate_limit import Given
from deployments.log.log_options import DEFAULT_LOG, LogOptions
from protocol.by_name import ByName
from protocol.limits import Limits


@dataclass(frozen=True, slots=True)
class ReplicaOptions(ByName):
    """Options of a replica; those that `ControllerOptions` has too mean the same.

    With `strict` a model that cannot be loaded fails the replica.
    """

    strict: bool
    limits: Limits
    lane_tcp: bool = True
    drain_timeout_s: float = 10.0
    unload_timeout_s: float = 600.0
    max_batch_duration_s: float = 600.0
    log: LogOptions = DEFAULT_LOG
    response_cache_bytes: int = 0
    load_retry_count: int = 0
    load_thread_count: int = 4
    max_queue_s: float = 2.0
    rate_limit: Given | None = None
    metrics: MetricsOptions = DEFAULT_OPTIONS
