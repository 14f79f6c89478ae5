"""Shared memory of which other processes of the node can be told: what lies in it is named to them, and not copied."""

import itertools
import mmap
from typing import Any

import numpy as np

lendable_numbers = itertools.count(1)


class Pin:
    """What is there while a mapping is pinned for GPUs, as its object had its memory in a `version`."""

    def __init__(self, version: int) -> None:
        self.version = version


class Lendable(mmap.mmap):
    """A mapping that begins at `address` in memory, and at `start` in its object; `number` is no other's here.

    Its `pin` goes before the memory is unmapped, weak references to the mapping only after that.
    """

    number: int
    address: int
    start: int
    pin: Pin | None = None
    may_be_pinned: bool = True

    def version(self) -> int | None:
        """Return a number that is another one once the object has other memory; None where it changed just now."""
        return 0

    def open_again(self) -> int:
        """Return a descriptor of the object. Raises OSError where nobody else can map it any more."""
        raise NotImplementedError


def lendable_under(buffer: Any) -> Lendable | None:
    """Return the mapping that the memory of an array or memoryview is part of, None if it is part of none."""
    owner = buffer
    while owner is not None and not isinstance(owner, Lendable):
        if isinstance(owner, np.ndarray):
            owner = owner.base
        elif type(owner) is memoryview:
            owner = owner.obj
        else:
            return None
    return owner


def address_of(buffer: Any) -> int:
    """Return where a buffer or a contiguous array lies in memory."""
    array = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)
    address: int = array.__array_interface__["data"][0]
    return address
