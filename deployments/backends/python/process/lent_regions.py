"""Clients' regions of shared memory that a replica has mapped, and the process of a Python model maps too.

A tensor in one is named by the region and an offset in it, so the replica copies nothing. The process hears of a region
right before the first batch that names it, and forgets it when the replica does.
"""

import contextlib
import os
import weakref
from typing import Any, Final

from deployments.backends.python.process.channel import Channel, Place
from deployments.backends.python.process.outbox import Outbox
from deployments.replica.guarded_mapping import GuardedMapping, address_of
from deployments.replica.region_mapping import RegionMapping, region_under
from protocol.infer import Array

NEWS: Final = "region"
"""On the first socket: a region's number, and what to map of the object that the packet after it carries."""
FORGET: Final = "forget_region"
"""On the second socket: a region's number."""


class LentRegions:
    """The replica's side, for one process."""

    def __init__(self, channel: Channel, outbox: Outbox) -> None:
        self._channel = channel
        self._outbox = outbox
        self._lent: dict[int, bool] = {}
        self._finalizers: list[weakref.finalize[Any, RegionMapping]] = []

    def place(self, buffer: Array | memoryview) -> Place | None:
        """Return how the process names a contiguous buffer in a region; None if it is in none, or has to be copied.

        Raises:
            OSError: the process is gone.
        """
        mapping = region_under(buffer)
        if mapping is None or not self._lend(mapping):
            return None
        return mapping.number, address_of(buffer) - mapping.address, buffer.nbytes

    def close(self) -> None:
        """The process is dead, and need not hear more."""
        for finalizer in self._finalizers:
            finalizer.detach()
        self._finalizers.clear()

    def _lend(self, mapping: RegionMapping) -> bool:
        lent = self._lent.get(mapping.number)
        if lent is not None:
            return lent
        try:
            descriptor = mapping.open_again()
        except OSError:  # its client has unlinked it already, so that only who has mapped it can
            lent = False
        else:
            lent = True
            try:
                self._channel.send_descriptor(NEWS, descriptor, mapping.number, mapping.start, len(mapping))
            finally:
                os.close(descriptor)
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

    def borrow(self, descriptor: int, number: int, start: int, length: int) -> None:
        """Map a region, whose object the descriptor is."""
        self._objects[number] = descriptor, start, length
        self._map(number)

    def forget(self, _: object, number: int) -> None:
        """Let go of a region, which stays mapped while anything looks at it."""
        if self._mappings.pop(number, None) is not None:
            with contextlib.suppress(OSError):  # a model may close what it likes
                os.close(self._objects.pop(number)[0])

    def view(self, place: Place) -> memoryview:
        """Return the bytes of a place, writable."""
        number, offset, size_bytes = place
        if self._mappings[number].lost:  # its client may have made the object larger again
            self._map(number)
        return memoryview(self._mappings[number])[offset : offset + size_bytes]

    def _map(self, number: int) -> None:
        descriptor, start, length = self._objects[number]
        mapping = self._mappings[number] = GuardedMapping(descriptor, length, offset=start)
        mapping.guard()
