"""Where the sequences of a model are: in the slots of its instances, or in the backlog until one is free."""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from deployments.core.clock import NEVER_NS
from deployments.schedulers.implicit_states import States
from protocol.errors import ServingError
from protocol.infer import COPIED, SEQUENCE_END, SEQUENCE_START, Array, InferRequest, InferResponse

RUNNING: Final = -1
"""The place, in the queue of a slot, of the request that was handed to the instance."""

SequenceId = int | str


class SequenceBatcher(Protocol):
    """Runs what the slots of one instance hold."""

    slots: list["Slot"]

    @property
    def oldest_queued_ns(self) -> int:
        """When the request came that waits the longest of those taken out of their slots, 0 when none does."""
        ...

    def wake(self, slot: "Slot") -> None:
        """Look at a slot that has a new request, or whose request is answered."""
        ...

    def hurry(self) -> None:
        """Wait for nobody any more."""
        ...

    def cancel(self, request: InferRequest) -> None:
        """End the sequence of a request that was taken out of its slot, if it does not run yet."""
        ...

    def give_back(self) -> None:
        """Put the requests that were taken out of their slots, and do not run yet, back into them."""
        ...

    def abandon(self) -> None:
        """Fail the requests that were taken out of their slots and do not run yet."""
        ...


class SequenceOwner(Protocol):
    """What the batchers ask of the scheduler that they belong to, and tell it."""

    def take(self, slot: "Slot") -> InferRequest:
        """Return the next request of a slot, ready to run."""
        ...

    def prepare(self, slot: "Slot", request: InferRequest) -> None:
        """Give a request its controls and its states."""
        ...

    def not_ready(self, like: InferRequest) -> InferRequest:
        """Return a request for a row of a batch in which none runs, shaped as another one."""
        ...

    def ran(self, slot: "Slot", result: InferResponse | ServingError) -> None:
        """Keep the states of an answer before its client gets it."""
        ...

    def finished(self, slot: "Slot") -> None:
        """Go on with a slot whose request the instance is done with."""
        ...

    def dropped(self, slot: "Slot") -> None:
        """End the sequence of a slot whose running request was answered without having run."""
        ...

    def cancel_slot(self, slot: "Slot") -> None:
        """End the first sequence that waits in a slot, of which a request was cancelled."""
        ...

    def held(self) -> bool:
        """Whether the variables of Triton's tests still hold the first batch back."""
        ...


class Slot:
    """A place for one sequence on one instance.

    `queue` holds the requests that wait, `running` the one that was handed to the instance; `prepared` has its controls
    and states, `wanted` are the outputs that its client asked for, and `given` are, in an iterative sequence, the
    request that runs, once or several times, and its inputs without controls and states. `ended` says that the sequence
    is over once these are answered; in a free slot there is none, and its `sequence_id` is None. One that is `copied`
    is what a shadow has of a sequence of another version.
    """

    __slots__ = (
        "batcher",
        "copied",
        "ended",
        "given",
        "number",
        "prepared",
        "queue",
        "running",
        "sequence_id",
        "states",
        "wanted",
    )

    def __init__(self, batcher: SequenceBatcher, number: int) -> None:
        self.batcher = batcher
        self.number = number
        self.sequence_id: SequenceId | None = None
        self.queue: deque[InferRequest] = deque()
        self.running: InferRequest | None = None
        self.prepared: InferRequest | None = None
        self.given: tuple[InferRequest, dict[str, Array]] | None = None
        self.wanted: tuple[str, ...] | None = None
        self.states: States | None = None
        self.copied = self.ended = False

    @property
    def idle(self) -> bool:
        """Whether nothing of its sequence waits or runs."""
        return not self.queue and self.running is None


class Backlog:
    """A sequence that waits for a slot; `deadline_ns` is when the first timeout of its requests is over."""

    __slots__ = ("copied", "deadline_ns", "ended", "queue", "sequence_id")

    def __init__(self, sequence_id: SequenceId) -> None:
        self.sequence_id = sequence_id
        self.queue: deque[InferRequest] = deque()
        self.deadline_ns = NEVER_NS
        self.copied = self.ended = False

    @property
    def first_late(self) -> int:
        """The place of the request with the first timeout."""
        return next(at for at, request in enumerate(self.queue) if deadline_ns(request) == self.deadline_ns)


def deadline_ns(request: InferRequest) -> int:
    """Return when the timeout of a request is over."""
    return request.queued_ns + request.timeout_us * 1000 if request.timeout_us else NEVER_NS


