"""Shared memory that a replica has mapped, and the process of a Python model maps too: clients' regions, and arenas.

A tensor in one is named by the mapping and an offset in it, so the replica copies nothing. The process copies what it
reads in a client's region, since the model may write to it; a tensor in the arena of a lane belongs to the request
alone, and the model gets it where it is. The process hears of a mapping right before the first batch that names it, and
forgets it when the replica does.
"""

import contextlib
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Final

from deployments.backends.python.process.area import OwnArea
from deployments.backends.python.process.channel import MAX_DESCRIPTORS, Channel, HeldPlace, Place
from deployments.backends.python.process.outbox import Outbox
from deployments.lane.lendable import Lendable, address_of, lendable_under
from deployments.replica.guarded_mapping import GuardedMapping
from deployments.replica.region_mapping import RegionMapping
from protocol.infer import Array

NEWS: Final = "regions"
"""On the first socket: of each region its number, and what to map of its object, which the packet after it carries."""
FORGET: Final = "forget_region"
"""On the second socket: a region's number."""

KEPT_BYTES: Final = 8 << 20
"""How much of the arenas a model may keep of earlier batches; then it gets copies, and the lanes their room."""

Region = tuple[int, int, int]
"""A number, and where in the object it begins and how long it is."""


class LentRegions:
    """The replica's side, for one process."""

    def __init__(self, channel: Channel, outbox: Outbox, inputs: OwnArea, *, decoupled: bool) -> None:
        self._channel = channel
        self._outbox = outbox
        self._inputs = inputs
        # A decoupled or late model lets go of its inputs at any time, and may have nothing to say for long after that.
        self.may_lend_arenas = not decoupled
        self._lends_arenas = False
        self._lent: dict[int, bool] = {}
        self._untold: list[tuple[int, Region]] = []
        self._finalizers: list[weakref.finalize[Any, Lendable]] = []

    def begin_batch(self) -> None:
        """Decide whether the next batch's inputs are lent: what is held now, the model has kept of earlier ones."""
        self._lends_arenas = self.may_lend_arenas and self._inputs.held_bytes <= KEPT_BYTES

    def place(self, buffer: memoryview) -> Place | None:
        """Return how the process names memory for an output; None if it cannot map it.

        The process does not know the mapping before `tell`.
        """
        mapping = lendable_under(buffer)
        return None if mapping is None else self._place(mapping, buffer)

    def input_place(self, array: Array) -> Place | HeldPlace | None:
        """Return how the process names a contiguous input; None if it is in no shared memory, or has to be copied."""
        mapping = lendable_under(array)
        if mapping is None:
            return None
        if isinstance(mapping, RegionMapping):
            return self._place(mapping, array)
        # One that is read-only is looked at by others as well, or once more; one may begin at an odd address.
        if not self._lends_arenas or not array.flags.behaved:
            return None
        place = self._place(mapping, array)
        return None if place is None else (*place, self._inputs.hold(array))

    def tell(self) -> None:
        """Tell the process of the regions that it does not know, in few messages: a socket holds some hundreds.

        Raises:
            OSError: the process is gone.
        """
        untold, self._untold = self._untold, []
        try:
            for first in range(0, len(untold), MAX_DESCRIPTORS):
                descriptors, regions = zip(*untold[first : first + MAX_DESCRIPTORS], strict=True)
                self._channel.send_descriptors(NEWS, descriptors, regions)
        finally:
            for descriptor, _ in untold:
                os.close(descriptor)

    def close(self) -> None:
        """The process is dead, and need not hear more."""
        for finalizer in self._finalizers:
            finalizer.detach()
        self._finalizers.clear()

    def _place(self, mapping: Lendable, buffer: Array | memoryview) -> Place | None:
        if not self._lend(mapping):
            return None
        return mapping.number, address_of(buffer) - mapping.address, buffer.nbytes

    def _lend(self, mapping: Lendable) -> bool:
        lent = self._lent.get(mapping.number)
        if lent is not None:
            return lent
        try:
            descriptor = mapping.open_again()
        except OSError:  # its client has unlinked it already, so that only who has mapped it can
            lent = False
        else:
            lent = True
            self._untold.append((descriptor, (mapping.number, mapping.start, len(mapping))))
        self._lent[mapping.number] = lent
        self._finalizers = [finalizer for finalizer in self._finalizers if finalizer.alive]
        finalizer = weakref.finalize(mapping, self._forget, mapping.number)
        finalizer.atexit = False
        self._finalizers.append(finalizer)
        return lent

    def _forget(self, number: int) -> None:
        if self._lent.pop(number, False):
            self._outbox.send(FORGET, None, number)


class BorrowedRegions:
    """The process's side."""

    def __init__(self) -> None:
        self._mappings: dict[int, GuardedMapping] = {}
        self._objects: dict[int, tuple[int, int, int]] = {}
        self._lock = threading.Lock()
        self._forgotten: set[int] = set()
        """What the replica has forgotten before this process heard of it."""

    def borrow(self, descriptors: Sequence[int], regions: Sequence[Region]) -> None:
        """Map regions, whose objects the descriptors are.

        Raises:
            OSError: there is no memory for it.
        """
        for descriptor, (number, start, length) in zip(descriptors, regions, strict=True):
            with self._lock:
                self._objects[number] = descriptor, start, length
                self._map(number)
                if number in self._forgotten:
                    self._forgotten.remove(number)
                    self._forget(number)

    def forget(self, _: object, number: int) -> None:
        """Let go of a region, which stays mapped while anything looks at it; any thread may call this."""
        with self._lock:
            self._forget(number)

    def _forget(self, number: int) -> None:
        if self._mappings.pop(number, None) is not None:
            with contextlib.suppress(OSError):  # a model may close what it likes
                os.close(self._objects.pop(number)[0])
        else:
            self._forgotten.add(number)

    def view(self, place: Place) -> memoryview:
        """Return the bytes of a place, writable."""
        number, offset, size_bytes = place
        if self._mappings[number].lost:  # its client may have made the object larger again
            self._map(number)
        return memoryview(self._mappings[number])[offset : offset + size_bytes]

    def _map(self, number: int) -> None:
        descriptor, start, length = self._objects[number]
        try:
            mapping = GuardedMapping(descriptor, length, offset=start)
        except (OSError, ValueError):
            if os.fstat(descriptor).st_size >= start + length:
                raise
            # Its client has made the object smaller by now.
            mapping = GuardedMapping(-1, length)
            mapping.lost = True
        mapping.guard()
        self._mappings[number] = mapping
