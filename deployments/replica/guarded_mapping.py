"""Shared memory that its client may make smaller while it is mapped, or for which the machine has no memory.

The kernel sends SIGBUS to a thread that touches what is not there. Here the mapping then becomes memory of this process
alone, so that the thread goes on, and the mapping says that it is lost.
"""

import ctypes
import mmap
import signal
import weakref
from typing import Final

from deployments.lane.lendable import address_of

_SA_SIGINFO: Final = 4
_MAP_FIXED: Final = 0x10
_CODE_OFFSET: Final = 8  # in `siginfo_t`
_ADDRESS_OFFSET: Final = 16
_SIGSET_BYTES: Final = 128
_FAILED: Final = 2 ** (8 * ctypes.sizeof(ctypes.c_void_p)) - 1

_libc: Final = ctypes.PyDLL(None)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t)


class _Action(ctypes.Structure):
    """`struct sigaction` of Linux's C libraries."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * _SIGSET_BYTES),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class GuardedMapping(mmap.mmap):
    """A mapping; `address` is where it begins. Once it is `lost`, nobody else sees what is written to it."""

    address: int
    lost: bool = False

    def guard(self) -> None:
        """Survive it when the object becomes smaller; once, after it was made."""
        self.address = address_of(self)
        _guarded[self.address] = weakref.ref(self)
        _take_signal()


_guarded: dict[int, "weakref.ref[GuardedMapping]"] = {}
_before = _Action()


def _take_signal() -> None:
    """Handle the signal before whoever handles it now, and forget mappings that are gone."""
    current = _Action()
    _libc.sigaction(signal.SIGBUS, None, ctypes.byref(current))
    if current.handler != _ours.handler:
        _libc.sigaction(signal.SIGBUS, ctypes.byref(_ours), ctypes.byref(_before))
    for address, reference in list(_guarded.items()):
        if reference() is None:
            _guarded.pop(address, None)


def _on_bus_error(number: int, information: int, context: int) -> None:
    """Put memory where there is none, or leave the signal to those before; any thread, with or without the lock.

    What touched the memory is tried again on return.
    """
    address = ctypes.c_size_t.from_address(information + _ADDRESS_OFFSET).value
    was_sent = ctypes.c_int.from_address(information + _CODE_OFFSET).value <= 0
    for start, reference in [] if was_sent else list(_guarded.items()):
        mapping = reference() if start <= address else None
        if mapping is not None and address < start + len(mapping):
            mapping.lost = True
            flags = _MAP_FIXED | mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            if _libc.mmap(start, len(mapping), mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != _FAILED:
                return
    _libc.sigaction(signal.SIGBUS, ctypes.byref(_before), None)
    _before.handler = None  # if they in turn leave it to us, the process ends
    if was_sent:
        signal.raise_signal(signal.SIGBUS)


_called = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(_on_bus_error)
_ours = _Action(handler=ctypes.cast(_called, ctypes.c_void_p).value, flags=_SA_SIGINFO)
