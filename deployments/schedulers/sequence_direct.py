"""The strategy `direct`: each slot of an instance is a row of its batches."""

from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.backends.backend import Batch
from deployments.core.clock import Clock, Timer
from deployments.core.instance_pool import InstancePool
from deployments.core.statistics import ModelStatistics
from deployments.core.traced_request import note_batch, traced_in
from deployments.schedulers.equal_inputs import EqualInputs
from deployments.schedulers.scheduler import reply
from deployments.schedulers.sequence_slots import SequenceOwner, Slot
from protocol.errors import ServingError
from protocol.infer import RESCHEDULED, InferRequest
from protocol.signature import Signature


class _SlotBatch(Batch):
    """A batch and the slot of each of its rows, None for a row in which no request runs."""

    __slots__ = ("slots",)

    def __init__(self, requests: list[InferRequest], slots: list[Slot | None], reason: str) -> None:
        super().__init__(requests, len(requests), reason)
        self.slots = slots

    @property
    def own_requests(self) -> list[InferRequest]:
        """Those of slots."""
        rows = zip(self.requests, self.slots, strict=True)
        return [request for request, slot in rows if slot is not None]


class DirectBatcher:
    """Runs one request of every slot that has one, up to the last such slot; rows between them are not ready.

    It waits for more slots only where both a delay and a `minimum_slot_utilization` are set. A request whose inputs do
    not fit the first one's waits for a later batch; its row is not ready in this one.
    """

    def __init__(
        self,
        owner: SequenceOwner,
        config: ModelConfig,
        signature: Signature,
        pool: InstancePool,
        statistics: ModelStatistics,
        clock: Clock,
    ) -> None:
        direct = config.sequence_batching.direct
        self.slots: list[Slot] = []
        self._owner = owner
        self._pool = pool
        self._statistics = statistics
        self._now_ns = clock.now_ns
        self._call_soon = clock.call_soon
        self._call_later = clock.call_later
        self._equal_inputs = EqualInputs.of(signature)
        waits = bool(direct.minimum_slot_utilization and direct.max_queue_delay_microseconds)
        self._delay_ns = direct.max_queue_delay_microseconds * 1000 if waits else 0
        self._least_ready = direct.minimum_slot_utilization * max(1, config.max_batch_size)
        self._dispatch_due = False
        self._timer: Timer | None = None
        pool.finished = self._finished
        pool.waits = statistics.count_pending
        pool.revived = lambda: self.wake(self.slots[0])

    @property
    def oldest_queued_ns(self) -> int:
        """Return 0: nothing is taken out of its slot before it runs."""
        return 0

    def wake(self, slot: Slot) -> None:
        """Form a batch in the loop's next turn."""
        del slot  # batches are made of all slots
        if self._pool.idle and not self._dispatch_due:
            self._dispatch_due = True
            self._call_soon(self._dispatch)

    def hurry(self) -> None:
        """Wait for nobody any more."""
        self._delay_ns = 0
        self.wake(self.slots[0])

    def cancel(self, request: InferRequest) -> None:
        """Nothing is taken out of its slot before it runs."""

    def give_back(self) -> None:
        """Nothing is taken out of its slot before it runs."""

    def abandon(self) -> None:
        """Nothing is taken out of its slot before it runs."""

    def _dispatch(self) -> None:
        self._dispatch_due = False
        while self._pool.idle and not self._dispatch_due:
            batch = self._next_batch()
            if batch is None:
                return
            self._pool.run(batch)

    def _next_batch(self) -> _SlotBatch | None:
        owner = self._owner
        if owner.held():
            return None
        for slot in self.slots:
            if slot.queue and slot.queue[0].cancelled:
                owner.cancel_slot(slot)
        ready = [slot for slot in self.slots if slot.queue]
        if not ready or self._waits(ready):
            return None
        key = self._key(ready[0])
        running = {slot for slot in ready if self._key(slot) == key}
        slots = [slot if slot in running else None for slot in self.slots[: ready[-1].number + 1]]
        reason = self._reason(len(ready), len(running))
        taken = {slot: owner.take(slot) for slot in slots if slot is not None}
        like = taken[ready[0]]
        requests = [owner.not_ready(like) if slot is None else taken[slot] for slot in slots]
        return _SlotBatch(requests, slots, reason)

    def _reason(self, ready_count: int, running_count: int) -> str:
        """Return why a batch leaves, as a dynamic batcher would say; "" where there is one slot."""
        if len(self.slots) == 1:
            return ""
        if running_count == len(self.slots):
            return "full"
        if running_count < ready_count:
            return "next_differs"
        if self._delay_ns:
            return "preferred" if ready_count >= self._least_ready else "delay"
        return "none_waits"

    def _waits(self, ready: list[Slot]) -> bool:
        if not self._delay_ns or len(ready) >= self._least_ready:
            return False
        left_ns = min(slot.queue[0].queued_ns for slot in ready) + self._delay_ns - self._now_ns()
        if left_ns <= 0:
            return False
        if self._timer is None:
            self._timer = self._call_later(left_ns / 1e9, self._delay_over)
        return True

    def _delay_over(self) -> None:
        self._timer = None
        self._dispatch()

    def _key(self, slot: Slot) -> tuple[object, ...] | None:
        if self._equal_inputs is None:
            return None
        self._owner.prepare(slot, slot.queue[0])
        return self._equal_inputs.key(slot.queue[0])

    def _finished(self, batch: Batch) -> None:
        assert isinstance(batch, _SlotBatch)
        rows = [row for row, slot in enumerate(batch.slots) if slot is not None]
        slots = [slot for slot in batch.slots if slot is not None]
        batch.requests = [batch.requests[row] for row in rows]
        if not batch.answered:
            batch.results = [batch.results[row] for row in rows]
        answer(batch, slots, self._owner, self._statistics)
        for slot in slots:
            self._owner.finished(slot)
        self.wake(self.slots[0])


def answer(batch: Batch, slots: list[Slot], owner: SequenceOwner, statistics: ModelStatistics) -> None:
    """Keep the states of a batch that has run, count it, and answer what its backend has not rescheduled."""
    for slot, result in zip(slots, batch.results, strict=not batch.answered):
        owner.ran(slot, result)
    statistics.record_batch(batch)
    traced: list[str] | None = None
    for request, result in zip(batch.requests, batch.results, strict=not batch.answered):
        if request.trace is not None:
            if traced is None:
                traced = traced_in(batch)
            note_batch(request, batch, traced)
        if isinstance(result, ServingError):
            request.flags &= ~RESCHEDULED
        if not request.flags & RESCHEDULED:
            reply(request, result)
