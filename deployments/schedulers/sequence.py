"""The sequence batcher: the requests of a sequence run in order on one instance, in one slot of it.

Source: core's SequenceBatchScheduler.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, count
from typing import Final

from tritonclient.grpc.model_config_pb2 import ModelConfig

from deployments.core.clock import NEVER_NS, Clock, Timer
from deployments.core.instance_pool import InstancePool
from deployments.core.statistics import CANCELED, OTHER, REJECTED, ModelStatistics
from deployments.schedulers.dynamic import HOLD_VARIABLE, held_count
from deployments.schedulers.implicit_states import ImplicitStates, StateKeeper
from deployments.schedulers.outage import LASTS, Outage
from deployments.schedulers.scheduler import STOPPING, reply
from deployments.schedulers.sequence_controls import SequenceControls
from deployments.schedulers.sequence_direct import DirectBatcher
from deployments.schedulers.sequence_oldest import OldestBatcher
from deployments.schedulers.sequence_slots import (
    RUNNING,
    Backlog,
    SequenceBatcher,
    SequenceId,
    SequenceSlots,
    Slot,
    deadline_ns,
)
from protocol.bytes_tensor import blank_array
from protocol.errors import Cancelled, InvalidArgument, ServingError, Unavailable, UnknownSequence
from protocol.infer import RESCHEDULED, SEQUENCE_END, SEQUENCE_START, InferRequest, InferResponse, read_only
from protocol.signature import Signature

log = logging.getLogger(__name__)

BACKLOG_HOLD_VARIABLE: Final = "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"
LOST: Final = "the instance of sequence {} of model '{}' has died; the sequence may start anew"
MOVED: Final = "sequence {} of model '{}' has started anew in another replica"
CUT: Final = "sequence {} of model '{}' was cancelled"
EXPIRED: Final = "timeout of the corresponding sequence has been expired"
_STILL_NS: Final = 100_000_000
_PATIENCE_NS: Final = 1_000_000_000
"""How long no sequence ends for being idle after the process has stood still, and has yet to read what came."""


class SequenceScheduler:
    """Finds the slot of each request, and ends sequences that are cancelled, idle for too long or late.

    `pools` hold one instance each. With `iterative_sequence` a request without an id is a sequence of its own, and one
    that its backend reschedules runs again.
    """

    def __init__(
        self,
        config: ModelConfig,
        pools: Sequence[InstancePool],
        statistics: ModelStatistics,
        clock: Clock,
        states: ImplicitStates | None = None,
    ) -> None:
        sequence = config.sequence_batching
        self._model_name = config.name
        self._statistics = statistics
        self._now_ns = clock.now_ns
        self._call_soon = clock.call_soon
        self._call_later = clock.call_later
        self._controls = SequenceControls(config)
        self._states = states
        self._decoupled = config.model_transaction_policy.decoupled
        self._iterative = sequence.iterative_sequence
        self._ids = count(1)
        self._idle_ns = sequence.max_sequence_idle_microseconds * 1000
        self._used: OrderedDict[SequenceId, int] = OrderedDict()
        self._timer: Timer | None = None
        self._timer_ns = self._late_ns = NEVER_NS
        self._patient_until_ns = 0
        self._open_count = 0
        self._drained: Callable[[], None] | None = None
        self._stopping = self._over = False
        signature = Signature.for_backend(config)
        oldest = sequence.HasField("oldest")
        kind: type[OldestBatcher] | type[DirectBatcher] = OldestBatcher if oldest else DirectBatcher
        candidates = sequence.oldest.max_candidate_sequences if oldest else 0
        slot_count = candidates if candidates > 0 else max(1, config.max_batch_size)
        self._batchers = [kind(self, config, signature, pool, statistics, clock) for pool in pools]
        self._pools: dict[SequenceBatcher, InstancePool] = dict(zip(self._batchers, pools, strict=True))
        for batcher, pool in self._pools.items():
            pool.died = partial(self._lost, batcher)
            pool.revived = partial(self._revived, batcher, pool.revived)
        slots = [Slot(batcher, number) for number in range(slot_count) for batcher in self._batchers]
        for slot in slots:
            slot.batcher.slots.append(slot)
        self._slots = SequenceSlots(slots)
        self._outage = Outage(clock, lambda: self._slots.some_live, self._give_up_waiting)
        self._hold_count = 0 if oldest else held_count(HOLD_VARIABLE)
        self._hold_backlog_count = held_count(BACKLOG_HOLD_VARIABLE) if self._hold_count else 0

    @property
    def oldest_queued_ns(self) -> int:
        """When the request came that waits the longest, for its slot or in it, 0 when none does."""
        waiting_ns = (queue[0].queued_ns for queue in self._slots.queues() if queue)
        taken_ns = (batcher.oldest_queued_ns for batcher in self._batchers)
        return min(chain(waiting_ns, filter(None, taken_ns)), default=0)

    @property
    def sequence_count(self) -> int:
        """How many sequences are not over."""
        return len(self._slots)

    def holds(self, sequence_id: SequenceId) -> bool:
        """Whether a sequence of this id is not over."""
        return sequence_id in self._slots

    def leaves(self, sequence_id: SequenceId) -> bool:
        """End a sequence unless something of it waits or runs; returns whether it is over."""
        slot = self._slots.slot_of(sequence_id)
        if slot is not None and slot.idle:
            self._end(slot)
            self._release(slot)
        return not self.holds(sequence_id)

    def submit(self, request: InferRequest) -> None:
        """Queue the request in its sequence's slot or backlog, or refuse it with Triton's text."""
        request.queued_ns = now_ns = self._now_ns()
        if not request.received_ns:
            request.received_ns = now_ns
        try:
            self._check(request)
        except ServingError as error:
            error.refused = True
            self._call_soon(partial(reply, request, error))
            return
        sequence_id = request.sequence_id
        if request.flags & SEQUENCE_START and self._slots.has(sequence_id):
            log.debug("sequence %s of model '%s' starts anew before it has ended", sequence_id, self._model_name)
        self._open_count += 1
        self._statistics.counts.pending_count += 1
        slot = self._slots.place(request)
        if slot is None:
            self._late_ns = min(self._late_ns, deadline_ns(request))
            self._wake_at(self._late_ns)
        else:
            self._use(sequence_id, now_ns)
            slot.batcher.wake(slot)
        if self._hold_count:
            for batcher in self._batchers:
                batcher.wake(batcher.slots[0])

    def cancel(self, request: InferRequest) -> None:
        """Give up the whole sequence of a request that waits; one that runs already ends when it is answered."""
        request.cancelled = True
        holder = self._slots.holder_of(request.sequence_id)
        if isinstance(holder, Slot) and holder.running is request:
            if self._pools[holder.batcher].holds_back(request):
                self.cancel_slot(holder, RUNNING)
            else:
                holder.batcher.cancel(request)
        elif holder is not None and request in holder.queue:
            place = holder.queue.index(request)
            if isinstance(holder, Slot):
                self.cancel_slot(holder, place)
            else:
                self._fail_cancelled(self._slots.cut(holder, place), request.sequence_id)

    def drain(self, drained: Callable[[], None]) -> None:
        """Take no new sequences, and nothing at all once nothing is queued or running; then `drained` is called.

        Those that wait in the backlog get the slots of sequences with nothing under way: clients go on elsewhere.
        """
        self._drained = drained
        self._stopping = True
        for batcher in self._batchers:
            batcher.hurry()
        for slot in self._slots.slots:
            if slot.sequence_id is not None:
                self._release_if_over(slot)
        self._call_soon(self._check_drained)

    def abandon(self) -> None:
        """Fail the queued requests as a stopping server does, and those that are to run again."""
        self._over = True
        self._give_up_backlogs(STOPPING)
        for slot in self._slots.slots:
            waiting, slot.queue = slot.queue, deque()
            self._fail(waiting, Unavailable(STOPPING), OTHER)
        for batcher in self._batchers:
            batcher.abandon()

    # What the batchers of the instances ask and tell.

    def take(self, slot: Slot) -> InferRequest:
        """Return the next request of a slot, ready to run."""
        request = slot.running = slot.queue.popleft()
        self._statistics.counts.pending_count -= 1
        self.prepare(slot, request)
        return request

    def prepare(self, slot: Slot, request: InferRequest) -> None:
        """Give a request its controls and its states."""
        if slot.prepared is request:
            return
        slot.prepared = request
        if self._iterative:  # each run begins with what the client has sent, whatever a model has written there
            if slot.given is None or slot.given[0] is not request:
                slot.given = request, {name: read_only(array) for name, array in request.inputs.items()}
            request.inputs = slot.given[1].copy()
        self._controls.set(request)
        if self._states is None:
            return
        if slot.states is None or request.flags & SEQUENCE_START:
            slot.states = self._states.begin()
        slot.wanted = request.outputs
        self._states.set(request, slot.states)
        if self._decoupled and not isinstance(request.reply, StateKeeper):
            request.reply = StateKeeper(self._states, slot.states, slot.wanted, request.reply)

    def not_ready(self, like: InferRequest) -> InferRequest:
        """Return a request for a row of a batch in which none runs, shaped as another one."""
        inputs = {name: blank_array(array.dtype, array.shape) for name, array in like.inputs.items()}
        return InferRequest(inputs | self._controls.not_ready(), 1, _unheard, outputs=like.outputs)

    def ran(self, slot: Slot, result: InferResponse | ServingError) -> None:
        """Keep the states of an answer before its client gets it."""
        if self._states is not None and slot.states is not None and isinstance(result, InferResponse):
            self._states.keep(slot.states, result, slot.wanted)

    def finished(self, slot: Slot) -> None:
        """Go on with a slot whose request the instance is done with."""
        request, slot.running, slot.prepared = slot.running, None, None
        assert request is not None
        if self._iterative:
            if request.flags & RESCHEDULED:
                self._run_again(slot, request)
                return
            slot.given = None
            if not slot.queue:
                self._end(slot)
        self._open_count -= 1
        if slot.queue:
            slot.batcher.wake(slot)
        else:
            self._release_if_over(slot)
        if self._drained is not None:
            self._check_drained()

    def _run_again(self, slot: Slot, request: InferRequest) -> None:
        request.flags = 0
        request.queued_ns = self._now_ns()
        if self._states is not None:
            request.outputs = slot.wanted
        self._statistics.counts.pending_count += 1
        if self._over:
            self._fail((request,), Unavailable(STOPPING), OTHER)
            return
        slot.queue.appendleft(request)
        self._use(request.sequence_id, request.queued_ns)
        slot.batcher.wake(slot)

    def dropped(self, slot: Slot) -> None:
        """End the sequence of a slot whose running request was answered without having run."""
        slot.running = slot.prepared = slot.given = None
        self._open_count -= 1
        self.cancel_slot(slot, RUNNING)

    def cancel_slot(self, slot: Slot, place: int = 0) -> None:
        """End the sequence of the request at a place in a slot, which was cancelled."""
        sequence_id = slot.sequence_id
        waiting = self._slots.cut(slot, place)
        if slot.ended:
            self._end(slot)
        self._fail_cancelled(waiting, sequence_id)
        if slot.queue:
            slot.batcher.wake(slot)
        elif slot.idle and slot.sequence_id is not None:
            self._release(slot)

    def _fail_cancelled(self, requests: Iterable[InferRequest], sequence_id: SequenceId | None) -> None:
        """Say why: others than the one who cancelled may wait for them, and take an error without words for none."""
        self._fail(requests, Cancelled(CUT.format(sequence_id, self._model_name)), CANCELED)

    def end_sequence(self, sequence_id: SequenceId) -> None:
        """End a sequence that has started anew in another replica; what waits of it here fails."""
        holder = self._slots.holder_of(sequence_id)
        if isinstance(holder, Backlog):
            error = Unavailable(MOVED.format(sequence_id, self._model_name))
            self._fail(self._slots.drop_backlog(holder), error, OTHER)
        elif holder is not None and not holder.ended:
            self._give_up(holder, MOVED)

    def _lost(self, batcher: SequenceBatcher) -> None:
        """End the sequences of an instance that has died, and with it what it knew of them."""
        self._slots.withdraw(batcher)
        self._outage.look()
        batcher.give_back()  # the new process must not run what continues a sequence that it does not know
        for slot in batcher.slots:
            if slot.sequence_id is not None:
                self._give_up(slot, LOST)

    def _revived(self, batcher: SequenceBatcher, go_on: Callable[[], None]) -> None:
        """Use the slots of an instance that is back."""
        for slot in self._slots.restore(batcher):
            self._begin(slot)
        self._outage.look()
        go_on()

    def _give_up_waiting(self) -> bool:
        """Fail what waits for instances that are not back; returns whether more may come."""
        self._give_up_backlogs(LASTS)
        for slot in self._slots.slots:
            if slot.queue:
                self._give_up(slot, LASTS)
        return not self._over

    def _give_up_backlogs(self, text: str) -> None:
        for backlog in tuple(self._slots.backlogs()):
            if self._slots.waits(backlog):  # a reply to one before it may have cancelled it, or made room for it
                self._fail(self._slots.drop_backlog(backlog), Unavailable(text), OTHER)

    def _give_up(self, slot: Slot, text: str) -> None:
        waiting, slot.queue = slot.queue, deque()
        self._end(slot)
        self._fail(waiting, Unavailable(text.format(slot.sequence_id, self._model_name)), OTHER)
        if slot.idle:
            self._release(slot)

    def held(self) -> bool:
        """Whether `TRITONSERVER_DELAY_SCHEDULER` and its like for the backlog still hold the first batch back."""
        if self._hold_count and not self._stopping:
            following = sum(_following_count(slot.queue) for slot in self._slots.slots)
            queued = sum(len(slot.queue) for slot in self._slots.slots) - following
            backlog = sum(len(backlog.queue) for backlog in self._slots.backlogs()) + following
            if queued < self._hold_count or backlog < self._hold_backlog_count:
                return True
            self._hold_count = 0
        return False

    def _check(self, request: InferRequest) -> None:
        name = self._model_name
        if request.rows != 1:
            raise InvalidArgument(
                f"inference request to model '{name}' must specify batch-size 1 due to requirements of sequence batcher"
            )
        if not request.sequence_id:
            if not self._iterative:
                raise InvalidArgument(
                    f"inference request to model '{name}' must specify a non-zero or non-empty correlation ID"
                )
            ids = map(self._controls.id_of, self._ids)
            request.sequence_id = next(each for each in ids if not self._slots.has(each))
            request.flags = SEQUENCE_START
        self._controls.check(request)
        starts = bool(request.flags & SEQUENCE_START)
        if self._over or (starts and self._stopping):
            raise Unavailable(STOPPING)
        if not self._slots.takes(request):
            raise UnknownSequence(
                f"inference request for sequence {request.sequence_id} to model '{name}' must specify the START flag "
                "on the first request of the sequence"
            )

    def _release_if_over(self, slot: Slot) -> None:
        if slot.idle and (slot.ended or self._stopping):
            self._end(slot)
            self._release(slot)

    def _release(self, slot: Slot) -> None:
        if self._slots.release(slot):
            self._begin(slot)

    def _begin(self, slot: Slot) -> None:
        """Go on with a sequence that has left the backlog."""
        assert slot.sequence_id is not None
        self._use(slot.sequence_id, self._now_ns())
        slot.batcher.wake(slot)

    def _use(self, sequence_id: SequenceId, now_ns: int) -> None:
        """Note that a sequence is in use, as long as it may go on."""
        if self._slots.slot_of(sequence_id) is None:
            self._used.pop(sequence_id, None)
            return
        self._used[sequence_id] = now_ns + self._idle_ns
        self._used.move_to_end(sequence_id)
        self._wake_at(now_ns + self._idle_ns)

    def _end(self, slot: Slot) -> None:
        slot.ended = True
        if slot.sequence_id is not None:
            self._used.pop(slot.sequence_id, None)

    def _end_idle(self, now_ns: int) -> None:
        while self._used:
            sequence_id, deadline_ns = next(iter(self._used.items()))
            if deadline_ns > now_ns:
                return
            slot = self._slots.slot_of(sequence_id)
            if slot is None:
                del self._used[sequence_id]
            elif slot.idle:
                self._end(slot)
                self._release(slot)
            else:
                self._use(sequence_id, now_ns)

    def _drop_late(self, now_ns: int) -> None:
        """Refuse the waiting sequences whose time is over, and note when the next one is late."""
        for backlog in tuple(self._slots.backlogs()):
            while self._slots.waits(backlog) and backlog.deadline_ns <= now_ns:  # else it got a slot meanwhile
                self._fail(self._slots.cut(backlog, backlog.first_late), Unavailable(EXPIRED), REJECTED)
        self._late_ns = min((backlog.deadline_ns for backlog in self._slots.backlogs()), default=NEVER_NS)

    def _wake_at(self, when_ns: int) -> None:
        if when_ns >= self._timer_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = when_ns
        self._timer = self._call_later(max(0, when_ns - self._now_ns()) / 1e9, self._wake)

    def _wake(self) -> None:
        due_ns, self._timer, self._timer_ns = self._timer_ns, None, NEVER_NS
        now_ns = self._now_ns()
        if now_ns - due_ns > _STILL_NS and due_ns > self._patient_until_ns:
            self._patient_until_ns = now_ns + min(self._idle_ns, _PATIENCE_NS)
        if self._late_ns <= now_ns:
            self._drop_late(now_ns)
        if now_ns >= self._patient_until_ns:
            self._end_idle(now_ns)
        self._wake_at(self._late_ns)
        if self._used:
            self._wake_at(max(next(iter(self._used.values())), self._patient_until_ns))

    def _fail(self, requests: Iterable[InferRequest], error: ServingError, reason: str) -> None:
        now_ns = self._now_ns()
        for request in requests:
            self._open_count -= 1
            self._statistics.counts.pending_count -= 1
            self._statistics.record_failure(reason, now_ns - request.received_ns)
            request.started_ns = 0  # of a request that was to run again, which is counted now
            reply(request, error)
        if self._drained is not None:
            self._check_drained()

    def _check_drained(self) -> None:
        if not self._open_count and self._drained is not None:
            if self._timer is not None:  # sequences that go on elsewhere
                self._timer.cancel()
            self._over = True
            self._outage.end()
            drained, self._drained = self._drained, None
            drained()


def _unheard(request: InferRequest, result: InferResponse | ServingError) -> None:
    pass


def _following_count(queue: deque[InferRequest]) -> int:
    """Return how many requests in a slot belong to later sequences of its id, which Triton has in its backlog."""
    ends = (place for place, request in enumerate(queue, start=1) if request.flags & SEQUENCE_END)
    return len(queue) - next(ends, len(queue))
