"""One loaded version of a model: what requests are given to."""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from deployments.core.clock import Clock
from deployments.core.instance_pool import InstancePool
from deployments.core.pool_group import PoolGroup
from deployments.core.response_streams import ResponseStreams
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.scheduler import Scheduler
from deployments.schedulers.sequence import SequenceScheduler
from protocol.infer import SEQUENCE_START, InferRequest
from protocol.signature import Signature
from repository_loader.package import ModelPackage

log = logging.getLogger(__name__)

DRAIN_TIMEOUT_S: Final = 30.0
"""For a process that ends."""
UNLOAD_TIMEOUT_S: Final = 600.0
"""For a version that is unloaded or replaced while its process goes on; nobody waits for it but its clients."""
GRACE_S: Final = 0.5
_STREAM_POLL_S = 0.02


class ModelVersion:
    """A model version with its scheduler, its instances and its statistics.

    `submit` takes a request whose outcomes all come through its `reply`, and `cancel` gives one up; both are the
    scheduler's own methods. `pool` is None for an ensemble, whose requests under way are `running`; `passive` has the
    instances that get no requests. `older` is the same with the instances of before, in which sequences go on.
    """

    __slots__ = (
        "_cancel",
        "_clock",
        "_passive",
        "_submit",
        "cancel",
        "interface",
        "older",
        "package",
        "pool",
        "running",
        "scheduler",
        "signature",
        "statistics",
        "streams",
        "submit",
    )

    def __init__(
        self,
        package: ModelPackage,
        signature: Signature,
        statistics: ModelStatistics,
        scheduler: Scheduler,
        pool: InstancePool | PoolGroup | None,
        clock: Clock,
        passive: InstancePool | None = None,
        running: Collection[InferRequest] = (),
    ) -> None:
        self.package = package
        self.signature = signature
        self.interface = signature.interface
        self.statistics = statistics
        self.scheduler = scheduler
        self.pool = pool
        self.running = running
        self.streams = ResponseStreams(statistics, clock) if signature.decoupled else None
        self.submit: Callable[[InferRequest], None] = scheduler.submit if self.streams is None else self._submit_stream
        self.cancel: Callable[[InferRequest], None] = scheduler.cancel
        self._submit, self._cancel = self.submit, self.cancel
        self.older: ModelVersion | None = None
        self._clock = clock
        self._passive = passive

    @property
    def name(self) -> str:
        """The model's name."""
        return self.package.name

    @property
    def version(self) -> int:
        """The version's number."""
        return self.package.version

    @property
    def oldest_age_ns(self) -> int:
        """How long the request has waited that waits the longest, 0 when none does."""
        in_pool_ns = 0 if self.pool is None else self.pool.oldest_queued_ns
        oldest_ns = min(filter(None, (self.scheduler.oldest_queued_ns, in_pool_ns)), default=0)
        return max(0, self._clock.now_ns() - oldest_ns) if oldest_ns else 0

    def check(self, limit_s: float) -> str:
        """Return why the version cannot serve any more, "" while it can; see `InstancePool.check`.

        A decoupled model may stream for as long as it likes.
        """
        if self.pool is None:
            return ""
        fault = self.pool.check(0.0 if self.signature.decoupled else limit_s)
        return fault if self.older is None else fault or self.older.check(limit_s)

    def _submit_stream(self, request: InferRequest) -> None:
        assert self.streams is not None
        self.streams.open(request)
        self.scheduler.submit(request)

    @property
    def sequence_count(self) -> int:
        """How many sequences are not over, here and in the instances of before."""
        here = self.scheduler.sequence_count if isinstance(self.scheduler, SequenceScheduler) else 0
        return here + (0 if self.older is None else self.older.sequence_count)

    def holds(self, sequence_id: int | str) -> bool:
        """Whether a sequence of this id is not over, here or in the instances of before."""
        here = isinstance(self.scheduler, SequenceScheduler) and self.scheduler.holds(sequence_id)
        return here or (self.older is not None and self.older.holds(sequence_id))

    def follow(self, older: "ModelVersion") -> None:
        """Leave the sequences that are under way to the instances of before, as long as `older` is there."""
        self.older = older
        self.submit, self.cancel = self._submit_to_either, self._cancel_in_either

    def comes_before(self, older: "ModelVersion") -> bool:
        """Whether sequences may be left to the instances of `older`."""
        return self.older is not None and (self.older is older or self.older.comes_before(older))

    def forget(self, older: "ModelVersion") -> None:
        """Leave sequences no longer to `older`, but to what it leaves them to itself."""
        if self.older is older:
            self.older = older.older
        elif self.older is not None:
            self.older.forget(older)

    def leaves(self, sequence_id: int | str) -> bool:
        """End a sequence unless something of it waits or runs; returns whether it is over."""
        if self.older is not None and not self.older.leaves(sequence_id):
            return False
        return not isinstance(self.scheduler, SequenceScheduler) or self.scheduler.leaves(sequence_id)

    def _submit_to_either(self, request: InferRequest) -> None:
        older, sequence_id = self.older, request.sequence_id
        if older is None or not older.holds(sequence_id):
            self._submit(request)
        elif not request.flags & SEQUENCE_START or not older.leaves(sequence_id):
            older.submit(request)
        else:
            self._submit(request)

    def _cancel_in_either(self, request: InferRequest) -> None:
        if self.older is not None:
            self.older.cancel(request)
        self._cancel(request)

    def end_sequence(self, sequence_id: int | str) -> None:
        """End a sequence that has started anew in another replica."""
        if self.older is not None:
            self.older.end_sequence(sequence_id)
        if isinstance(self.scheduler, SequenceScheduler):
            self.scheduler.end_sequence(sequence_id)

    async def close(self, timeout_s: float = DRAIN_TIMEOUT_S) -> None:
        """Refuse new requests, answer those that were taken, and free the instances.

        What is still queued after `timeout_s` is refused. A batch that still runs then, and instances that take long to
        be freed, get `GRACE_S` more and are left to themselves.
        """
        self.older = None
        loop = asyncio.get_running_loop()
        drained: asyncio.Future[None] = loop.create_future()
        deadline_s = loop.time() + timeout_s
        self.scheduler.drain(lambda: None if drained.done() else drained.set_result(None))
        try:
            await asyncio.wait_for(drained, timeout_s)
        except TimeoutError:
            log.warning("model '%s' version %d did not drain in %g s", self.name, self.version, timeout_s)
            self.scheduler.abandon()
        while self.streams is not None and self.streams.open_count and loop.time() < deadline_s:
            await asyncio.sleep(_STREAM_POLL_S)
        if self.pool is None:
            return
        left_s = max(0.0, deadline_s - loop.time()) + GRACE_S
        pools = [pool for pool in (self.pool, self._passive) if pool is not None]
        closing = asyncio.gather(*(asyncio.to_thread(pool.close, left_s) for pool in pools))
        try:  # shielded, for what still waits for a thread then is to be freed all the same
            await asyncio.wait_for(asyncio.shield(closing), left_s + GRACE_S)
        except TimeoutError:
            log.error("model '%s' version %d could not be freed in time and is left to itself", self.name, self.version)
