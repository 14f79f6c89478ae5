"""How many replicas a model has by its own load: bounds and targets, and the number that follows from them."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """Bounds and targets of one model.

    `target_ongoing_requests` is how many requests shall be under way to each replica, in its queue and running.
    `target_latency_ms` is how long a request shall take at most in the mean, 0 for any time. Fewer replicas are had
    only when fewer would have done for `downscale_delay_s`. Where there is none, a request waits for the first for
    `start_timeout_s`.
    """

    min_replicas: int = 1
    max_replicas: int = 1
    target_ongoing_requests: float = 16.0
    target_latency_ms: float = 0.0
    downscale_delay_s: float = 30.0
    start_timeout_s: float = 60.0

    def wanted(self, ongoing: float, sent_per_s: float, running: int) -> int:
        """Return the number of replicas for a load: requests under way, and how many begin in a second."""
        count = math.ceil(ongoing / self.target_ongoing_requests - 1e-9)
        if sent_per_s > 0:
            count = max(count, 1)  # quick ones are seldom under way when somebody looks
        if self.target_latency_ms and sent_per_s > 0 and ongoing > running:
            # As many are under way as begin in the time that one takes (Little).
            latency_ms = 1e3 * ongoing / sent_per_s
            count = max(count, min(math.ceil(running * latency_ms / self.target_latency_ms - 1e-9), 2 * running))
        return max(self.min_replicas, min(self.max_replicas, count))
