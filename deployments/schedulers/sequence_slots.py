"""Where the sequences of a model are: in the slots of its instances, or in the backlog until one is free."""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from deployments.schedulers.implicit_states import States
from protocol.errors import ServingError
from protocol.infer import SEQUENCE_END, InferRequest, InferResponse

NEVER_NS: Final = 1 << 62

SequenceId = int | str


class SequenceBatcher(Protocol):
    """Runs what the slots of one instance hold."""

    slots: list["Slot"]

    def wake(self, slot: "Slot") -> None:
        """Look at a slot that has a new request, or whose request is answered."""
        ...

    def hurry(self) -> None:
        """Wait for nobody any more."""
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
        """End the sequence of a slot, of which a request that waits was cancelled."""
        ...

    def held(self) -> bool:
        """Whether the variables of Triton's tests still hold the first batch back."""
        ...


class Slot:
    """A place for one sequence on one instance.

    `queue` holds the requests that wait, `running` the one that was handed to the instance; `prepared` has its controls
    and states, and `wanted` are the outputs that its client asked for. `ended` says that the sequence is over once
    these are answered.
    """

    __slots__ = ("batcher", "ended", "free", "number", "prepared", "queue", "running", "states", "wanted")

    def __init__(self, batcher: SequenceBatcher, number: int) -> None:
        self.batcher = batcher
        self.number = number
        self.queue: deque[InferRequest] = deque()
        self.running: InferRequest | None = None
        self.prepared: InferRequest | None = None
        self.wanted: tuple[str, ...] | None = None
        self.states: States | None = None
        self.ended = False
        self.free = True

    @property
    def idle(self) -> bool:
        """Whether nothing of its sequence waits or runs."""
        return not self.queue and self.running is None


class Backlog:
    """A sequence that waits for a slot; `deadline_ns` is when the first timeout of its requests is over."""

    __slots__ = ("deadline_ns", "requests", "sequence_id")

    def __init__(self, sequence_id: SequenceId) -> None:
        self.sequence_id = sequence_id
        self.requests: deque[InferRequest] = deque()
        self.deadline_ns = NEVER_NS

    def append(self, request: InferRequest) -> None:
        """Take a request of the sequence."""
        self.requests.append(request)
        if request.timeout_us:
            self.deadline_ns = min(self.deadline_ns, request.queued_ns + request.timeout_us * 1000)

    @property
    def complete(self) -> bool:
        """Whether its last request ends the sequence, so that another one may begin under the same id."""
        return bool(self.requests[-1].flags & SEQUENCE_END)


class SequenceSlots:
    """Gives sequences slots: the lowest number that is free on any instance, else a place in the backlog."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = tuple(slots)
        self._free = [(slot.number, place) for place, slot in enumerate(slots)]
        heapq.heapify(self._free)
        self._places = {slot: place for place, slot in enumerate(slots)}
        self._open: dict[SequenceId, Slot] = {}
        self._open_backlogs: dict[SequenceId, Backlog] = {}
        self._backlogs: dict[Backlog, None] = {}

    def slot_of(self, sequence_id: SequenceId) -> Slot | None:
        """Return the slot of a sequence that may go on."""
        return self._open.get(sequence_id)

    def has(self, sequence_id: SequenceId) -> bool:
        """Whether a sequence of this id may go on."""
        return sequence_id in self._open or sequence_id in self._open_backlogs

    def place(self, request: InferRequest) -> Slot | None:
        """Queue a request of a sequence that may go on or starts; returns its slot, None for the backlog."""
        sequence_id = request.sequence_id
        ends = bool(request.flags & SEQUENCE_END)
        slot = self._open.get(sequence_id)
        if slot is None and sequence_id not in self._open_backlogs and self._free:
            slot = self._open[sequence_id] = self.slots[heapq.heappop(self._free)[1]]
            slot.free = slot.ended = False
        if slot is not None:
            slot.queue.append(request)
            if ends:
                self.end(sequence_id)
            return slot
        backlog = self._open_backlogs.get(sequence_id)
        if backlog is None:
            backlog = self._open_backlogs[sequence_id] = Backlog(sequence_id)
            self._backlogs[backlog] = None
        backlog.append(request)
        if ends:
            del self._open_backlogs[sequence_id]
        return None

    def end(self, sequence_id: SequenceId) -> Slot | None:
        """Let a sequence in a slot take no more requests; returns the slot."""
        slot = self._open.pop(sequence_id, None)
        if slot is not None:
            slot.ended = True
        return slot

    def release(self, slot: Slot) -> SequenceId | None:
        """Free a slot whose sequence is over; returns the id of the sequence from the backlog that takes it, if any."""
        slot.states = None
        for backlog in self._backlogs:
            self._drop(backlog)
            slot.queue = backlog.requests
            slot.ended = backlog.complete
            if not slot.ended:
                self._open[backlog.sequence_id] = slot
            return backlog.sequence_id
        slot.free = slot.ended = True
        heapq.heappush(self._free, (slot.number, self._places[slot]))
        return None

    def drop_backlog(self, backlog: Backlog) -> deque[InferRequest]:
        """Give a waiting sequence up; returns its requests."""
        self._drop(backlog)
        return backlog.requests

    def backlogs(self) -> Iterator[Backlog]:
        """Yield the waiting sequences, the first in line first."""
        yield from self._backlogs

    def _drop(self, backlog: Backlog) -> None:
        del self._backlogs[backlog]
        if self._open_backlogs.get(backlog.sequence_id) is backlog:
            del self._open_backlogs[backlog.sequence_id]
