"""Memory on GPUs that clients share, and that the process of a Python model opens: the replica only says where it is.

What a request has there travels as the row of its region. The process keeps it open for the next request that names it,
until the replica forgets the region.
"""

import weakref
from collections.abc import Mapping
from typing import Any, Final

from deployments.backends.python.process.outbox import Outbox
from deployments.replica.region_row import Row
from deployments.replica.shared_allocation import SharedAllocation
from protocol.datatypes import BY_NAME
from protocol.device_input import DeviceInput

FORGET: Final = "forget_device"
"""On the second socket: a region's serial."""

DeviceFields = tuple[str, tuple[Any, ...], int, tuple[int, ...], str]
"""Name, the row of the region, offset in it, shape and datatype."""


class LentDevices:
    """The replica's side, for one process."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._finalizers: dict[str, weakref.finalize[Any, SharedAllocation]] = {}

    def describe(self, devices: Mapping[str, DeviceInput] | None) -> list[DeviceFields] | None:
        """Return a request's inputs on GPUs as plain values, None where there are none."""
        if devices is None:
            return None
        fields = []
        for name, (memory, offset, shape, datatype) in devices.items():
            assert isinstance(memory, SharedAllocation)
            self._lend(memory)
            fields.append((name, tuple(memory.row), offset, shape, datatype.name))
        return fields

    def close(self) -> None:
        """The process is dead, and need not hear more."""
        for finalizer in self._finalizers.values():
            finalizer.detach()
        self._finalizers.clear()

    def _lend(self, memory: SharedAllocation) -> None:
        serial = memory.row.serial
        if serial not in self._finalizers:
            self._finalizers[serial] = finalizer = weakref.finalize(memory, self._forget, serial)
            finalizer.atexit = False

    def _forget(self, serial: str) -> None:
        if self._finalizers.pop(serial, None) is not None:
            self._outbox.send(FORGET, None, serial)


class BorrowedDevices:
    """The process's side."""

    def __init__(self) -> None:
        self._memories: dict[str, SharedAllocation] = {}

    def inputs(self, fields: list[DeviceFields]) -> dict[str, DeviceInput]:
        """Rebuild what `describe` took apart; opens nothing yet."""
        return {
            name: DeviceInput(self._memory(Row(*row)), offset, shape, BY_NAME[datatype])
            for name, row, offset, shape, datatype in fields
        }

    def forget(self, _: object, serial: str) -> None:
        """Let go of a region, which stays open while anything looks at it."""
        self._memories.pop(serial, None)

    def _memory(self, row: Row) -> SharedAllocation:
        memory = self._memories.get(row.serial)
        if memory is None:
            memory = self._memories[row.serial] = SharedAllocation(row)
        return memory