class SequenceSlots:
    """Gives sequences slots: the lowest number that is free on any instance, else a place in the backlog.

    A sequence that starts while the last one of its id still runs or waits follows it where that is, so that no two of
    one id ever run at the same time. Those of an instance that has died are given to nobody until it is back.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = tuple(slots)
        self._free = [(slot.number, place) for place, slot in enumerate(slots)]
        heapq.heapify(self._free)
        self._places = {slot: place for place, slot in enumerate(slots)}
        self._holders: dict[SequenceId, Slot | Backlog] = {}
        self._backlogs: dict[Backlog, None] = {}
        self._dead: set[SequenceBatcher] = set()

    def holder_of(self, sequence_id: SequenceId) -> Slot | Backlog | None:
        """Return where the sequences of an id wait and run."""
        return self._holders.get(sequence_id)

    def slot_of(self, sequence_id: SequenceId) -> Slot | None:
        """Return the slot of a sequence that may go on."""
        holder = self._holders.get(sequence_id)
        return holder if isinstance(holder, Slot) and not holder.ended else None

    def queues(self) -> Iterator[deque[InferRequest]]:
        """Yield what waits of each sequence that is not over."""
        return (holder.queue for holder in self._holders.values())

    def has(self, sequence_id: SequenceId) -> bool:
        """Whether a sequence of this id may go on."""
        holder = self._holders.get(sequence_id)
        return holder is not None and not holder.ended

    def takes(self, request: InferRequest) -> bool:
        """Whether a request starts a sequence or goes on with one; copies go on with copies only, and end no other."""
        holder = self._holders.get(request.sequence_id)
        starts, copied = bool(request.flags & SEQUENCE_START), bool(request.flags & COPIED)
        if holder is None or holder.ended:
            return starts
        return holder.copied == copied or (starts and not copied)

    def __len__(self) -> int:
        return len(self._holders)

    def __contains__(self, sequence_id: object) -> bool:
        return sequence_id in self._holders

    def place(self, request: InferRequest) -> Slot | None:
        """Queue a request of a sequence that may go on or starts; returns its slot, None for the backlog."""
        sequence_id = request.sequence_id
        holder = self._holders.get(sequence_id)
        if holder is None:
            holder = self._holders[sequence_id] = self._new_holder(sequence_id)
        holder.queue.append(request)
        if request.flags & SEQUENCE_START:
            holder.copied = bool(request.flags & COPIED)
        holder.ended = bool(request.flags & SEQUENCE_END)
        if isinstance(holder, Slot):
            return holder
        holder.deadline_ns = min(holder.deadline_ns, deadline_ns(request))
        return None

    def cut(self, holder: Slot | Backlog, place: int) -> list[InferRequest]:
        """Take the sequence of the request at a place out of a queue; those of its id before and after it stay."""
        requests = list(holder.queue)
        starts = [at for at, request in enumerate(requests) if request.flags & SEQUENCE_START]
        first = max((at for at in starts if at <= place), default=0)
        end = min((at for at in starts if at > place), default=len(requests))
        holder.queue = deque(requests[:first] + requests[end:])
        if end == len(requests):
            holder.ended = True
        if isinstance(holder, Backlog):
            holder.deadline_ns = min(map(deadline_ns, holder.queue), default=NEVER_NS)
            if not holder.queue:
                self.drop_backlog(holder)
        return requests[first:end]

    def release(self, slot: Slot) -> bool:
        """Free a slot whose sequence is over; returns whether one from the backlog has taken it."""
        assert slot.sequence_id is not None
        del self._holders[slot.sequence_id]
        slot.states = slot.sequence_id = slot.given = None
        return slot.batcher not in self._dead and self._offer(slot)

    @property
    def some_live(self) -> bool:
        """Whether an instance has not died, or is back."""
        return any(slot.batcher not in self._dead for slot in self.slots)

    def withdraw(self, batcher: SequenceBatcher) -> None:
        """Give the slots of an instance that has died to no sequence."""
        self._dead.add(batcher)
        self._free = [entry for entry in self._free if self.slots[entry[1]].batcher is not batcher]
        heapq.heapify(self._free)

    def restore(self, batcher: SequenceBatcher) -> list[Slot]:
        """Give the slots of an instance that is back; returns those that sequences from the backlog have taken."""
        self._dead.discard(batcher)
        return [slot for slot in batcher.slots if slot.sequence_id is None and self._offer(slot)]

    def drop_backlog(self, backlog: Backlog) -> deque[InferRequest]:
        """Give a waiting sequence up; returns its requests."""
        del self._backlogs[backlog], self._holders[backlog.sequence_id]
        return backlog.queue

    def waits(self, backlog: Backlog) -> bool:
        """Whether a sequence that waited has neither got a slot since nor been given up."""
        return backlog in self._backlogs

    def backlogs(self) -> Iterator[Backlog]:
        """Yield the waiting sequences, the first in line first."""
        yield from self._backlogs

    def _offer(self, slot: Slot) -> bool:
        """Give a free slot to the first sequence of the backlog; returns whether there is one."""
        for backlog in self._backlogs:
            del self._backlogs[backlog]
            slot.sequence_id, slot.queue = backlog.sequence_id, backlog.queue
            slot.copied, slot.ended = backlog.copied, backlog.ended
            self._holders[backlog.sequence_id] = slot
            return True
        heapq.heappush(self._free, (slot.number, self._places[slot]))
        return False

    def _new_holder(self, sequence_id: SequenceId) -> Slot | Backlog:
        if self._free:
            slot = self.slots[heapq.heappop(self._free)[1]]
            slot.sequence_id = sequence_id
            return slot
        backlog = Backlog(sequence_id)
        self._backlogs[backlog] = None
        return backlog
