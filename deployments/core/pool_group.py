"""The instances of a model whose scheduler chooses among them: a pool for each."""

import time
from collections.abc import Callable, Sequence

from deployments.backends.backend import ModelInstance
from deployments.core.instance_pool import CLOSE_TIMEOUT_S, InstancePool


class PoolGroup:
    """Several pools of one instance each, looked after as one `InstancePool`."""

    def __init__(self, pools: Sequence[InstancePool]) -> None:
        self.pools = pools

    @property
    def instance_count(self) -> int:
        """How many instances there are."""
        return len(self.pools)

    @property
    def instances(self) -> list[ModelInstance]:
        """All instances."""
        return [instance for pool in self.pools for instance in pool.instances]

    @property
    def executing_count(self) -> int:
        """How many requests are in instances."""
        return sum(pool.executing_count for pool in self.pools)

    @property
    def oldest_queued_ns(self) -> int:
        """When the request came that waits the longest in a pool, 0 when none does."""
        return min(filter(None, (pool.oldest_queued_ns for pool in self.pools)), default=0)

    @property
    def may_run_inline(self) -> bool:
        """Whether batches may run on the loop's thread."""
        return all(pool.may_run_inline for pool in self.pools)

    @may_run_inline.setter
    def may_run_inline(self, allowed: bool) -> None:
        for pool in self.pools:
            pool.may_run_inline = allowed

    @property
    def alive(self) -> bool:
        """Whether an instance can run batches."""
        return any(pool.alive for pool in self.pools)

    def when_alive_changes(self, call: Callable[[], None]) -> None:
        """Make the call when an instance has died or come back."""
        for pool in self.pools:
            pool.when_alive_changes(call)

    def check(self, limit_s: float) -> str:
        """Return why an instance serves no more; see `InstancePool.check`."""
        return "; ".join(filter(None, [pool.check(limit_s) for pool in self.pools]))

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close all instances within one deadline; see `InstancePool.close`."""
        ends_s = time.monotonic() + timeout_s
        for pool in self.pools:
            pool.begin_close()
        for pool in self.pools:
            pool.close(max(0.0, ends_s - time.monotonic()))
