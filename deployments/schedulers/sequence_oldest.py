"""The strategy `oldest`: a dynamic batcher for each instance takes one request of each of its sequences at a time."""

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelDynamicBatching

from deployments.backends.backend import Batch
from deployments.core.clock import Clock
from deployments.core.instance_pool import InstancePool
from deployments.core.statistics import ModelStatistics
from deployments.schedulers.dynamic import DynamicBatcher
from deployments.schedulers.sequence_direct import answer
from deployments.schedulers.sequence_slots import SequenceOwner, Slot
from protocol.errors import ServingError
from protocol.infer import InferRequest
from protocol.signature import Signature


class OldestBatcher(DynamicBatcher):
    """Batches hold real requests only, in the order in which their sequences became ready for the next."""

    def __init__(
        self,
        owner: SequenceOwner,
        config: ModelConfig,
        signature: Signature,
        pool: InstancePool,
        statistics: ModelStatistics,
        clock: Clock,
    ) -> None:
        oldest = config.sequence_batching.oldest
        batching = ModelDynamicBatching(
            preferred_batch_size=oldest.preferred_batch_size,
            max_queue_delay_microseconds=oldest.max_queue_delay_microseconds,
            preserve_ordering=oldest.preserve_ordering,
        )
        super().__init__(batching, signature, pool, statistics, clock)
        self.slots: list[Slot] = []
        self._owner = owner
        self._arrivals: dict[InferRequest, tuple[Slot, int]] = {}

    @property
    def oldest_queued_ns(self) -> int:
        """When the request came that waits the longest of those taken out of their slots, 0 when none does."""
        return min((self._arrivals[request][1] for request in self._requests), default=0)

    def wake(self, slot: Slot) -> None:
        """Take the next request of a slot, once the one before it has run."""
        if slot.running is not None or not slot.queue:
            return
        if slot.queue[0].cancelled:
            self._owner.cancel_slot(slot)
            return
        request = self._owner.take(slot)
        self._arrivals[request] = slot, request.queued_ns
        self.submit(request)

    def hurry(self) -> None:
        """Wait for nobody any more."""
        self._delay_ns = self._hold_count = 0
        self._schedule_dispatch()

    def give_back(self) -> None:
        """Put the requests that wait for the instance back into their slots."""
        for request in [self._requests.popleft() for _ in range(len(self._requests))]:
            slot, request.queued_ns = self._arrivals.pop(request)
            slot.queue.appendleft(request)
            slot.running = slot.prepared = None

    def _next_batch(self) -> Batch | None:
        batch = super()._next_batch()
        if batch is not None:
            self._set_back(batch)
        return batch

    def _grow(self, batch: Batch) -> None:
        super()._grow(batch)
        self._set_back(batch)

    def _set_back(self, batch: Batch) -> None:
        """Count the wait of requests from when they came again; in the queue it is from their turn, for the delay."""
        for request in batch.requests:
            _, request.queued_ns = self._arrivals[request]

    def _answer(self, batch: Batch) -> None:
        slots = [self._arrivals.pop(request)[0] for request in batch.requests]
        answer(batch, slots, self._owner, self._statistics)
        for slot in slots:
            self._owner.finished(slot)

    def _fail(self, request: InferRequest, error: ServingError, reason: str) -> None:
        slot, _ = self._arrivals.pop(request)
        super()._fail(request, error, reason)
        self._owner.dropped(slot)
